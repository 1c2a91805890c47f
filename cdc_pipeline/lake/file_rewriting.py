"""Rewrites data files of a lake table without Spark: without their deleted rows, and small ones as one, sorted by id.

A Spark job costs about a second of processor time, however few rows it has. Memory does not grow with the files: what
fits into it is sorted together and becomes one row group.
"""

import json
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.deletion_vectors import VectorObjects, read_vectors
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.file_bounds import Rows
from cdc_pipeline.lake.file_stats import delta_stats
from cdc_pipeline.lake.new_shape import delta_fields, physical_fields
from cdc_pipeline.lake.protocol import DataFile, LakeTable
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.table_ddl import recorded_stats
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.types.row_order import ascending

_BATCH_ROWS = 1_024
"""Read at once. So few because a file does not say how large its rows are in memory, where texts repeat."""
_ROWS_PER_GROUP = 1 << 20
_WITHOUT_ZONE = "TIMESTAMP_NTZ"
_OLD_CALENDAR = frozenset({b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"})
"""Marks of files whose moments before 1582 Spark reads by the Julian calendar."""


@dataclass(slots=True)
class Rewritten:
    """Files to remove from the table, and files that have their live rows. No commit refers to the new files yet."""

    removed: list[Action] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRewriting:
    """Rewrites files of the table with this `metadata` into `folder`, an object-store key that no other call uses.

    `file_bytes`: a new file has rows of so many files as together reach this size. `most_held_bytes`: of the rows in
    memory that are sorted together. They are held about three times. `vector_objects`: see `VectorObjects`.
    """

    store: ObjectStore
    table: LakeTable
    metadata: Action
    folder: str
    file_bytes: int = 16 << 20
    most_held_bytes: int = 64 << 20
    vector_objects: OrderedDict[str, bytes] = field(default_factory=OrderedDict)

    def rewrite(self, group: Sequence[Action]) -> Rewritten:
        """Rewrites the files of one group; see `Rewritten`.

        A file stays that would only be copied, or that has moments of a calendar that Arrow does not know.
        """
        done = Rewritten()
        for files, schema in self._together(group):
            if len(files) > 1 or files[0].get("deletionVector"):
                self._put(done, files, schema)
        return done

    def _together(self, group: Sequence[Action]) -> Iterator[tuple[list[Action], pa.Schema]]:
        """Yields the files that become one file, and its columns."""
        files, schema, size_bytes = list[Action](), pa.schema([]), 0
        for file in sorted(group, key=self._lowest_id):
            with self._opened(file) as opened:
                if _OLD_CALENDAR & (opened.metadata.metadata or {}).keys():
                    continue
                own = self._columns(opened)
            both = _of_both(schema, own)
            if files and (both is None or size_bytes >= self.file_bytes):
                yield files, schema
                files, both, size_bytes = [], own, 0
            files.append(file)
            schema, size_bytes = both, size_bytes + int(file["size"])
        if files:
            yield files, schema

    def _put(self, done: Rewritten, files: list[Action], schema: pa.Schema) -> None:
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
                for rows in _gathered(self._live_rows(files), schema, self.most_held_bytes):
                    writer.write_table(self._sorted(rows), row_group_size=_ROWS_PER_GROUP)
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

    def _live_rows(self, files: Sequence[Action]) -> Iterator[pa.RecordBatch]:
        objects = VectorObjects(store=self.store, held=self.vector_objects)
        vectors = dict(read_vectors(objects, lake_key(self.table.name), {file["path"]: file for file in files}))
        for file in files:
            dead = vectors[file["path"]]
            with self._opened(file) as opened:
                live = _without(opened, np.fromiter(dead, np.int64, len(dead)), self.most_held_bytes)
                columns = self._columns(opened)
                is_cast = columns != opened.schema_arrow.remove_metadata()
                yield from (batch.cast(columns) for batch in live) if is_cast else live

    @contextmanager
    def _opened(self, file: Action) -> Iterator[pq.ParquetFile]:
        filesystem, root = self.store.filesystem()
        key = f"{lake_key(self.table.name)}/{unquote(file['path'])}"
        with (
            filesystem.open_input_file(f"{root}/{key}") as content,
            # INT96 is what Spark writes by default. As nanoseconds it overflows outside 1677 to 2262.
            pq.ParquetFile(content, page_checksum_verification=True, coerce_int96_timestamp_unit="us") as opened,
        ):
            yield opened

    def _columns(self, opened: pq.ParquetFile) -> pa.Schema:
        """Returns the file's columns with moments of the table's types, whatever Parquet type the file has for them.

        Spark reads no file whose moments have or lack a zone otherwise than the table's, or have nanoseconds.
        """
        physical, zones = physical_fields(self.metadata), dict[str, str | None]()
        for name, type_ in delta_fields(self.metadata):
            zones[physical[name][0]] = None if _WITHOUT_ZONE in type_ else "UTC"
        read = opened.schema_arrow.remove_metadata()
        return pa.schema([field.with_type(_in_zone(field.type, zones.get(field.name))) for field in read])

    def _sorted(self, rows: pa.Table) -> pa.Table:
        keys = [name for name in self._keys if name in rows.schema.names]
        if not keys or any(pa.types.is_nested(rows.schema.field(name).type) for name in keys):
            return rows
        return rows.sort_by(ascending(rows, keys))

    def _lowest_id(self, file: Action) -> tuple[int, Any, str]:
        """Puts files with neighbouring ids beside each other, so that the new files have narrow ranges.

        Among numbers Delta writes infinity and NaN as texts, which come last.
        """
        least = json.loads(file.get("stats") or "{}").get("minValues") or {}
        low = least.get(self._keys[0]) if self._keys else None
        if isinstance(low, int | float):
            return 0, low, file["path"]
        return (1, low, file["path"]) if isinstance(low, str) else (2, "", file["path"])

    @property
    def _keys(self) -> list[str]:
        physical = physical_fields(self.metadata)
        return [physical[name][0] for name in self.table.schema.key if name in physical]

    @property
    def _stats(self) -> tuple[str, ...]:
        recorded = recorded_stats(self.table, configuration_of(self.metadata))
        return tuple(inside for name, (inside, _) in physical_fields(self.metadata).items() if name in recorded)


def _without(opened: pq.ParquetFile, dead: Rows, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file without those whose indexes are in `dead`, which is sorted.

    A batch has a quarter of `most_bytes`, unless its texts repeat in the file: then it has _BATCH_ROWS at most.
    """
    fitting = most_bytes // 4 * opened.metadata.num_rows // max(1, _unpacked_bytes(opened.metadata))
    start = 0
    for batch in opened.iter_batches(max(1, min(_BATCH_ROWS, fitting))):
        low, high = np.searchsorted(dead, (start, start + batch.num_rows))
        is_live = np.ones(batch.num_rows, dtype=np.bool_)
        is_live[dead[low:high] - start] = False
        start += batch.num_rows
        yield batch if low == high else batch.filter(pa.array(is_live))


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_bytes: int) -> Iterator[pa.Table]:
    """Yields the rows in tables of at most _ROWS_PER_GROUP rows, each of which becomes one row group.

    A table ends early once it has `most_bytes`. None is empty: the statistics of a row group without rows are missing.
    """
    gathered, rows, size_bytes = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if gathered and (rows + batch.num_rows > _ROWS_PER_GROUP or size_bytes >= most_bytes):
            yield _joined(gathered, schema)
            gathered, rows, size_bytes = [], 0, 0
        if batch.num_rows:
            gathered.append(batch)
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
    if gathered:
        yield _joined(gathered, schema)


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Returns one table with the columns of `schema`. A column that a file lacks is NULL, as for every reader."""
    tables = (pa.Table.from_batches([batch]) for batch in batches)
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default")


def _in_zone(type_: pa.DataType, zone: str | None) -> pa.DataType:
    """Returns the type with all its moments in microseconds and in this zone."""
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", zone)
    if pa.types.is_list(type_):
        inside = type_.value_field.with_type(_in_zone(type_.value_type, zone))
        return type_ if inside == type_.value_field else pa.list_(inside)
    if pa.types.is_map(type_):
        inside = type_.item_field.with_type(_in_zone(type_.item_type, zone))
        return type_ if inside == type_.item_field else pa.map_(type_.key_field, inside)
    return type_


def _of_both(schema: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Returns the columns of both. None if a column has two types, which only a file of each type can keep."""
    try:
        return pa.unify_schemas([schema, other], promote_options="default")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _unpacked_bytes(metadata: pq.FileMetaData) -> int:
    return sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
