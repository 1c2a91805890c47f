"""Snapshots of a table: from the cutoff to the transaction that makes the table live."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.errors import SnapshotError, TableStale
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_record
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.failures import clear_failures
from cdc_pipeline.metadata_store.ledger.quarantine_decisions import drop_events_of_snapshot
from cdc_pipeline.metadata_store.ledger.tables import end_halt, read_table
from cdc_pipeline.metadata_store.snapshots.quarantined_rows import drop_events_before
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.states import (
    FINISHED_SNAPSHOTS,
    ClaimState,
    SliceState,
    SnapshotState,
    TableState,
)

_SNAPSHOT, _TABLE, _SLICE, _CLAIM = models.snapshot, models.source_table, models.slice_table, models.claim
_BOUNDARY = models.boundary
_AT_LEAST = timedelta(microseconds=1)
_ORDER = (SnapshotState.EXPORTING, SnapshotState.STAGING, SnapshotState.COMPACTING, SnapshotState.PUBLISHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSnapshot:
    """A snapshot to begin: its rows equal the source at `cutoff_offset`, and have `cutoff_version` as their version."""

    snapshot_id: str
    table_id: int
    cutoff_offset: str
    cutoff_version: str
    cutoff_time: datetime
    schema_id: str
    exported_snapshot: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPublication:
    """The lake's commit that published the snapshot. `fence_number`: the last slice that the commit covers."""

    fence_number: int
    lake_version: int
    rows: int
    files: int
    bytes: int


class Snapshots(OfStore):
    def create_snapshot(self, new: NewSnapshot, *, refuse_stale: bool = False) -> Snapshot:
        """Idempotent by id. Raises SnapshotError when another snapshot of the table is active.

        A registered table becomes snapshotting; a live one stays live until the publication. `refuse_stale`: raises
        TableStale for a stale table, because the snapshot does not bring the rows that it lacks.
        """
        with self.database.transaction("snapshot.create") as connection:
            if refuse_stale:
                _check_not_stale(connection, new.table_id)
            connection.execute(insert(_SNAPSHOT).values(**asdict(new)).on_conflict_do_nothing())
            row = connection.execute(select(_SNAPSHOT).where(_SNAPSHOT.c.snapshot_id == new.snapshot_id)).one_or_none()
            if row is None:
                raise _already_active(connection, new.table_id)
            connection.execute(
                update(_TABLE)
                .where(_TABLE.c.table_id == new.table_id, _TABLE.c.state == TableState.REGISTERED)
                .values(state=TableState.SNAPSHOTTING)
            )
        return as_record(Snapshot, row)

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """Raises SnapshotError when there is none."""
        with self.database.transaction("snapshot.read") as connection:
            return _read(connection, snapshot_id)

    def active_snapshot(self, table_id: int) -> Snapshot | None:
        """The snapshot that is neither published nor failed nor abandoned; None if there is none."""
        return next(iter(self.active_snapshots([table_id])), None)

    def active_snapshots(self, table_ids: Sequence[int]) -> tuple[Snapshot, ...]:
        """The active snapshots of these tables, at most one per table, read at once."""
        with self.database.transaction("snapshot.read_active") as connection:
            return _active(connection, table_ids)

    def set_snapshot_state(
        self, snapshot_id: str, state: SnapshotState, *, error: str | None = None, seen: SnapshotState | None = None
    ) -> Snapshot:
        """Moves a snapshot to a later state; does nothing if it is in this state. `error`: why it failed.

        `seen`: the state in which the caller found it; if it is in another one by now, somebody else has moved it, and
        it is returned as it is. A first snapshot that failed or is abandoned sets its table back to registered.
        PUBLISHED is set only by `publish_snapshot`. Raises SnapshotError for a state that cannot follow.
        """
        before = (*_ORDER[: _ORDER.index(state) + 1],) if state in _ORDER else _ORDER
        values = {"finished_at": func.clock_timestamp(), "error": error} if state in FINISHED_SNAPSHOTS else {}
        with self.database.transaction("snapshot.set_state") as connection:
            known = _read(connection, snapshot_id, lock=True)
            if known.state is state or seen not in (None, known.state):
                return known
            if known.state not in before or state is SnapshotState.PUBLISHED:
                raise SnapshotError(
                    f"the snapshot {snapshot_id} is {known.state} and cannot become {state}",
                    expected=f"one that is {' or '.join(before)}",
                    remedy="another process ended it: run cdc snapshot again",
                )
            row = connection.execute(
                update(_SNAPSHOT)
                .where(_SNAPSHOT.c.snapshot_id == snapshot_id)
                .values(state=state, **values)
                .returning(_SNAPSHOT)
            ).one()
            if state in FINISHED_SNAPSHOTS:
                drop_events_of_snapshot(connection, snapshot_id)
                connection.execute(
                    update(_TABLE)
                    .where(_TABLE.c.table_id == known.table_id, _TABLE.c.state == TableState.SNAPSHOTTING)
                    .values(state=TableState.REGISTERED)
                )
        return as_record(Snapshot, row)

    def fence_at(self, table_id: int, cutoff_offset: str) -> int:
        """The fence of a snapshot: neither this slice nor any before it reaches behind `cutoff_offset`."""
        behind = select(func.min(_SLICE.c.number)).where(
            _SLICE.c.table_id == table_id, _SLICE.c.end_offset > cutoff_offset
        )
        following = select(_TABLE.c.next_slice_number).where(_TABLE.c.table_id == table_id)
        with self.database.transaction("snapshot.read_fence") as connection:
            first_behind = connection.scalar(behind) or connection.execute(following).scalar_one()
        return int(first_behind) - 1

    def publish_snapshot(self, lease: Lease, snapshot_id: str, publication: SnapshotPublication) -> Snapshot:
        """Marks the snapshot as published and the table as live. Call it only after the lake's commit. Idempotent.

        Slices at or below the fence are superseded. Later slices wait, also those that the replaced table contained. An
        open claim is given up. Raises StaleEpoch when somebody else has the lease, SnapshotError when the fence covers
        a slice that reaches behind the cutoff.
        """
        with self.database.transaction("snapshot.publish") as connection:
            hold_lease(connection, lease)
            known = _read(connection, snapshot_id, lock=True)
            if known.state is SnapshotState.PUBLISHED:
                return known
            if known.state is not SnapshotState.PUBLISHING or known.table_id != lease.table_id:
                raise SnapshotError(f"the snapshot {snapshot_id} is {known.state}", expected=SnapshotState.PUBLISHING)
            _check_fence(connection, known, publication.fence_number)
            finished_at = behind_published(known.table_id, func.clock_timestamp())
            row = connection.execute(
                update(_SNAPSHOT)
                .where(_SNAPSHOT.c.snapshot_id == snapshot_id)
                .values(state=SnapshotState.PUBLISHED, finished_at=finished_at, **asdict(publication))
                .returning(_SNAPSHOT)
            ).one()
            begin_live(connection, known, publication.fence_number)
        return as_record(Snapshot, row)


def behind_published(table_id: int, time: Any, *, below_version: int | None = None) -> ColumnElement[datetime]:
    """Returns `time`, or a moment behind the newest publication of the table if a clock was set back since then.

    So the newest published snapshot is the one that ended last. Versions of the lake would not show it: they begin
    again when a lake that was deleted is filled again. `below_version`: only publications with a lower version count.
    """
    published = _SNAPSHOT.alias("published")
    last = select(func.max(published.c.finished_at) + _AT_LEAST).where(
        published.c.table_id == table_id, published.c.state == SnapshotState.PUBLISHED
    )
    if below_version is not None:
        last = last.where(published.c.lake_version < below_version)
    return func.greatest(time, last.scalar_subquery())


def begin_live(connection: Connection, snapshot: Snapshot, fence_number: int) -> None:
    """Makes the table live with the snapshot's content, so that exactly the slices behind the fence wait.

    The lake position stays halted when the table was halted behind the cutoff: a rebuild calls this also for snapshots
    that are older than what halted the table. A repair that was killed ends, because what it would still register is
    older than the cutoff; unless a boundary behind the cutoff was requested, which may be that of the repair. Nothing
    shows who asked for it, so one that a change of columns asked for also leaves the mark.
    """
    drop_events_before(connection, snapshot)
    of_table = _SLICE.c.table_id == snapshot.table_id
    clear_failures(connection, snapshot.table_id)
    is_behind = func.coalesce(_TABLE.c.halted_at, "") <= snapshot.cutoff_offset
    end_halt(connection, (_TABLE.c.table_id == snapshot.table_id) & is_behind)
    is_requested = (_BOUNDARY.c.stream == _TABLE.c.stream) & _BOUNDARY.c.requested
    may_repair = exists().where(is_requested, _BOUNDARY.c.position > snapshot.cutoff_offset)
    connection.execute(
        update(_TABLE)
        .where(_TABLE.c.table_id == snapshot.table_id)
        .values(
            state=TableState.LIVE,
            state_reason=None,
            snapshot_wanted=False,
            under_repair=_TABLE.c.under_repair & may_repair,
            cutoff_offset=snapshot.cutoff_offset,
            cutoff_version=snapshot.cutoff_version,
            cutoff_time=snapshot.cutoff_time,
        )
    )
    _end_claims(connection, snapshot, fence_number)
    connection.execute(
        update(_SLICE)
        .where(of_table, _SLICE.c.number <= fence_number, _SLICE.c.state == SliceState.REGISTERED)
        .values(state=SliceState.SUPERSEDED)
    )
    connection.execute(
        update(_SLICE)
        .where(of_table, _SLICE.c.number > fence_number, _SLICE.c.state != SliceState.REGISTERED)
        .values(state=SliceState.REGISTERED, claim_id=None, applied_at=None)
    )


def _end_claims(connection: Connection, snapshot: Snapshot, fence_number: int) -> None:
    """Gives up the open claim. The slices of applied claims behind the fence wait again, also in a lake that was lost.

    Their lake versions are of the replaced table: those of a lake that was deleted name nothing in the new one.
    """
    connection.execute(
        update(_CLAIM)
        .where(
            _CLAIM.c.table_id == snapshot.table_id,
            _CLAIM.c.state == ClaimState.APPLIED,
            _CLAIM.c.last_number > fence_number,
        )
        .values(state=ClaimState.REWOUND)
    )
    connection.execute(
        update(_CLAIM)
        .where(_CLAIM.c.table_id == snapshot.table_id, _CLAIM.c.state == ClaimState.CLAIMED)
        .values(
            state=ClaimState.FAILED,
            finished_at=func.clock_timestamp(),
            error=f"the snapshot {snapshot.snapshot_id} replaced the lake's table",
        )
    )


def _check_fence(connection: Connection, snapshot: Snapshot, fence_number: int) -> None:
    """Refuses a fence that covers a slice which reaches behind the cutoff: that slice would never be applied."""
    lost = connection.scalar(
        select(func.max(_SLICE.c.number)).where(
            _SLICE.c.table_id == snapshot.table_id,
            _SLICE.c.number <= fence_number,
            _SLICE.c.end_offset > snapshot.cutoff_offset,
        )
    )
    if lost is not None:
        raise SnapshotError(
            f"the fence {fence_number} of snapshot {snapshot.snapshot_id} covers slice {lost}, which reaches behind"
            f" the cutoff {snapshot.cutoff_offset}",
            expected=f"a fence before slice {lost}",
            remedy="run cdc snapshot again: it resumes this snapshot, or starts over",
        )


def _active(connection: Connection, table_ids: Sequence[int]) -> tuple[Snapshot, ...]:
    rows = connection.execute(
        select(_SNAPSHOT).where(_SNAPSHOT.c.table_id.in_(table_ids), _SNAPSHOT.c.state.not_in(FINISHED_SNAPSHOTS))
    )
    return tuple(as_record(Snapshot, row) for row in rows)


def _read(connection: Connection, snapshot_id: str, *, lock: bool = False) -> Snapshot:
    query = select(_SNAPSHOT).where(_SNAPSHOT.c.snapshot_id == snapshot_id)
    if lock:  # the table first, as whoever marks it as stale does: another order could cause a deadlock
        of_snapshot = select(_SNAPSHOT.c.table_id).where(_SNAPSHOT.c.snapshot_id == snapshot_id).scalar_subquery()
        of_table = select(_TABLE.c.table_id).where(_TABLE.c.table_id == of_snapshot)
        connection.execute(of_table.with_for_update(key_share=True))
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise SnapshotError(f"there is no snapshot {snapshot_id}", remedy="create it first")
    return as_record(Snapshot, row)


def _check_not_stale(connection: Connection, table_id: int) -> None:
    """Locks the table until the transaction ends. Whoever marks it as stale then sees the snapshot and abandons it."""
    row = read_table(connection, _TABLE.c.table_id == table_id, f"number {table_id}", lock=True)
    if row.state is TableState.STALE:
        raise TableStale(row.state_reason or "", table=row.name, remedy="nothing is applied until then")


def _already_active(connection: Connection, table_id: int) -> SnapshotError:
    active = next(iter(_active(connection, [table_id])), None)
    return SnapshotError(
        f"the snapshot {active.snapshot_id if active else 'of somebody else'} of table {table_id} is under way",
        expected="no active snapshot",
        remedy="end the other orchestrator, then run cdc snapshot again: it resumes this snapshot or starts over",
    )
