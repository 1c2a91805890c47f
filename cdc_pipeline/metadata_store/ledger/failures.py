"""Failures: how often a table failed in a row, when it is tried again, and which of its slice files are damaged."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.halts import go_on, halt
from cdc_pipeline.metadata_store.models import damaged_slice, failing_table
from cdc_pipeline.metadata_store.models.states import TableState
from cdc_pipeline.settings.retry_policy import Pause, RetryPolicy, next_pause

_TABLE = models.source_table


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingTable:
    """`failures` in a row since `failing_since`; `pauses` until `next_try_at` by the database's clock."""

    table_id: int
    failures: int
    failing_since: datetime
    failed_at: datetime
    next_try_at: datetime
    outage: bool
    error: str
    pauses: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A registered slice whose file is not what was registered."""

    number: int
    found: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Every change needs the table's lease and raises StaleEpoch, without effect, when a newer owner has it."""

    database: Database

    def failing(self, table_id: int) -> FailingTable | None:
        """None: the last try succeeded."""
        pauses = (failing_table.c.next_try_at > func.clock_timestamp()).label("pauses")
        with self.database.transaction("failure.read") as connection:
            row = connection.execute(select(failing_table, pauses).where(_of(table_id))).one_or_none()
        return None if row is None else FailingTable(**row._asdict())

    def record(self, lease: Lease, error: str, *, retry_policy: RetryPolicy, is_outage: bool) -> Pause:
        """The table pauses from now on, or is parked. The time of its retry_policy begins again behind an outage."""
        with self.database.transaction("failure.record") as connection:
            hold_lease(connection, lease)
            now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
            known = connection.execute(select(failing_table).where(_of(lease.table_id))).one_or_none()
            failures, since = _in_a_row(known, now, is_outage=is_outage)
            pause = next_pause(
                retry_policy,
                failures=failures,
                failing_for=now - since,
                is_outage=is_outage,
                is_parked=_is_parked(connection, lease.table_id),
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
                .values(table_id=lease.table_id, **values)
                .on_conflict_do_update(index_elements=["table_id"], set_=values)
            )
            halt(connection, _TABLE.c.table_id == lease.table_id)
            if pause.parks:
                connection.execute(
                    update(_TABLE)
                    .where(
                        _TABLE.c.table_id == lease.table_id, _TABLE.c.state.in_((TableState.LIVE, TableState.PARKED))
                    )
                    .values(state=TableState.PARKED, parked_reason=error)
                )
        return pause

    def clear(self, lease: Lease) -> None:
        """A try succeeded: nothing pauses any more, and a parked table is live again."""
        with self.database.transaction("failure.clear") as connection:
            hold_lease(connection, lease)
            forget_failures(connection, lease.table_id)

    def record_damage(self, lease: Lease, damages: Sequence[Damage]) -> None:
        """Known by name from now on, until the lake holds the slice."""
        with self.database.transaction("slice.mark_damaged") as connection:
            hold_lease(connection, lease)
            for damage in damages:
                seen = {"found": damage.found, "expected": damage.expected, "last_seen_at": func.clock_timestamp()}
                connection.execute(
                    insert(damaged_slice)
                    .values(table_id=lease.table_id, **asdict(damage) | seen, first_seen_at=func.clock_timestamp())
                    .on_conflict_do_update(index_elements=["table_id", "number"], set_=seen)
                )


def forget_failures(connection: Connection, table_id: int) -> None:
    """A stale table stays where it stands: only a new snapshot mends it."""
    connection.execute(delete(failing_table).where(_of(table_id)))
    go_on(connection, (_TABLE.c.table_id == table_id) & (_TABLE.c.state != TableState.STALE))
    connection.execute(
        update(_TABLE)
        .where(_TABLE.c.table_id == table_id, _TABLE.c.state == TableState.PARKED)
        .values(state=TableState.LIVE, parked_reason=None)
    )


def _of(table_id: int) -> ColumnElement[bool]:
    return failing_table.c.table_id == table_id


def _in_a_row(known: Row[Any] | None, now: datetime, *, is_outage: bool) -> tuple[int, datetime]:
    if known is None or (known.outage and not is_outage):
        return 1, now
    return known.failures + 1, known.failing_since


def _is_parked(connection: Connection, table_id: int) -> bool:
    query = select(_TABLE.c.state == TableState.PARKED).where(_TABLE.c.table_id == table_id)
    return bool(connection.scalar(query))
