"""snapshot_to_staging: pages of the source -> a snapshot data file -> one staging data file per data partition."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg2.extensions
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_pipeline.areas import partition_folder, snapshot_prefix, staging_prefix
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.sources.copy_stream import CopiedRows, copy_record_batches
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import arrow_schema

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_PARQUET = {"compression": "zstd", "compression_level": 1, "write_page_checksum": True}
_FORMATS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One staging data file, of one data partition: ((lake column, value or None), …)."""

    key: str
    partition: tuple[tuple[str, str | None], ...]
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitRow:
    """A row that the lake's types cannot hold: its id, and the text of the value that does not fit."""

    column: str
    payload: dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """One snapshot data file; what `unfit` lists is not in it."""

    key: str
    rows: int
    size_bytes: int
    unfit: tuple[UnfitRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """What a worker slot needs for one snapshot of one table. `update_time`: the column to sort by, if there is one."""

    table: TableName
    schema: TableSchema
    snapshot_id: str
    update_time: str | None
    partition_by: tuple[PartitionBy, ...]
    objects: ObjectStore
    on_step: OnStep


def export_range(
    staging: Staging, connection: psycopg2.extensions.connection, query: str, file_id: str
) -> SnapshotFile:
    """Streams the rows that the connection's snapshot sees; memory holds one block. The file's rows have no order."""
    key = f"{snapshot_prefix(staging.table, staging.snapshot_id)}/{file_id}.parquet"
    rows, unfit = 0, []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.parquet"
        with pq.ParquetWriter(path, arrow_schema(staging.schema), **_PARQUET) as writer:
            for copied in copy_record_batches(connection, query, staging.schema, on_step=staging.on_step):
                fitting, kept_aside = _split_unfit(copied, staging.schema)
                writer.write_batch(fitting)
                rows += fitting.num_rows
                unfit.extend(kept_aside)
        size_bytes = path.stat().st_size
        with step(staging.on_step, "snapshot_file.put"):
            staging.objects.put_file_if_absent(key, path)
    return SnapshotFile(key=key, rows=rows, size_bytes=size_bytes, unfit=tuple(unfit))


def _split_unfit(copied: CopiedRows, schema: TableSchema) -> tuple[pa.RecordBatch, list[UnfitRow]]:
    if not copied.unfit:
        return copied.rows, []
    unfit = {}
    for values in copied.unfit:
        for row, text in zip(values.rows.to_pylist(), values.texts.to_pylist(), strict=True):
            ids = {name: str(copied.rows[name][row].as_py()) for name in schema.key}
            shown = {**ids, values.column: text.decode(errors="backslashreplace")}
            unfit[row] = UnfitRow(column=values.column, payload=shown)
    fits = np.ones(copied.rows.num_rows, dtype=np.bool_)
    fits[list(unfit)] = False
    return copied.rows.filter(pa.array(fits)), list(unfit.values())


def snapshot_to_staging(staging: Staging, snapshot_key: str, file_id: str) -> tuple[StagedFile, ...]:
    """Splits one snapshot data file by data partition and sorts each part by update_time, then id.

    Holds one snapshot data file in memory, whose size the plan bounds. The same input gives the same bytes, so a
    second attempt finds its files already there.
    """
    filesystem, root = staging.objects.filesystem()
    with step(staging.on_step, "snapshot_file.get"):
        rows = pq.read_table(f"{root}/{snapshot_key}", filesystem=filesystem, page_checksum_verification=True)
    sort_by = ((staging.update_time,) if staging.update_time else ()) + staging.schema.key
    in_order = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in sort_by]))
    staged = []
    for values, part in split_by_partition(in_order, staging.partition_by):
        folder = partition_folder(tuple((name, NULL_PARTITION if value is None else value) for name, value in values))
        prefix = "/".join(filter(None, (staging_prefix(staging.table, staging.snapshot_id), folder)))
        staged_key = f"{prefix}/{file_id}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(part, sink, **_PARQUET)
        content = sink.getvalue().to_pybytes()
        with step(staging.on_step, "staging_file.put"):
            staging.objects.put_if_absent(staged_key, content)
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
