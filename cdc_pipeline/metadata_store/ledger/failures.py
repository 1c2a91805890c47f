"""Failing tables: the number of failures in a row, the time of the next try, and damaged slice files."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.errors import SliceDamaged
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_optional_record
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.tables import end_halt, halt
from cdc_pipeline.metadata_store.models import damaged_slice, failing_table
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.settings.retry_policy import Pause, RetryPolicy, next_pause

_TABLE = models.source_table


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingTable:
    """A table that failed `failures` times in a row since `failing_since`.

    `pauses`: `next_try_at` is in the future by the database's clock. `outage`: the last failure was one of a server,
    not of the table.
    """

    table_id: int
    failures: int
    failing_since: datetime
    failed_at: datetime
    next_try_at: datetime
    outage: bool
    error: str
    pauses: bool


class Failures(OfStore):
    """Every change needs the table's lease. It raises StaleEpoch, without effect, when another owner has the lease."""

    def failing(self, table_id: int) -> FailingTable | None:
        """Returns the table's failures; None when the last try succeeded."""
        pauses = (failing_table.c.next_try_at > func.clock_timestamp()).label("pauses")
        with self.database.transaction("failure.read") as connection:
            row = connection.execute(select(failing_table, pauses).where(_of(table_id))).one_or_none()
        return as_optional_record(FailingTable, row)

    def record(self, lease: Lease, error: str, *, retry_policy: RetryPolicy, is_outage: bool) -> Pause:
        """Records a failure; the table pauses or is parked from now on. Returns the pause.

        The first failure after an outage is counted as the first in a row.
        """
        with self.database.transaction("failure.record") as connection:
            hold_lease(connection, lease)
            return record_failure(connection, lease.table_id, error, retry_policy=retry_policy, is_outage=is_outage)

    def clear(self, lease: Lease) -> None:
        """Records that a try succeeded: the table no longer pauses, and a parked table is live again."""
        with self.database.transaction("failure.clear") as connection:
            hold_lease(connection, lease)
            clear_failures(connection, lease.table_id)

    def record_damage(self, lease: Lease, damages: Mapping[int, SliceDamaged]) -> None:
        """Records damaged slice files by slice number; inspection lists each until the lake has its slice."""
        with self.database.transaction("slice.mark_damaged") as connection:
            hold_lease(connection, lease)
            for number, damage in damages.items():
                seen = {"found": damage.found, "expected": damage.expected, "last_seen_at": func.clock_timestamp()}
                connection.execute(
                    insert(damaged_slice)
                    .values(table_id=lease.table_id, number=number, **seen, first_seen_at=func.clock_timestamp())
                    .on_conflict_do_update(index_elements=["table_id", "number"], set_=seen)
                )


def record_failure(
    connection: Connection, table_id: int, error: str, *, retry_policy: RetryPolicy, is_outage: bool
) -> Pause:
    """Like `Failures.record`, in the caller's transaction, and for a caller that saw the owner of the lease die."""
    is_parked = _is_parked(connection, table_id)
    now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    known = connection.execute(select(failing_table).where(_of(table_id))).one_or_none()
    failures, since = _in_a_row(known, now, is_outage=is_outage)
    pause = next_pause(
        retry_policy,
        failures=failures,
        failing_for=now - since,
        is_outage=is_outage,
        is_parked=is_parked,
    )
    values = {
        "failures": failures,
        "failing_since": since,
        "failed_at": now,
        "next_try_at": now + pause.length,
        "outage": is_outage,
        "error": error,
    }
    connection.execute(
        insert(failing_table)
        .values(table_id=table_id, **values)
        .on_conflict_do_update(index_elements=["table_id"], set_=values)
    )
    halt(connection, _TABLE.c.table_id == table_id)
    if pause.parks:
        connection.execute(
            update(_TABLE)
            .where(_TABLE.c.table_id == table_id, _TABLE.c.state.in_((TableState.LIVE, TableState.PARKED)))
            .values(state=TableState.PARKED, state_reason=error)
        )
    return pause


def clear_failures(connection: Connection, table_id: int) -> None:
    """Ends the table's pause. A stale table stays stale and halted: only a new snapshot helps."""
    end_halt(connection, (_TABLE.c.table_id == table_id) & (_TABLE.c.state != TableState.STALE))
    connection.execute(
        update(_TABLE)
        .where(_TABLE.c.table_id == table_id, _TABLE.c.state == TableState.PARKED)
        .values(state=TableState.LIVE, state_reason=None)
    )
    connection.execute(delete(failing_table).where(_of(table_id)))


def _of(table_id: int) -> ColumnElement[bool]:
    return failing_table.c.table_id == table_id


def _in_a_row(known: Row[Any] | None, now: datetime, *, is_outage: bool) -> tuple[int, datetime]:
    if known is None or (known.outage and not is_outage):
        return 1, now
    return known.failures + 1, known.failing_since


def _is_parked(connection: Connection, table_id: int) -> bool:
    """Locks the table, before its failures: as every transaction that changes both."""
    query = select(_TABLE.c.state == TableState.PARKED).where(_TABLE.c.table_id == table_id)
    return bool(connection.scalar(query.with_for_update(key_share=True)))
