"""snapshot_to_staging: copies pages of the source into staging data files.

The rows of a table with data partitions are first in a snapshot data file.
"""

import hashlib
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_pipeline.areas import encode_component, snapshot_prefix, staging_prefix
from cdc_pipeline.errors import SnapshotError, UsageError
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.sources.copied_rows import CopiedRows, UnfitRow
from cdc_pipeline.sources.known import Document
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import arrow_schema
from cdc_pipeline.types.row_order import ascending
from snapshot.exports import Export, OpensCopies
from snapshot.hand_offs import SnapshotFile, StagedFile, StagedFiles

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_PARQUET = {"compression": "zstd", "compression_level": 1, "use_dictionary": False, "write_page_checksum": True}
"""Without dictionaries: they double the time of writing, and zstd finds what repeats by itself."""
_FORMATS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
_WIDTHS = {"year": 4, "month": 7, "day": 10, "hour": 13}
_OWN_NAME = "__"
RUN_BYTES = 32 << 20
"""Rows that are sorted, and divided by data partition, at once, by their size in memory."""
MOST_UNFIT_ROWS = 100_000
"""Of one part of a snapshot. Memory holds them with all their texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPages:
    """The file or files that were written. They do not contain the rows in `unfit`."""

    output: SnapshotFile | StagedFiles
    rows: int
    size_bytes: int
    unfit: tuple[UnfitRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotToStaging:
    """The verb for one snapshot of one table: `export` each part, then `stage` each snapshot data file that it wrote.

    These are two tasks for a table with data partitions, so that the source has to hold its rows of the cutoff only
    during the export. The rows of another table need not be divided: `export` writes its staging files. Both tasks may
    be repeated after a crash. `update_time`: the column to sort by, if there is one.
    """

    table: TableName
    schema: TableSchema
    snapshot_id: str
    update_time: str | None
    partition_by: tuple[PartitionBy, ...]
    source: OpensCopies
    objects: ObjectStore
    on_step: OnStep
    run_bytes: int = RUN_BYTES
    most_unfit: int = MOST_UNFIT_ROWS

    def export(self, exported_snapshot: str, part: Document, file_id: str) -> ExportedPages:
        """Copies one part of the table, as of the exported snapshot, into files; durable on return.

        With data partitions that is one snapshot data file, whose rows have no order; memory holds one block of rows.
        Without them it is sorted staging files; memory holds `run_bytes` of rows twice. Exported files are also
        sorted and staged at once, with data partitions too: they stay readable after the export.
        """
        unfit: list[UnfitRow] = []
        with closing(self._rows(exported_snapshot, part, unfit)) as rows:
            if self.partition_by and Export.of(exported_snapshot) is None:
                return self._put_snapshot_file(rows, unfit, file_id)
            staged = self._put_runs(rows, file_id)
        return ExportedPages(
            output=StagedFiles(files=staged),
            rows=sum(file.rows for file in staged),
            size_bytes=sum(file.size_bytes for file in staged),
            unfit=tuple(unfit),
        )

    def _rows(
        self, exported_snapshot: str, part: Document, unfit: list[UnfitRow]
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the rows that fit, and appends the others to `unfit`. Raises SnapshotError if these are too many."""
        with self.source.copy_at(exported_snapshot) as copy:
            for copied in copy.rows(self.table, self.schema, part):
                unfit.extend(copied.unfit_rows)
                if len(unfit) > self.most_unfit:
                    raise SnapshotError(
                        f"more than {self.most_unfit} rows in one part of {self.table} do not fit the lake's types,"
                        f" the last one in the column {unfit[-1].column}",
                        expected="few rows that the lake cannot hold",
                        remedy="list such columns in as_text of the table in pipeline.yml, or other types in columns",
                    )
                yield _fitting(copied)

    def _put_snapshot_file(
        self, rows: Iterable[pa.RecordBatch], unfit: Sequence[UnfitRow], file_id: str
    ) -> ExportedPages:
        count = 0
        key = f"{snapshot_prefix(self.table, self.snapshot_id)}/{file_id}.parquet"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.parquet"
            with pq.ParquetWriter(path, arrow_schema(self.schema), **_PARQUET) as writer:
                for batch in rows:
                    writer.write_batch(batch)
                    count += batch.num_rows
            size_bytes = path.stat().st_size
            with step(self.on_step, "snapshot_file.put"):
                self.objects.put_file_if_absent(key, path)
        file = SnapshotFile(snapshot_key=key, file_id=file_id)
        return ExportedPages(output=file, rows=count, size_bytes=size_bytes, unfit=tuple(unfit))

    def stage(self, file: SnapshotFile) -> StagedFiles:
        """Splits one snapshot data file by data partition and sorts each part by update_time and id, if there are any.

        The files are durable on return. Memory holds `run_bytes` of rows twice, or one block of rows if that is larger.
        The same input gives the same bytes, so a second attempt finds its files already there.
        """
        with closing(self._read(file.snapshot_key)) as rows:
            return StagedFiles(files=self._put_runs(rows, file.file_id))

    def _read(self, snapshot_key: str) -> Generator[pa.RecordBatch, None, None]:
        """Yields the rows in the blocks in which they were exported."""
        filesystem, root = self.objects.filesystem()
        path = f"{root}/{snapshot_key}"
        with step(self.on_step, "snapshot_file.get"):
            file = pq.ParquetFile(path, filesystem=filesystem, pre_buffer=True, page_checksum_verification=True)
        with file:
            for number in range(file.num_row_groups):
                with step(self.on_step, "snapshot_file.get"):
                    blocks = file.read_row_group(number).to_batches()
                yield from blocks

    def _put_runs(self, rows: Iterable[pa.RecordBatch], file_id: str) -> tuple[StagedFile, ...]:
        return tuple(
            self._put(partition, rows_of_partition, f"{file_id}-{number:04d}")
            for number, run in enumerate(_runs(rows, self.run_bytes))
            for partition, rows_of_partition in split_by_partition(self._sorted(run), self.partition_by)
        )

    def _sorted(self, rows: pa.Table) -> pa.Table:
        sort_by = ((self.update_time,) if self.update_time else ()) + self.schema.key
        if not sort_by or is_sorted(rows, sort_by):
            return rows
        return rows.take(pc.sort_indices(rows, sort_keys=ascending(rows, sort_by)))

    def _put(self, partition: tuple[tuple[str, str | None], ...], rows: pa.Table, file_id: str) -> StagedFile:
        folders = (f"{_folder_part(name)}={_folder_part(value)}" for name, value in partition)
        key = "/".join((staging_prefix(self.table, self.snapshot_id), *folders, f"{file_id}.parquet"))
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, **_PARQUET)
        content = sink.getvalue().to_pybytes()
        with step(self.on_step, "staging_file.put"):
            self.objects.put_if_absent(key, content)
        return StagedFile(key=key, partition=partition, rows=rows.num_rows, size_bytes=len(content))


def _runs(batches: Iterable[pa.RecordBatch], run_bytes: int) -> Iterator[pa.Table]:
    """Yields the rows in tables of at least `run_bytes`, except the last one. Yields nothing for no rows."""
    run: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        run.append(batch)
        size += batch.nbytes
        if size >= run_bytes:
            yield pa.Table.from_batches(run)
            run, size = [], 0
    if any(batch.num_rows for batch in run):
        yield pa.Table.from_batches(run)


def is_sorted(rows: pa.Table, names: Sequence[str]) -> bool:
    """Whether the rows are in ascending order of these columns. False, too, if a column has NULLs.

    Tables are often filled in the order of their id; comparing neighbours costs a tenth of sorting.
    """
    if any(rows[name].null_count for name in names):
        return False
    equal: pa.ChunkedArray | None = None
    for name in names:
        column = rows[name].combine_chunks()
        before, after = column.slice(0, max(0, len(column) - 1)), column.slice(1)
        above = pc.greater(before, after)
        if pc.any(above if equal is None else pc.and_(equal, above), min_count=0).as_py():
            return False
        same = pc.equal(before, after)
        equal = same if equal is None else pc.and_(equal, same)
    return True


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
) -> Iterator[tuple[tuple[tuple[str, str | None], ...], pa.Table]]:
    """Yields the rows of each data partition, one after the other; keeps the order within each. Nothing for no rows."""
    if not partition_by:
        if rows.num_rows:
            yield (), rows
        return
    names = [part.lake_column for part in partition_by]
    values = pa.table([partition_values(rows[part.column], part) for part in partition_by], names=names)
    combinations = values.group_by(names).aggregate([]).sort_by([(name, "ascending") for name in names])
    for combination in combinations.to_pylist():
        chosen = None
        for name in names:
            wanted = combination[name]
            same = pc.is_null(values[name]) if wanted is None else pc.equal(values[name], wanted)
            chosen = same if chosen is None else pc.and_(chosen, same)
        yield tuple((name, combination[name]) for name in names), rows.filter(chosen)


def partition_values(column: pa.ChunkedArray, part: PartitionBy) -> pa.ChunkedArray:
    """Returns each row's partition value as text; NULL if the column is NULL. Times are read in UTC."""
    if part.unit != "value":
        return pc.utf8_lpad(pc.strftime(column, format=_FORMATS[part.unit]), _WIDTHS[part.unit], padding="0")
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        texts = [None if value is None else str(value) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
