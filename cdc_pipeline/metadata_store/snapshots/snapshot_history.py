"""Snapshots that ended: the one that the lake was published from, and those of the current run."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.models.states import QuarantineState, SnapshotState
from cdc_pipeline.metadata_store.snapshots.records import Snapshot

_SNAPSHOT = models.snapshot
_ENDED = (SnapshotState.PUBLISHED, SnapshotState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHistory:
    database: Database

    def published_snapshot(self, table_id: int) -> str | None:
        """Id of the newest published one: the lake's table was made from it."""
        with self.database.transaction("snapshot.read_published") as connection:
            return connection.scalar(
                select(_SNAPSHOT.c.snapshot_id)
                .where(_SNAPSHOT.c.table_id == table_id, _SNAPSHOT.c.state == SnapshotState.PUBLISHED)
                .order_by(_SNAPSHOT.c.finished_at.desc())
                .limit(1)
            )

    def snapshots(self, table_id: int) -> tuple[Snapshot, ...]:
        """All that the store knows of the table, oldest first."""
        query = select(_SNAPSHOT).where(_SNAPSHOT.c.table_id == table_id).order_by(_SNAPSHOT.c.started_at)
        with self.database.transaction("snapshot.list") as connection:
            return tuple(Snapshot(**row._asdict()) for row in connection.execute(query))

    def ended_since(self, table_ids: Sequence[int], since: datetime) -> tuple[Snapshot, ...]:
        """Published or failed at or after `since` (by the database's clock), the newest of each table."""
        newest = (
            select(_SNAPSHOT)
            .where(_SNAPSHOT.c.table_id.in_(table_ids), _SNAPSHOT.c.state.in_(_ENDED), _SNAPSHOT.c.finished_at >= since)
            .ext(distinct_on(_SNAPSHOT.c.table_id))
            .order_by(_SNAPSHOT.c.table_id, _SNAPSHOT.c.finished_at.desc())
        )
        with self.database.transaction("snapshot.read_ended") as connection:
            return tuple(Snapshot(**row._asdict()) for row in connection.execute(newest))

    def withheld(self, snapshot_id: str) -> int:
        """How many rows of the snapshot wait in quarantine: the lake lacks them."""
        entry = models.quarantine.c
        waiting = (entry.snapshot_id == snapshot_id) & (entry.state == QuarantineState.WAITING)
        with self.database.transaction("snapshot.read_withheld") as connection:
            return connection.scalar(select(func.count()).where(waiting)) or 0

    def now(self) -> datetime:
        """The database's clock."""
        with self.database.transaction("clock.read") as connection:
            moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return moment
