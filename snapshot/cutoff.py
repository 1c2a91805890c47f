"""Registers a snapshot of a table as of its cutoff, and abandons it once nobody holds the cutoff any more."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from cdc_pipeline.errors import CdcError, SnapshotError
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.snapshots.snapshots import NewSnapshot
from cdc_pipeline.metadata_store.states import SnapshotState, TableState, TaskKind, TaskState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.known import FoundTable
from cdc_pipeline.types import widest
from snapshot.exports import Export


def create_snapshot(
    store: MetadataStore, row: SourceTable, snapshot_id: str, cutoff: HeldPosition, found: FoundTable | None = None
) -> Snapshot:
    """Registers the snapshot with the columns of `found`, which is the table at the cutoff; without it, with the
    newest registered columns of the table, and those that events have added to it.

    Raises SnapshotError when no columns are known.
    """
    schema_id = row.schema_id
    if found is not None and found.schema is not None:
        schema = found.schema.without(row.excluded_columns)
        schema_id = store.tables.record_schema(row.table_id, schema, first_offset=cutoff.offset)
    elif found is None and schema_id is not None:
        schema_id = _of_all_events(store, row, schema_id, cutoff)
    if schema_id is None:
        raise SnapshotError(f"{row.name} has no schema yet", remedy="run cdc setup-source")
    return store.snapshots.create_snapshot(
        NewSnapshot(
            snapshot_id=snapshot_id,
            table_id=row.table_id,
            cutoff_offset=cutoff.offset,
            cutoff_version=cutoff.version,
            cutoff_time=cutoff.time,
            schema_id=schema_id,
            exported_snapshot=cutoff.exported,
        )
    )


def _of_all_events(store: MetadataStore, row: SourceTable, schema_id: str, cutoff: HeldPosition) -> str:
    """Returns a schema with every column that events have shown. The newest one may be that of an older event.

    A stream partition may be read later than others. Where the source numbers the columns, or pipeline.yml lists them,
    the newest schema stays: a column that it lacks was dropped.
    """
    newest, known = store.tables.schema(row.table_id, schema_id), store.tables.known_columns(row.table_id)
    if row.settings.get("columns") or any(column.number is not None for column in known):
        return schema_id
    schema = replace(newest, columns=widest((*newest.columns, *known))).without(row.excluded_columns)
    return store.tables.record_schema(row.table_id, schema, first_offset=cutoff.offset)


def abandon_exports(store: MetadataStore, tables: Sequence[TableName], run_id: str) -> None:
    """Abandons what the run has not exported once it lets go of the cutoff: slices after it would wait for ever.

    A stale table waits for a snapshot anyway. It keeps this one, and with it the pause before the next one.
    """
    with suppress(CdcError):  # the next snapshot of the table abandons this one
        rows = [row for row in store.tables.tables() if row.name in tables and row.state is not TableState.STALE]
        for active in store.snapshots.active_snapshots([row.table_id for row in rows]):
            if active.state is SnapshotState.EXPORTING and run_of(active.snapshot_id) == run_id:
                abandoned(store, active)


def abandoned(store: MetadataStore, active: Snapshot) -> Snapshot:
    """Abandons a snapshot whose export nobody can complete, unless somebody else has moved it meanwhile."""
    reason = "its orchestrator ended before the export was complete"
    return store.snapshots.set_snapshot_state(
        active.snapshot_id, SnapshotState.ABANDONED, error=reason, seen=active.state
    )


def copies_files(store: MetadataStore, active: Snapshot) -> bool:
    """Whether a worker slot copies exported files for the snapshot now: nothing is held at the source for them."""
    if Export.of(active.exported_snapshot or "") is None:
        return False
    now = store.snapshot_history.now()
    claimed = store.snapshot_tasks.tasks(active.snapshot_id, TaskKind.EXPORT, state=TaskState.CLAIMED)
    return any(task.lease_expires_at is not None and task.lease_expires_at > now for task in claimed)


def run_of(snapshot_id: str) -> str:
    """Returns the id of the run that began the snapshot."""
    return snapshot_id.split("-")[1]
