"""Compacts staged rows without Spark if they are few: one sorted Parquet file, as Spark would write it.

A Spark job costs about a second of processor time, however few rows it has.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.areas import encode_component, lake_key
from cdc_pipeline.lake.columns import NULL_PARTITION, partition_label, stats_columns
from cdc_pipeline.lake.file_stats import delta_stats
from cdc_pipeline.lake.new_shape import physical_names
from cdc_pipeline.lake.protocol import Compaction, DataFile, LakeTable
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import DELETED, VERSION, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import arrow_schema, resolve
from cdc_pipeline.types.row_order import ascending

MOST_BYTES = 32 << 20
"""Of the rows in memory. They are held three times."""
_PARQUET = {
    "compression": "zstd",
    "store_schema": False,
    "store_decimal_as_integer": True,
    "write_page_checksum": True,
}
"""Spark writes decimals of at most 18 digits as integers, too."""
_FIELD_ID = "PARQUET:field_id"
_SAME_TEXT = ("STRING", "SMALLINT", "INT", "BIGINT", "DATE", "BOOLEAN")
"""Spark types whose values Arrow and Spark convert to the same text."""


def compact_few(store: ObjectStore, table: LakeTable, work: Compaction, on_step: OnStep) -> tuple[DataFile, ...] | None:
    """Returns the file in a tuple, an empty tuple for no rows, and None if Spark has to do it.

    It has to if the rows are too many or shall become several files, if Arrow cannot sort their ids, or if only Spark
    knows the text that names their data partition.
    """
    keys = [resolve(table.schema.column(name).type).arrow for name in table.schema.key]
    if work.target_files > 1 or any(map(pa.types.is_nested, keys)) or not _is_named(table, work):
        return None
    physical = physical_names(store, table, work.snapshot_id)
    with step(on_step, "snapshot_files.write"):
        staged = staged_rows(store, table.schema, work.staged_keys)
        if staged is None:
            return None
        if not staged.num_rows:
            return ()
        rows = _lake_rows(staged, table, work, physical)
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, **_PARQUET)
        content = sink.getvalue()
        folder = f"snapshot-{encode_component(work.snapshot_id)}-{encode_component(work.attempt)}"
        key = f"{lake_key(table.name)}/{folder}/part-00000.parquet"
        store.put_if_absent(key, content.to_pybytes())
    stats = tuple(physical[name][0] for name in stats_columns(table))
    return (
        DataFile(
            key=key,
            size_bytes=content.size,
            rows=rows.num_rows,
            partition_values=tuple((physical[name][0], _in_log(value)) for name, value in work.partition),
            stats=delta_stats(pq.read_metadata(pa.BufferReader(content)), stats),
        ),
    )


def _in_log(value: str | None) -> str | None:
    """Returns the label of a data partition as Delta's log has it, where the empty text stands for NULL."""
    return None if value is None or value in {"", NULL_PARTITION} else partition_label(value)


def _is_named(table: LakeTable, work: Compaction) -> bool:
    """Whether the staged rows are of one data partition of the table, and Spark would name it by the same text."""

    def has_same_text(partition: PartitionBy) -> bool:
        return partition.unit != "value" or resolve(table.schema.column(partition.column).type).spark in _SAME_TEXT

    names = [partition.lake_column for partition in table.partition_by]
    return names == [name for name, _ in work.partition] and all(map(has_same_text, table.partition_by))


def staged_rows(store: ObjectStore, columns: TableSchema, staged_keys: Sequence[str]) -> pa.Table | None:
    """Returns the rows with these columns. None if they are too many."""
    filesystem, root = store.filesystem()
    schema, size, parts = arrow_schema(columns), 0, []
    for key in staged_keys:
        with filesystem.open_input_file(f"{root}/{key}") as content:
            file = pq.ParquetFile(content, page_checksum_verification=True)
            groups = range(file.metadata.num_row_groups)
            if size + sum(file.metadata.row_group(group).total_byte_size for group in groups) > MOST_BYTES:
                return None
            parts.append(file.read(columns=schema.names).select(schema.names).cast(schema))
            size += parts[-1].nbytes
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _lake_rows(
    staged: pa.Table, table: LakeTable, work: Compaction, physical: dict[str, tuple[str, int | None]]
) -> pa.Table:
    """Returns the rows sorted by id, with the pipeline's own columns, under the names that files have inside."""
    rows = staged.sort_by(ascending(staged, table.schema.key)) if table.schema.key else staged
    columns = {name: rows[name] for name in table.schema.names}
    columns[VERSION] = pa.repeat(pa.scalar(work.version), rows.num_rows)
    if DELETED in physical:
        columns[DELETED] = pa.repeat(pa.scalar(value=False), rows.num_rows)
    fields = [_field(column.type, *physical[name]) for name, column in columns.items()]
    return pa.table(list(columns.values()), pa.schema(fields))


def _field(type_: pa.DataType, name: str, field_id: int | None) -> pa.Field:
    return pa.field(name, type_, metadata=None if field_id is None else {_FIELD_ID: str(field_id)})
