"""A table at the cutoff: its columns are known to its stream, and its rows are still there when all are exported."""

from dataclasses import replace

import psycopg2.extensions

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.metadata_store.rows import Snapshot, SourceTable
from cdc_pipeline.metadata_store.snapshots import NewSnapshot
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.postgres.position import HeldPosition
from cdc_pipeline.sources.postgres.shape import ShapeColumn, SourceShape, read_shapes
from cdc_pipeline.sources.postgres.shape_changes import Retaken, compare_shapes


def create_snapshot(
    store: MetadataStore, row: SourceTable, snapshot_id: str, cutoff: HeldPosition, shape: SourceShape | None = None
) -> Snapshot:
    """Under the columns that the table has at the cutoff, or under those of its newest slice."""
    schema_id = row.schema_id
    if shape is not None:
        schema = shape.schema(row.settings["id"])
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


def shape_at(connection: psycopg2.extensions.connection, row: SourceTable) -> SourceShape | None:
    """The table's shape as the connection's snapshot has it, which has to be one that its stream knows.

    None for a table whose shapes the metadata store does not know. Raises SnapshotError when it changed just now.
    """
    known = [SourceShape.from_json(document) for document in row.shape or ()]
    if not known:
        return None
    now = read_shapes(connection, [row.source_oid]).get(row.source_oid)
    for shape in reversed(known):
        if now is not None and _columns(shape) == _columns(now):
            return replace(shape, file_number=now.file_number, leaves=now.leaves, columns=_as_of(shape, now))
    raise SnapshotError(
        f"{row.name} changed its columns right before the cutoff",
        expected="the columns that its stream was opened with",
        remedy="run cdc snapshot again: it finds what changed",
    )


def _columns(shape: SourceShape) -> list[tuple[int, tuple[str, int, int], str | None]]:
    return [(column.number, column.look, column.generated) for column in shape.columns]


def _as_of(shape: SourceShape, now: SourceShape) -> tuple[ShapeColumn, ...]:
    written = {column.number: column.changed_by for column in now.columns}
    return tuple(replace(column, changed_by=written[column.number]) for column in shape.columns)


def refuse_rewritten(connection: psycopg2.extensions.connection, name: TableName, before: SourceShape) -> None:
    """Raises SnapshotError if the table was rewritten since the cutoff: to older snapshots it looks empty then."""
    now = read_shapes(connection, [before.oid]).get(before.oid)
    types = {column.number: column.type for column in before.columns}
    change = None if now is None else compare_shapes(before, now.with_types(types))
    if change is None or isinstance(change, Retaken):
        raise SnapshotError(
            f"{name} changed while it was exported: {'it was dropped' if change is None else change.reason}",
            expected="a table whose rows the cutoff still shows",
            remedy="run cdc snapshot again",
        )
