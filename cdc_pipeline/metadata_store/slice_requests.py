"""Requests to apply a table's slices: an Airflow task asks, a resident worker takes, and the task reads the outcome.

A request only starts a run. The table's lease guards the run as it guards every other one, and the fence in the lake's
commit alone makes every slice count once. So it does no harm when two workers have the same request for a while.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, JSON, Interval, Uuid, bindparam, text
from sqlalchemy.types import TypeEngine

from cdc_pipeline.metadata_store.database import OfStream, as_optional_record
from cdc_pipeline.metadata_store.ledger.failures import record_failure
from cdc_pipeline.metadata_store.models.columns import State
from cdc_pipeline.metadata_store.states import RequestState
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.retry_policy import RetryPolicy

_TYPES: dict[str, TypeEngine[Any]] = {"request_id": Uuid(), "state": State(RequestState), "report": JSON()}
MOST_ATTEMPTS = 3
"""A request that so many workers died of is failed, so that one table does not end the runs of the others for ever.

A try that met a metadata store that was away, or lost the table's lease, counts too; one that was handed back does not,
unless it was the first.
"""
_USUAL_POLICY = RetryPolicy()
_COLUMNS = """
    request.table_id, request_id, by_hand, request.state, attempts, worker, requested_at, taken_at, ended_at,
    report, error, log, goes_on_until, database_name, schema_name, table_name
    """
_IS_OF_TABLE = """
    stream = :stream AND database_name = :database AND schema_name = :schema AND table_name = :table
    """
_ASK = text(f"""
    INSERT INTO cdc.slice_request AS held (table_id, request_id, by_hand, state, requested_at, goes_on_until)
    SELECT table_id, :request_id, :by_hand, 'requested', clock_timestamp(), clock_timestamp() + :goes_on_for
    FROM cdc.source_table
    WHERE {_IS_OF_TABLE}
    ON CONFLICT (table_id) DO UPDATE
    SET request_id = excluded.request_id,
        by_hand = excluded.by_hand,
        state = excluded.state,
        requested_at = excluded.requested_at,
        goes_on_until = excluded.goes_on_until,
        report = CASE WHEN held.request_id = excluded.request_id THEN held.report END,
        attempts = 0, worker = NULL, taken_at = NULL, ended_at = NULL, error = NULL, log = NULL
    WHERE held.state = 'cancelled'
       OR (held.request_id <> excluded.request_id AND held.state NOT IN ('requested', 'taken'))
    """).bindparams(bindparam("goes_on_for", type_=Interval))
# The report stays: the worker adds the next one to it.
_ASK_AGAIN = text("""
    UPDATE cdc.slice_request
    SET state = 'requested', by_hand = false, requested_at = clock_timestamp(),
        attempts = 0, worker = NULL, taken_at = NULL, ended_at = NULL, log = NULL
    WHERE request_id = :request_id AND state = 'done'
    """)
_GO_ON_NO_LONGER = text("UPDATE cdc.slice_request SET goes_on_until = NULL WHERE request_id = :request_id")
# Somebody else asked for it, and no worker has it yet.
_BY_HAND_TOO = text(f"""
    UPDATE cdc.slice_request AS request SET by_hand = true
    FROM cdc.source_table AS source
    WHERE source.table_id = request.table_id AND {_IS_OF_TABLE} AND request.state = 'requested'
    """)
_SELECT = f"SELECT {_COLUMNS} FROM cdc.slice_request AS request JOIN cdc.source_table USING (table_id)"
_FIND_OF_TABLE = text(f"{_SELECT} WHERE {_IS_OF_TABLE}").columns(**_TYPES)
_FIND = text(f"{_SELECT} WHERE request_id = :request_id AND stream = :stream").columns(**_TYPES)
# A worker whose own heartbeat has expired, as after a pause of its machine, leaves none of its runs.
_IS_LEFT = """
    request.state = 'taken' AND request.request_id <> ALL(:running) AND NOT EXISTS (
        SELECT FROM cdc.resident_worker
        WHERE owner = request.worker AND resident_worker.expires_at > clock_timestamp()
    )"""
# The worker did not get the answer to an earlier take, or left a run whose metadata store was away.
_IS_UNKNOWN = "request.state = 'taken' AND request.worker = :worker AND request.request_id <> ALL(:running)"
_RUNNING = bindparam("running", type_=ARRAY(Uuid))
_GIVE_UP = text(f"""
    UPDATE cdc.slice_request AS request
    SET state = 'failed', ended_at = clock_timestamp(), error = :error
    FROM cdc.source_table AS source
    WHERE source.table_id = request.table_id AND source.stream = :stream
      AND request.attempts >= :most_attempts AND {_IS_LEFT}
    RETURNING request.table_id
    """).bindparams(_RUNNING)
# After a worker died, its table's lease may last a little longer than its heartbeat. The next worker waits for that.
_TAKE = (
    text(f"""
    WITH next AS (
        SELECT request.table_id, database_name, schema_name, table_name
        FROM cdc.slice_request AS request JOIN cdc.source_table USING (table_id)
        WHERE stream = :stream
          AND (request.state = 'requested' OR {_IS_LEFT} OR {_IS_UNKNOWN})
          AND (request.attempts = 0 OR NOT EXISTS (
              SELECT FROM cdc.lease WHERE lease.table_id = request.table_id AND lease.expires_at > clock_timestamp()))
        ORDER BY requested_at
        LIMIT 1
        FOR UPDATE OF request SKIP LOCKED
    )
    UPDATE cdc.slice_request AS request
    SET state = 'taken', worker = :worker, attempts = attempts + 1, taken_at = clock_timestamp()
    FROM next WHERE next.table_id = request.table_id
    RETURNING {_COLUMNS}
    """)
    .bindparams(_RUNNING)
    .columns(**_TYPES)
)
_END = text("""
    UPDATE cdc.slice_request
    SET state = :state, ended_at = clock_timestamp(), report = :report, error = :error, log = :log
    WHERE request_id = :request_id AND worker = :worker AND state = 'taken' AND taken_at = :taken_at
    """).bindparams(bindparam("report", type_=JSON(none_as_null=True)))
# Without its lease, the worker stops before its next commit.
_TAKE_LEASE_AWAY = """
    UPDATE cdc.lease
    SET owner = 'nobody', epoch = epoch + 1, expires_at = clock_timestamp()
    FROM cdc.slice_request AS request
    WHERE request.table_id = lease.table_id AND request.state = 'taken' AND lease.owner = request.worker
    """
_CANCEL = (
    text(f"{_TAKE_LEASE_AWAY} AND request.request_id = :request_id"),
    text("""
    UPDATE cdc.slice_request SET state = 'cancelled', ended_at = clock_timestamp()
    WHERE request_id = :request_id AND state IN ('requested', 'taken')
    """),
    _GO_ON_NO_LONGER,
)
_LEAVE = (
    text(f"{_TAKE_LEASE_AWAY} AND request.worker = :worker"),
    text("""
    UPDATE cdc.slice_request SET state = 'requested', worker = NULL, attempts = greatest(attempts - 1, 1)
    WHERE worker = :worker AND state = 'taken'
    """),
    text("DELETE FROM cdc.resident_worker WHERE owner = :worker OR expires_at < clock_timestamp() - interval '1 day'"),
)
_RENEW = text("""
    INSERT INTO cdc.resident_worker (owner, stream, expires_at)
    VALUES (:worker, :stream, clock_timestamp() + :duration)
    ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at
    """).bindparams(bindparam("duration", type_=Interval))


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRequest:
    """A request as it is now. Each table has at most one; a newer one replaces it after it has ended.

    `by_hand`: a person started the run, so the table is tried although it pauses. `attempts`: how many workers took
    it, not counting those that handed it back, but for the first. `worker`: who has it, or had it last. `report`: what
    came of it, each time that it was done, in sum. `log`: the last log lines, one line each, of the last time.
    `goes_on_until`: until then, its run asks again for each new slice.
    """

    table_id: int
    request_id: UUID
    by_hand: bool
    state: RequestState
    attempts: int
    worker: str | None
    requested_at: datetime
    taken_at: datetime | None
    ended_at: datetime | None
    report: Mapping[str, Any] | None
    error: str | None
    log: str | None
    goes_on_until: datetime | None
    database_name: str
    schema_name: str
    table_name: str

    @property
    def table(self) -> TableName:
        return TableName(database=self.database_name, schema=self.schema_name, table=self.table_name)

    @property
    def has_ended(self) -> bool:
        return self.state not in (RequestState.REQUESTED, RequestState.TAKEN)


class SliceRequests(OfStream):
    """The requests of one stream, and the heartbeats of its resident workers."""

    def ask(
        self, request_id: UUID, table: TableName, *, by_hand: bool, goes_on_for: timedelta | None = None
    ) -> SliceRequest | None:
        """Records a request, in place of an earlier one that has ended; durable on return. Returns the table's request.

        Idempotent: a request that is recorded already stays as it is, unless it was cancelled. If an earlier one has
        not ended, that one is returned, and its run serves both. Returns None for an unregistered table. `goes_on_for`:
        how long its run asks again for new slices (`ask_again`).
        """
        name = {"stream": self.stream, "database": table.database, "schema": table.schema, "table": table.table}
        with self.database.transaction("slice_request.ask") as connection:
            connection.execute(_ASK, {"request_id": request_id, "by_hand": by_hand, "goes_on_for": goes_on_for, **name})
            if by_hand:
                connection.execute(_BY_HAND_TOO, name)
            return as_optional_record(SliceRequest, connection.execute(_FIND_OF_TABLE, name).one_or_none())

    def ask_again(self, request_id: UUID) -> SliceRequest | None:
        """Records that a request that is done shall be done once more. Returns it; None when a newer one replaced it.

        Idempotent: a request that has not ended stays as it is.
        """
        with self.database.transaction("slice_request.ask_again") as connection:
            connection.execute(_ASK_AGAIN, {"request_id": request_id})
            row = connection.execute(_FIND, {"request_id": request_id, "stream": self.stream}).one_or_none()
        return as_optional_record(SliceRequest, row)

    def go_on_no_longer(self, request_id: UUID) -> None:
        """Records that the run has ended, so that new slices start another one."""
        with self.database.transaction("slice_request.go_on_no_longer") as connection:
            connection.execute(_GO_ON_NO_LONGER, {"request_id": request_id})

    def find(self, request_id: UUID) -> SliceRequest | None:
        """Returns the request; None when a newer one has replaced it."""
        with self.database.transaction("slice_request.read") as connection:
            row = connection.execute(_FIND, {"request_id": request_id, "stream": self.stream}).one_or_none()
        return as_optional_record(SliceRequest, row)

    def cancel(self, request_id: UUID) -> None:
        """Ends a request that has not ended. A worker that has it loses the table's lease."""
        with self.database.transaction("slice_request.cancel") as connection:
            for statement in _CANCEL:
                connection.execute(statement, {"request_id": request_id})

    def take(
        self, worker: str, *, running: Collection[UUID] = (), retry_policy: RetryPolicy = _USUAL_POLICY
    ) -> SliceRequest | None:
        """Gives `worker` the oldest free request.

        A request is given until it has MOST_ATTEMPTS `attempts`. Returns None if none is free.

        A request is free again when the heartbeat of its worker has expired, or when its worker has left. After
        MOST_ATTEMPTS its table pauses by the retry policy. `running`: the requests that `worker` knows of.
        """
        error = f"{MOST_ATTEMPTS} workers ended in the middle of this run; read their logs, then trigger the DAG again"
        known = {"stream": self.stream, "running": list(running)}
        with self.database.transaction("slice_request.take") as connection:
            given_up = connection.scalars(_GIVE_UP, known | {"most_attempts": MOST_ATTEMPTS, "error": error})
            for table_id in sorted(given_up):
                record_failure(connection, table_id, error, retry_policy=retry_policy, is_outage=False)
            row = connection.execute(_TAKE, known | {"worker": worker}).one_or_none()
        return as_optional_record(SliceRequest, row)

    def end(
        self, request: SliceRequest, *, report: Mapping[str, Any] | None, error: str | None = None, log: str = ""
    ) -> bool:
        """Records the outcome of a run: `error` when it failed. Returns False when the worker no longer has it.

        `request`: as it was taken. `report`: the run's own; what the request has from earlier is added to it.
        """
        earlier = request.report or {}
        report = None if report is None else {**earlier, **report, **_sums(report, earlier)}
        state = RequestState.DONE if error is None else RequestState.FAILED
        taken = {"request_id": request.request_id, "worker": request.worker, "taken_at": request.taken_at}
        values = taken | {"state": state.value}
        with self.database.transaction("slice_request.end") as connection:
            return bool(connection.execute(_END, values | {"report": report, "error": error, "log": log}).rowcount)

    def renew(self, worker: str, *, duration: timedelta) -> None:
        """Records a heartbeat: until `duration` from now, the worker keeps its requests."""
        with self.database.transaction("resident_worker.renew") as connection:
            connection.execute(_RENEW, {"worker": worker, "stream": self.stream, "duration": duration})

    def leave(self, worker: str) -> None:
        """Hands the worker's requests back, with their tables' leases, and forgets the worker. Idempotent."""
        with self.database.transaction("resident_worker.leave") as connection:
            for statement in _LEAVE:
                connection.execute(statement, {"worker": worker})


def _sums(report: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, int]:
    """Returns the counts of both reports, added. A truth value is no count."""
    return {
        name: value + earlier[name]
        for name, value in report.items()
        if isinstance(value, int) and not isinstance(value, bool) and name in earlier
    }
