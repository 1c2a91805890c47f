"""Drops quarantined events whose effect a published snapshot contains, whether event or snapshot came first."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, select

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.ledger.cut import QuarantinedEvent
from cdc_pipeline.metadata_store.ledger.quarantine_decisions import drop_waiting
from cdc_pipeline.metadata_store.states import SnapshotState

_EVENT, _SNAPSHOT, _TABLE = models.quarantine, models.snapshot, models.source_table


def from_before(cutoff_version: str) -> ColumnElement[bool]:
    """Events of the stream from before the cutoff. Those whose version nobody knows are not among them."""
    older = (_EVENT.c.version < cutoff_version) & (_EVENT.c.version != "")
    return _EVENT.c.snapshot_id.is_(None) & older


def drop_superseded(connection: Connection, table_id: int, which: ColumnElement[bool], snapshot_id: str) -> None:
    """Drops those events of the table that wait, because the published snapshot has a later cutoff."""
    drop_waiting(connection, (_EVENT.c.table_id == table_id) & which, f"the snapshot {snapshot_id} has a later cutoff")


def drop_registered_late(connection: Connection, events: Sequence[QuarantinedEvent]) -> None:
    """Drops registered events that are from before the cutoff of their table's published snapshot.

    Call it while their tables are locked. The publication locks a table too, and drops what is registered before it. A
    rebuild registers all cuts before it publishes, so no table has a cutoff yet.
    """
    oldest: dict[int, str] = {}
    for event in events:
        if event.version:
            oldest[event.table_id] = min(event.version, oldest.get(event.table_id, event.version))
    for table_id, version in sorted(oldest.items()):
        # Most events are behind the cutoff: then the events of the table that wait are not read.
        published = connection.execute(
            select(_SNAPSHOT.c.snapshot_id, _SNAPSHOT.c.cutoff_version)
            .join(_TABLE, _TABLE.c.table_id == _SNAPSHOT.c.table_id)
            .where(_SNAPSHOT.c.table_id == table_id, _SNAPSHOT.c.state == SnapshotState.PUBLISHED)
            .where(_SNAPSHOT.c.cutoff_version == _TABLE.c.cutoff_version, _SNAPSHOT.c.cutoff_version > version)
            .order_by(_SNAPSHOT.c.finished_at.desc())
            .limit(1)
        ).one_or_none()
        if published is not None:
            drop_superseded(connection, table_id, from_before(published.cutoff_version), published.snapshot_id)
