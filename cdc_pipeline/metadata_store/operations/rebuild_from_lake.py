"""Rebuilds snapshots, claims and slice states of a table from the log of its Delta table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_record
from cdc_pipeline.metadata_store.ledger.known_claims import apply_known_claim
from cdc_pipeline.metadata_store.ledger.quarantine_decisions import drop_events_of_snapshot
from cdc_pipeline.metadata_store.ledger.records import Claim
from cdc_pipeline.metadata_store.operations.restored_events import restore_events
from cdc_pipeline.metadata_store.snapshots.quarantined_rows import columns_of
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.snapshots.snapshots import begin_live, behind_published
from cdc_pipeline.metadata_store.states import (
    FINISHED_SNAPSHOTS,
    ClaimState,
    SliceState,
    SnapshotState,
    TableState,
)
from cdc_pipeline.record import KnownClaim

_SLICE, _CLAIM, _SNAPSHOT, _TABLE = models.slice_table, models.claim, models.snapshot, models.source_table
_ERROR = "the metadata store was rebuilt, and the lake does not have it"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSnapshot:
    """A snapshot that the lake was published from. `lake_version` None: the log no longer has its commit."""

    snapshot_id: str
    cutoff_offset: str
    cutoff_version: str
    cutoff_time: datetime
    schema_id: str
    fence_number: int
    lake_version: int | None
    rows: int
    files: int
    bytes: int
    finished_at: datetime


class RebuildFromLake(OfStore):
    """Part of a rebuild: the table's slices are registered again, and none of them is applied yet.

    `publish` and `apply` are called in the order of the log.
    """

    def claims_missing_in_log(
        self, table_id: int, *, last_number: int, in_log: Sequence[UUID]
    ) -> tuple[KnownClaim, ...]:
        """Claims at or below `last_number` that the store has as applied but the Delta log does not.

        All other claims that are not in the log are given up. `in_log`: the claims that the log records.
        """
        with self.database.transaction("ledger.rebuild") as connection:
            claims = _applied_claims(connection, table_id, last_number=last_number, in_log=in_log)
            _give_up_others(connection, table_id, [*in_log, *(claim.claim_id for claim in claims)])
        return claims

    def end_snapshots(self, table_id: int, in_log: Sequence[str], *, newest: str | None) -> int:
        """Marks snapshots as failed that are active, or published but not in the log. Returns their number.

        Published ones that are older than `newest`, the newest snapshot of the log, stay: the log may have been
        cleaned. `in_log`: the snapshots that the log records.
        """
        with self.database.transaction("ledger.rebuild") as connection:
            return _end_snapshots(connection, table_id, in_log, newest=newest)

    def restore_quarantined_rows(self, table_id: int, found: KnownSnapshot, rows: Sequence[Mapping[str, Any]]) -> None:
        """Quarantines the rows of a snapshot again. Call it before slices are registered: late slices replay them."""
        with self.database.transaction("ledger.rebuild") as connection:
            of_snapshot = columns_of(_published(connection, table_id, found))
            restore_events(connection, [of_snapshot | dict(row) for row in rows])

    def publish(self, table_id: int, found: KnownSnapshot) -> None:
        """Registers the snapshot as published and makes the table live with its content."""
        with self.database.transaction("ledger.rebuild") as connection:
            begin_live(connection, _published(connection, table_id, found), found.fence_number)

    def apply(self, table_id: int, found: KnownClaim) -> None:
        """Marks a claim of the log and its slices as applied. A claim that the store has keeps its row counts."""
        with self.database.transaction("ledger.rebuild") as connection:
            apply_known_claim(connection, table_id, found)

    def mark_stale(self, table_id: int, reason: str, *, halted_at: str | None) -> None:
        """Marks the table as stale; only a new snapshot helps.

        `halted_at`: its lake position is frozen there, or at the cutoff if that is later.
        """
        with self.database.transaction("ledger.rebuild") as connection:
            position = func.greatest(halted_at, _TABLE.c.cutoff_offset)
            values = {"state": TableState.STALE, "state_reason": reason, "halted_at": position}
            connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(**values))

    def apply_through(self, table_id: int, fence_number: int) -> int:
        """Marks slices at or below the fence as applied that no claim of the log names any more.

        Returns the number of non-empty slices among them.
        """
        waiting = (_SLICE.c.state == SliceState.REGISTERED) & (_SLICE.c.number <= fence_number)
        with self.database.transaction("ledger.rebuild") as connection:
            rows = connection.execute(
                update(_SLICE)
                .where(_SLICE.c.table_id == table_id, waiting)
                .values(state=SliceState.APPLIED, applied_at=func.clock_timestamp())
                .returning(_SLICE.c.rows)
            ).all()
        return sum(bool(row.rows) for row in rows)


def _applied_claims(
    connection: Connection, table_id: int, *, last_number: int, in_log: Sequence[UUID]
) -> tuple[KnownClaim, ...]:
    query = select(_CLAIM).where(
        _CLAIM.c.table_id == table_id,
        _CLAIM.c.claim_id.not_in(in_log),
        _CLAIM.c.state == ClaimState.APPLIED,
        _CLAIM.c.last_number <= last_number,
    )
    claims = [as_record(Claim, row) for row in connection.execute(query.order_by(_CLAIM.c.last_number))]
    return tuple(
        KnownClaim(
            claim_id=claim.claim_id,
            first_number=claim.first_number,
            last_number=claim.last_number,
            lake_version=claim.lake_version or 0,
            committed_at=claim.finished_at or claim.started_at,
        )
        for claim in claims
    )


def _give_up_others(connection: Connection, table_id: int, claim_ids: Sequence[UUID]) -> None:
    connection.execute(
        update(_CLAIM)
        .where(
            _CLAIM.c.table_id == table_id,
            _CLAIM.c.state.in_((ClaimState.CLAIMED, ClaimState.APPLIED)),
            _CLAIM.c.claim_id.not_in(claim_ids),
        )
        .values(
            state=ClaimState.FAILED,
            error=_ERROR,
            finished_at=func.coalesce(_CLAIM.c.finished_at, func.clock_timestamp()),
        )
    )


def _end_snapshots(connection: Connection, table_id: int, in_log: Sequence[str], *, newest: str | None) -> int:
    not_in_log = _SNAPSHOT.c.snapshot_id.not_in(in_log)
    since = select(_SNAPSHOT.c.finished_at).where(_SNAPSHOT.c.snapshot_id == (newest or "")).scalar_subquery()
    is_newer = or_(since.is_(None), _SNAPSHOT.c.finished_at > since)
    is_lost = (_SNAPSHOT.c.state == SnapshotState.PUBLISHED) & is_newer
    is_active = _SNAPSHOT.c.state.not_in(FINISHED_SNAPSHOTS)
    rows = connection.execute(
        update(_SNAPSHOT)
        .where(_SNAPSHOT.c.table_id == table_id, not_in_log, or_(is_lost, is_active))
        .values(state=SnapshotState.FAILED, error=_ERROR, finished_at=func.clock_timestamp())
        .returning(_SNAPSHOT.c.snapshot_id)
    ).all()
    for row in rows:
        drop_events_of_snapshot(connection, row.snapshot_id)
    return len(rows)


def _published(connection: Connection, table_id: int, found: KnownSnapshot) -> Snapshot:
    """Registers the snapshot as published; one that the store has keeps its lake version and the time of its end."""
    stored_at = select(_SNAPSHOT.c.finished_at).where(_SNAPSHOT.c.snapshot_id == found.snapshot_id).scalar_subquery()
    known_at = func.coalesce(stored_at, found.finished_at)
    finished_at = connection.scalar(select(behind_published(table_id, known_at, below_version=found.lake_version or 0)))
    values = asdict(found) | {"table_id": table_id, "state": SnapshotState.PUBLISHED, "finished_at": finished_at}
    new = insert(_SNAPSHOT).values(values)
    known = {
        "state": SnapshotState.PUBLISHED,
        "error": None,
        "fence_number": found.fence_number,
        "lake_version": func.coalesce(_SNAPSHOT.c.lake_version, found.lake_version),
        "rows": found.rows,
        "files": found.files,
        "bytes": found.bytes,
        "finished_at": finished_at,
    }
    stored = new.on_conflict_do_update(index_elements=["snapshot_id"], set_=known).returning(_SNAPSHOT)
    return as_record(Snapshot, connection.execute(stored).one())
