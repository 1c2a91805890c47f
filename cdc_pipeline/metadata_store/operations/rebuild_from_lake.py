"""What a lake tells of one table -> its snapshots, claims and the states of its slices, inside a rebuild."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.ledger.halts import halt
from cdc_pipeline.metadata_store.ledger.known_claims import KnownClaim, apply_known_claim
from cdc_pipeline.metadata_store.ledger.quarantine import SNAPSHOT_PARTITION, forget_snapshot, supersede
from cdc_pipeline.metadata_store.ledger.records import Claim
from cdc_pipeline.metadata_store.models.states import (
    FINISHED_SNAPSHOTS,
    ClaimState,
    SliceState,
    SnapshotState,
    TableState,
)
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.snapshots.snapshots import begin_live

_SLICE, _CLAIM, _SNAPSHOT, _TABLE = models.slice_table, models.claim, models.snapshot, models.source_table
_ENTRY = models.quarantine
NUMBER_ON = """
    SELECT setval(numbers.name, greatest(max(quarantine_id), nextval(numbers.name)))
    FROM cdc.quarantine, pg_get_serial_sequence('cdc.quarantine', 'quarantine_id') AS numbers (name) GROUP BY name
    """
_STANDING = (ClaimState.CLAIMED, ClaimState.APPLIED)
_ERROR = "the metadata store was rebuilt, and the lake does not hold it"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSnapshot:
    """A snapshot that the lake was published from; `lake_version` None where the log does not tell it any more."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildFromLake:
    """The slices of the table are registered again, and none of them is applied. Calls come in the lake's order."""

    database: Database

    def kept_claims(self, table_id: int, *, last_number: int, known: Sequence[UUID]) -> tuple[KnownClaim, ...]:
        """Applied ones up to `last_number` that the store tells and the log does not; all others are given up."""
        with self.database.transaction("ledger.rebuild") as connection:
            return _kept_claims(connection, table_id, last_number=last_number, known=known)

    def end_snapshots(self, table_id: int, known: Sequence[str], *, newest: str | None) -> int:
        """Those that are under way fail; and so do published ones that the lake was not, or is no more, made from."""
        with self.database.transaction("ledger.rebuild") as connection:
            return _end_snapshots(connection, table_id, known, newest=newest)

    def keep_rows(self, table_id: int, found: KnownSnapshot, rows: Sequence[Mapping[str, Any]]) -> None:
        """What the snapshot kept aside. Before anything is registered: late slices say what was replayed of them."""
        with self.database.transaction("ledger.rebuild") as connection:
            _keep_rows(connection, table_id, found, rows)

    def publish(self, table_id: int, found: KnownSnapshot) -> None:
        """The table is live, from this snapshot on."""
        with self.database.transaction("ledger.rebuild") as connection:
            _publish(connection, table_id, found)

    def apply(self, table_id: int, found: KnownClaim) -> None:
        """A claim that the store knows keeps its figures. `owner`: who found it."""
        with self.database.transaction("ledger.rebuild") as connection:
            apply_known_claim(connection, table_id, found)

    def mark_stale(self, table_id: int, reason: str) -> None:
        """Only a new snapshot mends it."""
        with self.database.transaction("ledger.rebuild") as connection:
            _mark_stale(connection, table_id, reason)

    def apply_through(self, table_id: int, fence_number: int) -> int:
        """What the fence says and the log does not tell any more is applied too; so many of these have rows."""
        with self.database.transaction("ledger.rebuild") as connection:
            return _apply_through(connection, table_id, fence_number)


def _kept_claims(
    connection: Connection, table_id: int, *, last_number: int, known: Sequence[UUID]
) -> tuple[KnownClaim, ...]:
    of_table = (_CLAIM.c.table_id == table_id) & _CLAIM.c.claim_id.not_in(known)
    is_kept = of_table & (_CLAIM.c.state == ClaimState.APPLIED) & (_CLAIM.c.last_number <= last_number)
    rows = connection.execute(select(_CLAIM).where(is_kept).order_by(_CLAIM.c.last_number)).all()
    claims = [Claim(**row._asdict()) for row in rows]
    kept = [claim.claim_id for claim in claims]
    connection.execute(
        update(_CLAIM)
        .where(of_table, _CLAIM.c.state.in_(_STANDING), _CLAIM.c.claim_id.not_in(kept))
        .values(
            state=ClaimState.FAILED,
            error=_ERROR,
            finished_at=func.coalesce(_CLAIM.c.finished_at, func.clock_timestamp()),
        )
    )
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


def _end_snapshots(connection: Connection, table_id: int, known: Sequence[str], *, newest: str | None) -> int:
    published = (_SNAPSHOT.c.state == SnapshotState.PUBLISHED) & _SNAPSHOT.c.snapshot_id.not_in(known)
    since = select(_SNAPSHOT.c.finished_at).where(_SNAPSHOT.c.snapshot_id == (newest or "")).scalar_subquery()
    lost = published & (or_(since.is_(None), _SNAPSHOT.c.finished_at > since))
    running = _SNAPSHOT.c.state.not_in(FINISHED_SNAPSHOTS) & _SNAPSHOT.c.snapshot_id.not_in(known)
    rows = connection.execute(
        update(_SNAPSHOT)
        .where(_SNAPSHOT.c.table_id == table_id, or_(lost, running))
        .values(state=SnapshotState.FAILED, error=_ERROR, finished_at=func.clock_timestamp())
        .returning(_SNAPSHOT.c.snapshot_id)
    ).all()
    for row in rows:
        forget_snapshot(connection, row.snapshot_id)
    return len(rows)


def _keep_rows(connection: Connection, table_id: int, found: KnownSnapshot, rows: Sequence[Mapping[str, Any]]) -> None:
    _keep_again(connection, _published(connection, table_id, found), rows)


def _publish(connection: Connection, table_id: int, found: KnownSnapshot) -> None:
    snapshot = _published(connection, table_id, found)
    supersede(connection, snapshot)
    begin_live(connection, snapshot, found.fence_number)


def _published(connection: Connection, table_id: int, found: KnownSnapshot) -> Snapshot:
    marked = {"state": SnapshotState.PUBLISHED, "error": None, "fence_number": found.fence_number}
    row = connection.execute(
        insert(_SNAPSHOT)
        .values(**asdict(found), table_id=table_id, state=SnapshotState.PUBLISHED)
        .on_conflict_do_update(
            index_elements=["snapshot_id"],
            set_={
                **marked,
                "lake_version": func.coalesce(_SNAPSHOT.c.lake_version, found.lake_version),
                "rows": found.rows,
                "files": found.files,
                "bytes": found.bytes,
                "finished_at": func.coalesce(_SNAPSHOT.c.finished_at, found.finished_at),
            },
        )
        .returning(_SNAPSHOT)
    ).one()
    return Snapshot(**row._asdict())


def _mark_stale(connection: Connection, table_id: int, reason: str) -> None:
    halt(connection, _TABLE.c.table_id == table_id)
    values = {"state": TableState.STALE, "parked_reason": reason}
    connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(**values))


def _apply_through(connection: Connection, table_id: int, fence_number: int) -> int:
    waiting = (_SLICE.c.state == SliceState.REGISTERED) & (_SLICE.c.number <= fence_number)
    rows = connection.execute(
        update(_SLICE)
        .where(_SLICE.c.table_id == table_id, waiting)
        .values(state=SliceState.APPLIED, applied_at=func.clock_timestamp())
        .returning(_SLICE.c.rows)
    ).all()
    return sum(bool(row.rows) for row in rows)


def _keep_again(connection: Connection, snapshot: Snapshot, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows that a published snapshot kept aside, under the numbers that they had, where those are free."""
    of_snapshot = {
        "table_id": snapshot.table_id,
        "stream_partition": SNAPSHOT_PARTITION,
        "version": snapshot.cutoff_version,
        "start_offset": snapshot.cutoff_offset,
        "end_offset": snapshot.cutoff_offset,
        "snapshot_id": snapshot.snapshot_id,
    }
    if not rows:
        return
    numbered = [of_snapshot | dict(row) for row in rows]
    connection.execute(insert(_ENTRY).on_conflict_do_nothing(), numbered)
    connection.execute(text(NUMBER_ON))
    others = [{name: value for name, value in row.items() if name != "quarantine_id"} for row in numbered]
    connection.execute(insert(_ENTRY).on_conflict_do_nothing(), others)
