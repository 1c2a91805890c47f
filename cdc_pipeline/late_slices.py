"""Rows that come behind their turn -> the file of a late slice, which the registry numbers behind all others."""

import pyarrow as pa

from cdc_pipeline.areas import slice_key
from cdc_pipeline.metadata_store.cut import NewSlice
from cdc_pipeline.metadata_store.quarantine import no_boundary
from cdc_pipeline.metadata_store.rows import SourceTable
from cdc_pipeline.record import TableSchema
from cdc_pipeline.slice_file import write_slice_file
from cdc_pipeline.steps import step
from cdc_pipeline.time_slice import Label, SliceFileName
from cdc_pipeline.wiring import Pipeline


def write_late_slice(
    pipeline: Pipeline, table: SourceTable, stream_partition: int, folder: str, rows: pa.Table, schema: TableSchema
) -> NewSlice:
    """In a folder of its own: two of them may hold the same row of a table without a key.

    Raises RegistryError while the stream has no boundary.
    """
    boundary = pipeline.store.positions.last_boundary(table.stream)
    if boundary is None:
        raise no_boundary(table.stream)
    file = write_slice_file(rows, schema)
    name = SliceFileName(
        label=Label(start=boundary.label_start, end=boundary.label_end),
        start_offset=boundary.position,
        end_offset=boundary.position,
        sha256=file.sha256,
    )
    key = slice_key(table.name, stream_partition, f"{folder}/{name}")
    with step(pipeline.on_step, "slice_file.put"):
        pipeline.objects.put_if_absent(key, file.content)
    schema_id = pipeline.store.tables.record_schema(
        table.table_id, schema, first_offset=boundary.position, is_newest=table.schema_id is None
    )
    return NewSlice.of(
        file,
        table_id=table.table_id,
        stream_partition=stream_partition,
        path=key,
        schema_id=schema_id,
        late=True,
    )
