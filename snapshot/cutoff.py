"""Registers a snapshot of a table as of its cutoff."""

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.snapshots.snapshots import NewSnapshot
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.known import FoundTable


def create_snapshot(
    store: MetadataStore, row: SourceTable, snapshot_id: str, cutoff: HeldPosition, found: FoundTable | None = None
) -> Snapshot:
    """Registers the snapshot with the columns of `found`, which is the table at the cutoff; without it, with the
    newest registered columns of the table.

    Raises SnapshotError when no columns are known.
    """
    schema_id = row.schema_id
    if found is not None and found.schema is not None:
        schema = found.schema.without(row.excluded_columns)
        schema_id = store.tables.record_schema(row.table_id, schema, first_offset=cutoff.offset)
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
