"""snapshot_to_staging: pages of the source -> a snapshot data file -> one staging data file per data partition."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_pipeline.areas import partition_folder, snapshot_prefix, staging_prefix
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.sources.copy_stream import UnfitRow, copy_record_batches
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import arrow_schema
from snapshot.cutoff import snapshot_connection
from snapshot.plan import PageRange, range_query

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_FORMATS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One staging data file, of one data partition: ((lake column, value or None), …)."""

    key: str
    partition: tuple[tuple[str, str | None], ...]
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    key: str
    rows: int
    size_bytes: int
    unfit: tuple[UnfitRow, ...]


def export_range(
    *,
    source_url: str,
    exported: str,
    pages: PageRange,
    schema: TableSchema,
    table: TableName,
    snapshot_id: str,
    file_id: str,
    objects: ObjectStore,
    on_step: OnStep,
) -> SnapshotFile:
    """Streams the rows that the snapshot sees; memory holds one batch. The file's rows have no order."""
    key = f"{snapshot_prefix(table, snapshot_id)}/{file_id}.parquet"
    rows, unfit = 0, []
    with tempfile.TemporaryDirectory() as folder, snapshot_connection(source_url, exported) as connection:
        path = Path(folder) / "snapshot.parquet"
        with pq.ParquetWriter(
            path, arrow_schema(schema), compression="zstd", compression_level=1, write_page_checksum=True
        ) as writer:
            for batch in copy_record_batches(connection, range_query(connection, pages, schema), schema):
                writer.write_batch(batch.rows)
                rows += batch.rows.num_rows
                unfit.extend(batch.unfit)
        size_bytes = path.stat().st_size
        with step(on_step, "snapshot_file.put"):
            objects.put_file_if_absent(key, path)
    return SnapshotFile(key=key, rows=rows, size_bytes=size_bytes, unfit=tuple(unfit))


def snapshot_to_staging(
    *,
    snapshot_key: str,
    table: TableName,
    snapshot_id: str,
    file_id: str,
    key: tuple[str, ...],
    update_time: str | None,
    partition_by: Sequence[PartitionBy],
    objects: ObjectStore,
    on_step: OnStep,
) -> tuple[StagedFile, ...]:
    """Splits one snapshot data file by data partition and sorts each part by update_time, then id.

    Holds one snapshot data file in memory, whose size the plan bounds. The same input gives the same bytes, so a
    second attempt finds its files already there.
    """
    filesystem, root = objects.filesystem()
    rows = pq.read_table(f"{root}/{snapshot_key}", filesystem=filesystem, page_checksum_verification=True)
    order = [(name, "ascending") for name in ((update_time,) if update_time else ()) + key]
    in_order = rows.take(pc.sort_indices(rows, sort_keys=order))
    staged = []
    for values, part in split_by_partition(in_order, partition_by):
        folder = partition_folder(tuple((name, NULL_PARTITION if value is None else value) for name, value in values))
        prefix = "/".join(filter(None, (staging_prefix(table, snapshot_id), folder)))
        staged_key = f"{prefix}/{file_id}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(part, sink, compression="zstd", compression_level=1, write_page_checksum=True)
        content = sink.getvalue().to_pybytes()
        with step(on_step, "staging_file.put"):
            objects.put_if_absent(staged_key, content)
        staged.append(StagedFile(key=staged_key, partition=values, rows=part.num_rows, size_bytes=len(content)))
    return tuple(staged)


def split_by_partition(
    rows: pa.Table, partition_by: Sequence[PartitionBy]
) -> list[tuple[tuple[tuple[str, str | None], ...], pa.Table]]:
    """Parts of `rows`, each with its data partition; order within a part is kept. No rows, no parts."""
    if not partition_by:
        return [((), rows)] if rows.num_rows else []
    names = [part.lake_column for part in partition_by]
    values = pa.table([partition_values(rows[part.column], part) for part in partition_by], names=names)
    parts = []
    for combination in (
        values.group_by(names).aggregate([]).sort_by([(name, "ascending") for name in names]).to_pylist()
    ):
        chosen = None
        for name in names:
            wanted = combination[name]
            same = pc.is_null(values[name]) if wanted is None else pc.equal(values[name], wanted)
            chosen = same if chosen is None else pc.and_(chosen, same)
        parts.append((tuple((name, combination[name]) for name in names), rows.filter(chosen)))
    return parts


def partition_values(column: pa.ChunkedArray, part: PartitionBy) -> pa.ChunkedArray:
    """Text of each row's partition value, NULL where the column is NULL; times are taken in UTC."""
    if part.unit == "value":
        return column.cast(pa.string())
    return pc.strftime(column, format=_FORMATS[part.unit])
