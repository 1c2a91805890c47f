"""Slice files and claims for tests of the lake, from events written as plain values."""

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key, slice_key
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange, LakeTable, SliceInput
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    OLD_ID_PREFIX,
    OPERATION,
    TRANSACTION,
    VERSION,
    Column,
    Operation,
    TableName,
    TableSchema,
)
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.types import resolve
from tests.support.delta_rows import delta_rows, delta_url
from tests.support.reference.model import Event, Id

RowsById = dict[tuple[object, ...], dict[str, Any]]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PEOPLE = TableSchema(
    columns=(Column(name="id", type="int8"), Column(name="name", type="text"), Column(name="age", type="int4")),
    key=("id",),
)


def table_of(
    schema: TableSchema = PEOPLE,
    *,
    name: str = "shop.public.people",
    deletes: Literal["hard", "soft"] = "hard",
    ordered: bool = True,
    partition_by: tuple[PartitionBy, ...] = (),
    keeps_history: bool = False,
) -> LakeTable:
    return LakeTable(
        name=TableName.parse(name),
        table_uuid="uuid-1",
        schema=schema,
        deletes=deletes,
        ordered=ordered,
        partition_by=partition_by,
        keeps_history=keeps_history,
        create_time="created_at" if "created_at" in schema.names else None,
    )


def version(number: int) -> str:
    return f"{number:016x}-00000001"


def commit_time(version: str) -> datetime:
    """A second for each position, so that versions of a stream and their times have one order."""
    position, _, _ = version.partition("-")
    return NOW + timedelta(seconds=int(position, 16)) if len(position) == 16 else NOW


def event(operation: str, number: int, /, *id_: object, **values: object) -> Event:
    return Event(operation=Operation(operation), version=version(number), id=id_, values=values)


def move(number: int, old: Id, new: Id, /, **values: object) -> list[Event]:
    """Both halves of a key change, as the consumer splits it."""
    at = version(number)
    return [
        Event(operation=Operation.DELETE, version=at, id=old),
        Event(operation=Operation.MOVE, version=at, id=new, old_id=old, values=values),
    ]


def slice_bytes(schema: TableSchema, events: Iterable[Event]) -> bytes:
    """The slice file that a consumer writes for these events: absent columns are those that an event does not hold."""
    rows = [_slice_row(schema, each) for each in events]
    fields = [
        pa.field(OPERATION, pa.string()),
        pa.field(VERSION, pa.string()),
        pa.field(COMMIT_TIME, pa.timestamp("us", "UTC")),
        pa.field(TRANSACTION, pa.int64()),
        pa.field(ABSENT, pa.list_(pa.string())),
        *(pa.field(OLD_ID_PREFIX + column.name, resolve(column.type).arrow) for column in schema.key_columns),
        *(pa.field(column.name, resolve(column.type).arrow) for column in schema.columns),
    ]
    content = io.BytesIO()
    file = pa.Table.from_pylist(rows, schema=pa.schema(fields))
    pq.write_table(file, content, compression="zstd", write_page_checksum=True, store_schema=False)
    return content.getvalue()


def _slice_row(schema: TableSchema, each: Event) -> dict[str, object]:
    others = [name for name in schema.names if name not in schema.key]
    absent = [name for name in others if name not in each.values and schema.key]
    row: dict[str, object] = {
        OPERATION: each.operation.value,
        VERSION: each.version,
        COMMIT_TIME: commit_time(each.version),
        TRANSACTION: 1,
        ABSENT: absent or None,
    }
    row |= dict(zip(schema.key, each.id, strict=False)) | each.values
    return row | {OLD_ID_PREFIX + name: value for name, value in zip(schema.key, each.old_id, strict=False)}


@dataclass
class Feed:
    """Puts slices into the object store and numbers them, as consumer and metadata store do."""

    store: ObjectStore
    table: LakeTable
    next_number: int = 1
    truncated_at: str = ""
    written: list[SliceInput] = field(default_factory=list)

    def slice(self, events: Sequence[Event], *, schema: TableSchema | None = None) -> SliceInput:
        schema = schema or self.table.schema
        number = self.next_number
        self.next_number += 1
        content = slice_bytes(schema, events)
        digest = hashlib.sha256(content).hexdigest()
        key = slice_key(self.table.name, 0, f"{number:08d}-{digest[:16]}.parquet")
        self.store.put_if_absent(key, content)
        made = SliceInput(
            number=number, slice_id=f"slice-{number}", key=key, rows=len(events), sha256=digest, schema=schema
        )
        self.written.append(made)
        return made

    def claim(
        self, *slices: Sequence[Event], schema: TableSchema | None = None, ranges: tuple[KeyRange, ...] = ()
    ) -> ClaimWork:
        """One claim of one slice per argument and schema; an argument without events is an empty slice."""
        first = self.next_number
        made = []
        for events in slices:
            for lacking in sorted({each.lacking for each in events}, key=sorted):
                part = [each for each in events if each.lacking == lacking]
                made.append(self.slice(part, schema=_without(schema or self.table.schema, lacking)))
            if not events:
                self.next_number += 1
        events = [each for part in slices for each in part]
        truncates = [each.version for each in events if each.operation is Operation.TRUNCATE]
        self.truncated_at = max([self.truncated_at, *truncates])
        work = claim_of(made, events, first, self.next_number - 1, ranges)
        return replace(work, truncated_at=self.truncated_at)


def _without(schema: TableSchema, lacking: frozenset[str]) -> TableSchema:
    return replace(schema, columns=tuple(column for column in schema.columns if column.name not in lacking))


def claim_of(
    made: Sequence[SliceInput], events: Sequence[Event], first: int, last: int, ranges: tuple[KeyRange, ...] = ()
) -> ClaimWork:
    others = {name for content in made for name in content.schema.names if name not in content.schema.key}
    silent = (Operation.DELETE, Operation.TRUNCATE)
    return ClaimWork(
        claim_id=f"claim-{first}-{last}",
        first_number=first,
        last_number=last,
        slices=tuple(made),
        partial_rows=sum(
            others - {*each.values, *each.lacking} != set() for each in events if each.operation not in silent
        ),
        key_changes=sum(each.operation is Operation.MOVE for each in events),
        truncates=sum(each.operation is Operation.TRUNCATE for each in events),
        key_ranges=ranges,
    )


def lake_table_rows(store: ObjectStore, table: LakeTable) -> list[dict[str, Any]]:
    """All rows, hidden ones too, read without Spark, which wrote them."""
    return delta_rows(delta_url(store, lake_key(table.name)))


def rows_by_spark(session: SparkSession, store: ObjectStore, table: LakeTable) -> list[dict[str, Any]]:
    """The same as Spark reads them. The other reader finds no path that holds a percent sign."""
    frame = session.read.format("delta").load(store.spark_url(lake_key(table.name)))
    return [row.asDict(recursive=True) for row in frame.collect()]


def by_id(table: LakeTable, rows: list[dict[str, Any]]) -> RowsById:
    """Fails on an id that is there twice."""
    found = {tuple(row[name] for name in table.schema.key): row for row in rows}
    assert len(found) == len(rows)
    return found


def values_by_id(table: LakeTable, rows: list[dict[str, Any]]) -> dict[tuple[object, ...], tuple[object, ...]]:
    """The source's columns beside the id."""
    others = [name for name in table.schema.names if name not in table.schema.key]
    return {id_: tuple(row[name] for name in others) for id_, row in by_id(table, rows).items()}


def lake_rows(store: ObjectStore, table: LakeTable) -> RowsById:
    return by_id(table, lake_table_rows(store, table))


def lake_values(store: ObjectStore, table: LakeTable) -> dict[tuple[object, ...], tuple[object, ...]]:
    return values_by_id(table, lake_table_rows(store, table))
