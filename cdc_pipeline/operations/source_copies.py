"""Copies a table of the source, as of a held position, into a Parquet file that the lake can be compared with."""

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.areas import staging_prefix
from cdc_pipeline.errors import SetupError, has_no_room
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.sources.protocol import TableCopy
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import arrow_schema

RowId = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCopy:
    """Rows of the source as one Parquet file in the object store, under `key`.

    `rows_withheld`: the number of rows with a value that the lake's type cannot hold; the file has NULL instead.
    `withheld_ids`: their ids as the file has them, if these were asked for. `why_withheld`: every reason, once.
    """

    key: str
    rows_withheld: int
    withheld_ids: frozenset[RowId]
    why_withheld: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCopies:
    """Writes copies of tables of the source, and deletes them.

    The folder of a copy begins with the time, as that of a snapshot does: retention deletes what a killed process left.
    """

    objects: ObjectStore
    clock: Callable[[], datetime]
    new_id: Callable[[], UUID]
    on_step: OnStep

    @contextmanager
    def of(
        self, table: TableName, source: TableCopy, schema: TableSchema, *, with_ids: bool = False
    ) -> Iterator[SourceCopy]:
        """Yields a copy of the table with the schema's columns; its file is deleted when the block ends.

        Memory holds one block of rows and, `with_ids`, the ids of the withheld rows. The folder for temporary files
        holds the whole table. Raises SetupError if it has no room for that.
        """
        rows_withheld, ids, reasons = 0, set[RowId](), dict[str, None]()
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "source.parquet"
            with (
                _room_for(table, Path(temporary).parent),
                pq.ParquetWriter(path, arrow_schema(schema), compression="zstd") as writer,
            ):
                for copied in source.rows(table, schema):
                    writer.write_batch(copied.rows)
                    rows_withheld += len(copied.unfit_rows)
                    reasons.update((unfit.reason, None) for unfit in copied.unfit_rows)
                    if with_ids and copied.unfit_rows:
                        ids.update(ids_of(copied.rows.take([unfit.row for unfit in copied.unfit_rows]), schema))
            folder = f"{self.clock():%Y%m%dT%H%M%SZ}-verify-{self.new_id().hex}"
            key = f"{staging_prefix(table, folder)}/source.parquet"
            with step(self.on_step, "verification_file.put"):
                self.objects.put_file_if_absent(key, path)
        try:
            yield SourceCopy(
                key=key, rows_withheld=rows_withheld, withheld_ids=frozenset(ids), why_withheld=tuple(reasons)
            )
        finally:
            with step(self.on_step, "verification_file.delete"):
                self.objects.delete(key)


@contextmanager
def _room_for(table: TableName, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not has_no_room(error):
            raise
        raise SetupError(
            f"a copy of {table} finds no room in the folder {folder}: {error!s:.300}",
            expected="room for the whole table as a Parquet file",
            remedy="set another TMPDIR, or make room in this folder; then run the same command again",
        ) from error


def ids_of(rows: pa.RecordBatch | pa.Table, schema: TableSchema) -> list[RowId]:
    """Returns the ids in the schema's types, so that those of a lake equal those of its source. NaN equals NaN."""
    types = arrow_schema(schema)
    columns = (rows[name].cast(types.field(name).type).to_pylist() for name in schema.key)
    return [tuple(map(_comparable, id_)) for id_ in zip(*columns, strict=True)]


def _comparable(value: object) -> object:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
