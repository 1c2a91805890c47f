"""Data files of the fast lake: how rows become one, and those of the rows that a snapshot lacks."""

import io
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.deleted_rows import right_before, sources_of
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.ledger_values import PublishedTable
from cdc_pipeline.lake.protocol import DataFile, LakeTable
from cdc_pipeline.lake.shape import LakeColumn
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import DELETED, STATE, VERSION, Column
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import resolve
from tests.support.memory_rows import is_dead, lake_schema


def put_rows(store: ObjectStore, on_step: OnStep, table: LakeTable, name: str, rows: pa.Table) -> DataFile:
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    key = f"{lake_key(table.name)}/{name}.parquet"
    with step(on_step, "lake_file.put"):
        store.put_if_absent(key, sink.getvalue())
    return DataFile(key=key, size_bytes=sink.tell(), rows=rows.num_rows, partition_values=(), stats="{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDeletedRows:
    """`stored`: the rows of a version. `files`: those of the snapshot."""

    store: ObjectStore
    on_step: OnStep
    table: LakeTable
    files: tuple[DataFile, ...]
    stored: Callable[[int], pa.Table]

    def write(self, published: PublishedTable, read: int) -> tuple[DataFile, ...]:
        log = DeltaLog(self.store, lake_key(self.table.name))
        sources = sources_of(log.metadata(read), log.folder, self.table, published)
        parts = [pq.read_table(io.BytesIO(self.store.get(file.key))) for file in self.files]
        if sources is None:
            return ()
        rows = _missing(self.table, published, sources, self.stored(read), parts)
        name = f"deleted-{uuid.uuid4()}"
        return (put_rows(self.store, self.on_step, self.table, name, rows),) if rows.num_rows else ()


def _missing(
    table: LakeTable,
    published: PublishedTable,
    sources: Mapping[str, LakeColumn | None],
    lake: pa.Table,
    snapshot: list[pa.Table],
) -> pa.Table:
    """The rows of `lake` whose id no row of `snapshot` has, flagged, with the columns of the table."""

    def id_of(row: Mapping[str, Any]) -> tuple[object, ...]:
        return tuple(row[name] for name in table.schema.key)

    known = {id_of(row) for part in snapshot for row in part.select(list(table.schema.key)).to_pylist()}
    others = [name for name in table.schema.names if name not in table.schema.key]
    rows = []
    for row in lake.to_pylist():
        values = {column.name: _converted(lake, row, column, sources[column.name]) for column in table.schema.columns}
        at = right_before(published.cutoff_version)
        if row[DELETED] and is_dead(row):
            at = min(row[VERSION], at)
        state = {"upsert": at, "deletions": [at], "versions": dict.fromkeys(others, at), "columns": others}
        if id_of(values) not in known:
            rows.append({**values, VERSION: at, DELETED: True, STATE: json.dumps(state)})
    return pa.Table.from_pylist(rows, schema=lake_schema(table))


def _converted(lake: pa.Table, row: Mapping[str, Any], column: Column, was: LakeColumn | None) -> object:
    if was is None:
        return None
    try:
        return pa.scalar(row[was.name], lake.schema.field(was.name).type).cast(resolve(column.type).arrow).as_py()
    except pa.ArrowException:
        return None
