"""Snapshots that have ended: published, failed or abandoned."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_record
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.states import QuarantineState, SnapshotState

_SNAPSHOT = models.snapshot
_ENDED = (SnapshotState.PUBLISHED, SnapshotState.FAILED)


class SnapshotHistory(OfStore):
    def published_snapshot(self, table_id: int) -> str | None:
        """Id of the table's newest published snapshot; None if it has none."""
        with self.database.transaction("snapshot.read_published") as connection:
            return connection.scalar(
                select(_SNAPSHOT.c.snapshot_id)
                .where(_SNAPSHOT.c.table_id == table_id, _SNAPSHOT.c.state == SnapshotState.PUBLISHED)
                .order_by(_SNAPSHOT.c.finished_at.desc())
                .limit(1)
            )

    def snapshots(self, table_id: int) -> tuple[Snapshot, ...]:
        """All snapshots of the table that the store still has, oldest first."""
        query = select(_SNAPSHOT).where(_SNAPSHOT.c.table_id == table_id).order_by(_SNAPSHOT.c.started_at)
        with self.database.transaction("snapshot.list") as connection:
            return tuple(as_record(Snapshot, row) for row in connection.execute(query))

    def ended_since(self, table_ids: Sequence[int], since: datetime) -> tuple[Snapshot, ...]:
        """The newest snapshot of each table published or failed at or after `since`, by the database's clock."""
        newest = (
            select(_SNAPSHOT)
            .where(_SNAPSHOT.c.table_id.in_(table_ids), _SNAPSHOT.c.state.in_(_ENDED), _SNAPSHOT.c.finished_at >= since)
            .ext(distinct_on(_SNAPSHOT.c.table_id))
            .order_by(_SNAPSHOT.c.table_id, _SNAPSHOT.c.finished_at.desc())
        )
        with self.database.transaction("snapshot.read_ended") as connection:
            return tuple(as_record(Snapshot, row) for row in connection.execute(newest))

    def withheld(self, snapshot_id: str) -> int:
        """The number of the snapshot's rows that wait in quarantine; the lake lacks them."""
        entry = models.quarantine.c
        waiting = (entry.snapshot_id == snapshot_id) & (entry.state == QuarantineState.WAITING)
        with self.database.transaction("snapshot.read_withheld") as connection:
            return connection.scalar(select(func.count()).where(waiting)) or 0

    def now(self) -> datetime:
        """The time by the database's clock."""
        with self.database.transaction("clock.read") as connection:
            moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return moment
