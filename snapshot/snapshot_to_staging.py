"""snapshot_to_staging: copies pages of the source into a snapshot data file, and that into staging data files."""

import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_pipeline.areas import encode_component, snapshot_prefix, staging_prefix
from cdc_pipeline.errors import UsageError
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.sources.copied_rows import CopiedRows, UnfitRow
from cdc_pipeline.sources.known import Document
from cdc_pipeline.sources.protocol import Source
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import arrow_schema
from snapshot.hand_offs import SnapshotFile, StagedFile, StagedFiles

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_PARQUET = {"compression": "zstd", "compression_level": 1, "write_page_checksum": True}
_FORMATS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
_WIDTHS = {"year": 4, "month": 7, "day": 10, "hour": 13}
_OWN_NAME = "__"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPages:
    """One snapshot data file that was written. It does not contain the rows in `unfit`."""

    file: SnapshotFile
    rows: int
    size_bytes: int
    unfit: tuple[UnfitRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotToStaging:
    """The verb for one snapshot of one table: `export` each page range, then `stage` each snapshot data file.

    These are two tasks, so that the source has to hold its rows of the cutoff only during the export. Both may be
    repeated after a crash. `update_time`: the column to sort by, if there is one.
    """

    table: TableName
    schema: TableSchema
    snapshot_id: str
    update_time: str | None
    partition_by: tuple[PartitionBy, ...]
    source: Source
    objects: ObjectStore
    on_step: OnStep

    def export(self, exported_snapshot: str, part: Document, file_id: str) -> ExportedPages:
        """Copies one part of the table, as of the exported snapshot, into one snapshot data file; durable on return.

        Memory holds one block of rows. The file's rows have no order.
        """
        rows = 0
        unfit: list[UnfitRow] = []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.parquet"
            with (
                self.source.copy_at(exported_snapshot) as copy,
                pq.ParquetWriter(path, arrow_schema(self.schema), **_PARQUET) as writer,
            ):
                for copied in copy.rows(self.table, self.schema, part):
                    fitting = _fitting(copied)
                    writer.write_batch(fitting)
                    rows += fitting.num_rows
                    unfit.extend(copied.unfit_rows)
            key = f"{snapshot_prefix(self.table, self.snapshot_id)}/{file_id}.parquet"
            size_bytes = path.stat().st_size
            with step(self.on_step, "snapshot_file.put"):
                self.objects.put_file_if_absent(key, path)
        file = SnapshotFile(snapshot_key=key, file_id=file_id)
        return ExportedPages(file=file, rows=rows, size_bytes=size_bytes, unfit=tuple(unfit))

    def stage(self, file: SnapshotFile) -> StagedFiles:
        """Splits one snapshot data file by data partition and sorts each part by update_time and id, if there are any.

        The files are durable on return. Memory holds the whole snapshot data file; the plan limits its size. The same
        input gives the same bytes, so a second attempt finds its files already there.
        """
        rows = self._sorted(self._read(file.snapshot_key))
        parts = split_by_partition(rows, self.partition_by)
        return StagedFiles(files=tuple(self._put(partition, part, file.file_id) for partition, part in parts))

    def _read(self, snapshot_key: str) -> pa.Table:
        filesystem, root = self.objects.filesystem()
        with step(self.on_step, "snapshot_file.get"):
            return pq.read_table(f"{root}/{snapshot_key}", filesystem=filesystem, page_checksum_verification=True)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        sort_by = ((self.update_time,) if self.update_time else ()) + self.schema.key
        if not sort_by:
            return rows
        return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in sort_by]))

    def _put(self, partition: tuple[tuple[str, str | None], ...], rows: pa.Table, file_id: str) -> StagedFile:
        folders = (f"{_folder_part(name)}={_folder_part(value)}" for name, value in partition)
        key = "/".join((staging_prefix(self.table, self.snapshot_id), *folders, f"{file_id}.parquet"))
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, **_PARQUET)
        content = sink.getvalue().to_pybytes()
        with step(self.on_step, "staging_file.put"):
            self.objects.put_if_absent(key, content)
        return StagedFile(key=key, partition=partition, rows=rows.num_rows, size_bytes=len(content))


def _fitting(copied: CopiedRows) -> pa.RecordBatch:
    if not copied.unfit_rows:
        return copied.rows
    fits = np.ones(copied.rows.num_rows, dtype=np.bool_)
    fits[[unfit.row for unfit in copied.unfit_rows]] = False
    return copied.rows.filter(pa.array(fits))


def _folder_part(text: str | None) -> str:
    """Returns a part of a folder's name, unique for each text: a hash for long text, the name used by Hive for NULL."""
    if text is None:
        return NULL_PARTITION
    if not text.startswith(_OWN_NAME):
        with suppress(UsageError):
            return encode_component(text)
    return _OWN_NAME + hashlib.sha256(text.encode()).hexdigest()


def split_by_partition(
    rows: pa.Table, partition_by: Sequence[PartitionBy]
) -> list[tuple[tuple[tuple[str, str | None], ...], pa.Table]]:
    """Splits `rows` by data partition; keeps the order within each part. Returns nothing for no rows."""
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
    """Returns each row's partition value as text; NULL if the column is NULL. Times are read in UTC."""
    if part.unit != "value":
        return pc.utf8_lpad(pc.strftime(column, format=_FORMATS[part.unit]), _WIDTHS[part.unit], padding="0")
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        texts = [None if value is None else str(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
