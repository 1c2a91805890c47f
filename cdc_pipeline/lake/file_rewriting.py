"""Rewrites data files of a lake table without Spark: without their deleted rows, and small ones as one, sorted by id.

A Spark job costs about a second of processor time, however few rows it has. Memory does not grow with the files: small
ones are sorted together as long as they fit, a larger one is copied batch by batch.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.deletion_vectors import read_vector
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.file_bounds import Rows
from cdc_pipeline.lake.file_stats import delta_stats
from cdc_pipeline.lake.new_shape import physical_fields
from cdc_pipeline.lake.protocol import DataFile, LakeTable
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.table_ddl import listed_stats
from cdc_pipeline.object_store import ObjectStore

_BATCH_ROWS = 65_536
_ROWS_PER_GROUP = 1 << 20


@dataclass(slots=True)
class Rewritten:
    """Files to remove from the table, and files that have their live rows. No commit refers to the new files yet."""

    removed: list[Action] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)


@dataclass(slots=True)
class _Held:
    """Rows of files of one shape, in memory."""

    files: list[Action] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    deleted: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(rows.nbytes for rows in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRewriting:
    """Rewrites files of the table with this `metadata` into `folder`, an object-store key that no other call uses.

    `most_held_bytes`: of the rows in memory that are sorted together. They are held about three times.
    """

    store: ObjectStore
    table: LakeTable
    metadata: Action
    folder: str
    most_held_bytes: int = 64 << 20

    def rewrite(self, group: Sequence[Action]) -> Rewritten:
        """Rewrites the files of one group. A file that would only be copied stays; see `Rewritten`."""
        done, held = Rewritten(), _Held()
        for file in sorted(group, key=self._lowest_id):
            filesystem, root = self.store.filesystem()
            key = f"{lake_key(self.table.name)}/{unquote(file['path'])}"
            with (
                filesystem.open_input_file(f"{root}/{key}") as content,
                pq.ParquetFile(content, page_checksum_verification=True) as opened,
            ):
                dead = self._dead_rows(file)
                schema = opened.schema_arrow.remove_metadata()
                if _unpacked_bytes(opened.metadata) > self.most_held_bytes:
                    self._put(done, [file], schema, _live_rows(opened, dead))
                    continue
                together = _together(held.schema, schema)
                if together is None or held.size_bytes > self.most_held_bytes:
                    self._flush(done, held)
                    held, together = _Held(), schema
                held.files.append(file)
                held.rows.append(pa.Table.from_batches(_live_rows(opened, dead), schema=schema))
                held.schema, held.deleted = together, held.deleted + len(dead)
        self._flush(done, held)
        return done

    def _flush(self, done: Rewritten, held: _Held) -> None:
        """Writes what is held, sorted by id. A single file without deleted rows is left as it is."""
        if len(held.files) < 2 and not held.deleted:  # noqa: PLR2004
            return
        rows = pa.concat_tables(held.rows, promote_options="default").select(held.schema.names)
        keys = [name for name in self._keys if name in rows.schema.names]
        if keys and not any(pa.types.is_nested(rows.schema.field(name).type) for name in keys):
            rows = rows.sort_by([(name, "ascending") for name in keys])
        self._put(done, held.files, rows.schema, rows.to_batches(_BATCH_ROWS))

    def _put(self, done: Rewritten, files: list[Action], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        done.removed += files
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "part.parquet"
            writer = pq.ParquetWriter(
                path,
                schema,
                compression="zstd",
                store_schema=False,
                store_decimal_as_integer=True,
                write_page_checksum=True,
            )
            with closing(writer):
                for rows in _gathered(batches, self.most_held_bytes):
                    writer.write_table(rows, row_group_size=_ROWS_PER_GROUP)
            written = pq.read_metadata(path)
            if not written.num_rows:
                return
            key = f"{self.folder}/part-{len(done.removed):05d}.parquet"
            self.store.put_file_if_absent(key, path)
            size_bytes = path.stat().st_size
        values = tuple((files[0].get("partitionValues") or {}).items())
        stats = delta_stats(written, self._stats)
        done.added.append(
            DataFile(key=key, size_bytes=size_bytes, rows=written.num_rows, partition_values=values, stats=stats)
        )

    def _dead_rows(self, file: Action) -> Rows:
        vector = read_vector(self.store, lake_key(self.table.name), file.get("deletionVector"))
        return np.fromiter(vector, np.int64, len(vector))

    def _lowest_id(self, file: Action) -> tuple[bool, object, str]:
        """Puts files with neighbouring ids beside each other, so that the new files have narrow ranges."""
        least = json.loads(file.get("stats") or "{}").get("minValues") or {}
        low = least.get(self._keys[0]) if self._keys else None
        return low is None, low, file["path"]

    @property
    def _keys(self) -> list[str]:
        physical = physical_fields(self.metadata)
        return [physical[name][0] for name in self.table.schema.key if name in physical]

    @property
    def _stats(self) -> tuple[str, ...]:
        known, physical = listed_stats(configuration_of(self.metadata)), physical_fields(self.metadata)
        return tuple(inside for name, (inside, _) in physical.items() if name in known)


def _live_rows(opened: pq.ParquetFile, dead: Rows) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file without those whose indexes are in `dead`, which is sorted."""
    start = 0
    for batch in opened.iter_batches(_BATCH_ROWS):
        low, high = np.searchsorted(dead, (start, start + batch.num_rows))
        is_live = np.ones(batch.num_rows, dtype=np.bool_)
        is_live[dead[low:high] - start] = False
        start += batch.num_rows
        yield batch if low == high else batch.filter(pa.array(is_live))


def _gathered(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.Table]:
    """Yields the rows in tables of at most _ROWS_PER_GROUP rows, each of which becomes one row group.

    A table ends early once it has `most_bytes`. None is empty: the statistics of a row group without rows are missing.
    """
    gathered, rows, size_bytes = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if gathered and (rows + batch.num_rows > _ROWS_PER_GROUP or size_bytes >= most_bytes):
            yield pa.Table.from_batches(gathered)
            gathered, rows, size_bytes = [], 0, 0
        if batch.num_rows:
            gathered.append(batch)
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
    if gathered:
        yield pa.Table.from_batches(gathered)


def _together(held: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Returns the columns of both. None if a column has two types, which only a file of each type can keep.

    A column that a file lacks is NULL in its rows, as for every reader of the table.
    """
    try:
        return pa.unify_schemas([held, other], promote_options="default")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _unpacked_bytes(metadata: pq.FileMetaData) -> int:
    return sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
