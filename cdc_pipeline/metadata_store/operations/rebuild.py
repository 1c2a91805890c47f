"""Empties the ledger of a stream and fills it again, in one transaction that holds the stream and every lease."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, case, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.errors import LeaseBusy, RegistryError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database, OfStore
from cdc_pipeline.metadata_store.ledger.records import Stream
from cdc_pipeline.metadata_store.ledger.streams import lock_stream
from cdc_pipeline.metadata_store.ledger.tables import NewTable
from cdc_pipeline.metadata_store.operations.rebuild_from_base import Rows, restore
from cdc_pipeline.metadata_store.operations.rebuild_from_lake import RebuildFromLake
from cdc_pipeline.record import PARTITION_NAME

_PARTITION, _TABLE = models.stream_partition, models.source_table
_BOUNDARY, _LEASE = models.boundary, models.lease
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('cdc.rebuild'))"
_TAKES_LONG = "SET LOCAL idle_in_transaction_session_timeout = 0"
"""The bucket and the lake's logs are read within the transaction. No other transaction waits for anything outside."""

_REMEMBER = (
    """
    CREATE TEMPORARY TABLE known_boundary ON COMMIT DROP AS
    SELECT position, requested, registered_at FROM cdc.boundary WHERE stream = :stream
    """,
    """
    CREATE TEMPORARY TABLE known_slice ON COMMIT DROP AS
    SELECT slice.table_id, slice.number, slice.slice_id, slice.registered_at, slice.applied_at
    FROM cdc.slice JOIN cdc.source_table AS source USING (table_id) WHERE source.stream = :stream
    """,
    """
    CREATE TEMPORARY TABLE known_table ON COMMIT DROP AS
    SELECT table_id, state, horizon, horizon_number, forgotten_through, cleaned_through
    FROM cdc.source_table WHERE stream = :stream
    """,
)
_WAS_STALE = text(
    "EXISTS (SELECT FROM pg_temp.known_table AS known"
    " WHERE known.table_id = source_table.table_id AND known.state = 'stale')"
)
_EMPTY = (
    "DELETE FROM cdc.failing_table WHERE table_id IN (SELECT table_id FROM cdc.source_table WHERE stream = :stream)",
    "DELETE FROM cdc.damaged_slice WHERE table_id IN (SELECT table_id FROM cdc.source_table WHERE stream = :stream)",
    "DELETE FROM cdc.slice WHERE table_id IN (SELECT table_id FROM cdc.source_table WHERE stream = :stream)",
    "DELETE FROM cdc.boundary WHERE stream = :stream",
    "DELETE FROM cdc.source_file WHERE stream = :stream",
    f"""
    UPDATE cdc.stream_partition
    SET next_offset = NULL, watermark = NULL, label_start = NULL, label_end = NULL,
        last_position = jsonb_strip_nulls(jsonb_build_object('{PARTITION_NAME}', last_position -> '{PARTITION_NAME}'))
    WHERE stream = :stream
    """,
    """
    UPDATE cdc.source_table
    SET next_slice_number = 1, horizon = '', horizon_number = 0, state = 'registered', state_reason = NULL,
        cutoff_offset = NULL, cutoff_version = NULL, cutoff_time = NULL, halted_at = NULL, followed_at = NULL,
        forgotten_through = 0, cleaned_through = 0
    WHERE stream = :stream
    """,
)
_RESTORE = (
    """
    UPDATE cdc.boundary
    SET registered_at = known.registered_at, requested = boundary.requested OR known.requested
    FROM pg_temp.known_boundary AS known WHERE boundary.stream = :stream AND boundary.position = known.position
    """,
    """
    UPDATE cdc.slice
    SET registered_at = known.registered_at,
        applied_at = CASE WHEN slice.state = 'applied' THEN coalesce(known.applied_at, slice.applied_at) END
    FROM pg_temp.known_slice AS known WHERE slice.table_id = known.table_id AND slice.slice_id = known.slice_id
    """,
    """
    UPDATE cdc.source_table AS source
    SET horizon = greatest(source.horizon, known.horizon),
        horizon_number = CASE WHEN known.horizon < source.horizon THEN source.horizon_number
            ELSE least(known.horizon_number, source.next_slice_number - 1) END,
        forgotten_through = greatest(
            source.forgotten_through, least(known.forgotten_through, source.next_slice_number - 1)),
        cleaned_through = greatest(source.cleaned_through, least(known.cleaned_through, source.next_slice_number - 1))
    FROM pg_temp.known_table AS known WHERE source.table_id = known.table_id
    """,
    """
    DELETE FROM cdc.quarantine AS event USING cdc.source_table AS source
    WHERE source.table_id = event.table_id AND source.stream = :stream
      AND event.snapshot_id IS NULL
      AND split_part(event.place, '-', 1) COLLATE "C" > :since
      AND split_part(event.place, '-', 1) NOT IN (SELECT position FROM cdc.boundary WHERE stream = :stream)
    """,
)
"""Quarantined events are never deleted by `_EMPTY`: they stay, with their decisions, if the chain has their cut."""
_RAISE_EPOCHS = (
    """
    UPDATE cdc.stream_partition
    SET assignment_owner = 'cdc rebuild',
        assignment_epoch = greatest(assignment_epoch + 1, extract(epoch FROM clock_timestamp())::bigint)
    WHERE stream = :stream
    """,
    """
    INSERT INTO cdc.lease AS held (table_id, owner, epoch, expires_at, acquired_at, renewed_at)
    SELECT table_id, 'cdc rebuild', extract(epoch FROM now.time)::bigint, now.time, now.time, now.time
    FROM cdc.source_table, clock_timestamp() AS now (time) WHERE stream = :stream
    ON CONFLICT (table_id) DO UPDATE
    SET owner = excluded.owner, epoch = greatest(held.epoch + 1, excluded.epoch), expires_at = excluded.expires_at
    """,
)

_LOST = """
    SELECT position FROM pg_temp.known_boundary
    WHERE position NOT IN (SELECT position FROM cdc.boundary WHERE stream = :stream) AND position > :since
    ORDER BY position
    """
_DIFFERENCES = """
    SELECT count(*) FILTER (WHERE known.slice_id IS NULL) AS added,
           count(*) FILTER (WHERE rebuilt.slice_id IS NULL) AS gone
    FROM (SELECT slice_id, number FROM cdc.slice WHERE table_id = :table_id AND number > :behind) AS rebuilt
    FULL JOIN (
        SELECT slice_id, number FROM pg_temp.known_slice WHERE table_id = :table_id AND number > :behind
    ) AS known ON (rebuilt.slice_id, rebuilt.number) = (known.slice_id, known.number)
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyLedger:
    """A stream of which nothing is registered. All operations through `database` are part of one transaction.

    `cuts_before`: the number of cuts that were registered. `since`: position of the base of the chain, "" without one.
    """

    database: Database
    stream: str
    cuts_before: int
    since: str

    @property
    def from_lake(self) -> RebuildFromLake:
        return RebuildFromLake(database=self.database)

    def begin_stream(self, stream: Stream, stream_partitions: Sequence[int]) -> None:
        """Registers the stream and its partitions, where they are not registered."""
        rows = [{"stream": stream.name, "stream_partition": number} for number in stream_partitions]
        with self.database.transaction("ledger.rebuild") as connection:
            connection.execute(insert(models.stream).values(**asdict(stream)).on_conflict_do_nothing())
            if rows:
                connection.execute(insert(_PARTITION).on_conflict_do_nothing(), rows)

    def begin_table(self, new: NewTable) -> int:
        """Registers a table and returns its id. A table of this name takes over the identity and the lake's settings.

        A stale one keeps its settings: it may have begun again with others, which the lake does not show yet.
        """
        identity = {
            "table_uuid": new.table_uuid,
            "source_oid": new.source_oid,
            "published_as": new.published_as or None,
        }
        with self.database.transaction("ledger.rebuild") as connection:
            begun = insert(_TABLE).values(**new.name_columns(), settings=dict(new.settings), **identity)
            settings = case((_WAS_STALE, _TABLE.c.settings), else_=begun.excluded.settings)
            changed = identity | ({"settings": settings} if new.settings else {})
            row = connection.execute(
                begun.on_conflict_do_update(index_elements=[*new.name_columns()], set_=changed).returning(
                    _TABLE.c.table_id
                )
            ).one()
        return int(row.table_id)

    def begin_behind(
        self, partitions: Sequence[Mapping[str, Any]], rows: Mapping[str, Rows], table_ids: Mapping[UUID, int]
    ) -> None:
        """Restores the base of the chain; the stream continues behind it.

        `partitions`: columns of `cdc.stream_partition` as of the base. `rows`: the rows that the base keeps.
        """
        with self.database.transaction("ledger.rebuild") as connection:
            for part in partitions:
                of_partition = _PARTITION.c.stream_partition == part["stream_partition"]
                connection.execute(
                    update(_PARTITION).where(_PARTITION.c.stream == self.stream, of_partition).values(part)
                )
            restore(connection, rows, table_ids, self.since)

    def pass_late_slice(self) -> None:
        """Counts a late slice of a table that was removed since, because the chain continues behind it."""
        last = select(func.max(_BOUNDARY.c.position)).where(_BOUNDARY.c.stream == self.stream).scalar_subquery()
        with self.database.transaction("ledger.rebuild") as connection:
            connection.execute(
                update(_BOUNDARY)
                .where(_BOUNDARY.c.stream == self.stream, _BOUNDARY.c.position == last)
                .values(late_slices=_BOUNDARY.c.late_slices + 1)
            )

    def check_nothing_is_lost(self) -> None:
        """Raises RegistryError when the store had a cut behind the base that no cut file describes."""
        with self.database.transaction("ledger.rebuild") as connection:
            lost = connection.scalars(text(_LOST), {"stream": self.stream, "since": self.since}).all()
        if lost:
            raise RegistryError(
                f"the metadata store knows {len(lost)} cuts of {self.stream} that no cut file describes,"
                f" the first at {lost[0]}",
                expected="a cut file for each",
                remedy="bring the objects under cdc-event/ back: nothing was changed",
            )

    def notes(self, table_id: int) -> Iterator[str]:
        """Yields how the rebuilt slices behind the base differ from those that were registered before."""
        of_table = _TABLE.c.table_id == table_id
        with self.database.transaction("ledger.rebuild") as connection:
            behind = connection.execute(select(_TABLE.c.forgotten_through).where(of_table)).scalar_one()
            row = connection.execute(text(_DIFFERENCES), {"table_id": table_id, "behind": behind}).one()
        if row.added:
            yield f"{row.added} slices were not registered"
        if row.gone:
            yield f"{row.gone} slices were registered with another number or content"


class Rebuild(OfStore):
    @contextmanager
    def emptied(self, stream: str, *, since: str = "") -> Iterator[EmptyLedger]:
        """Empties the ledger for the block. Commits when the block ends, and rolls back when it raises.

        Meanwhile nobody registers, applies or publishes anything of the stream. Earlier owners of the stream or of a
        lease get StaleEpoch afterwards: epochs continue above those of any store that was created earlier. Decisions
        about quarantined events, failed claims, tombstone horizons and names of stream partitions stay. Parked tables
        get another try.

        `since`: position of the base of the chain, "" without one. Raises LeaseBusy while a lease is held.
        """
        with self.database.transaction("ledger.rebuild") as connection:
            connection.exec_driver_sql(_ONE_AT_A_TIME)
            connection.exec_driver_sql(_TAKES_LONG)
            lock_stream(connection, stream)
            _refuse_held(connection, stream)
            cuts = connection.scalar(select(func.count()).where(_BOUNDARY.c.stream == stream)) or 0
            _run(connection, (*_REMEMBER, *_EMPTY), stream)
            database = replace(self.database, joined=connection)
            yield EmptyLedger(database=database, stream=stream, cuts_before=cuts, since=since)
            _run(connection, (*_RESTORE, *_RAISE_EPOCHS), stream, since)


def _run(connection: Connection, statements: Sequence[str], stream: str, since: str = "") -> None:
    for statement in statements:
        connection.execute(text(statement), {"stream": stream, "since": since})


def _refuse_held(connection: Connection, stream: str) -> None:
    """Raises LeaseBusy while a lease is held, and locks all leases so that nobody acquires one."""
    of_stream = select(_TABLE.c.table_id).where(_TABLE.c.stream == stream)
    rows = connection.execute(
        select(_LEASE, func.clock_timestamp().label("now"))
        .where(_LEASE.c.table_id.in_(of_stream))
        .order_by(_LEASE.c.table_id)
        .with_for_update()
    ).all()
    for row in rows:
        if row.expires_at > row.now:
            raise LeaseBusy(
                f"the lease of table {row.table_id} is held by {row.owner} until {row.expires_at:%Y-%m-%dT%H:%M:%SZ}",
                expected="nobody at work on the stream's tables",
                remedy="pause the DAGs, let the workers end, then run cdc rebuild again",
            )
