"""Warms up the Spark driver: applies claims to a scratch table, which loads and compiles its classes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import pyarrow as pa

from cdc_pipeline.areas import slice_key
from cdc_pipeline.lake.protocol import ClaimWork, Lake, LakeTable, SliceInput
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    OPERATION,
    VERSION,
    Column,
    Operation,
    TableName,
    TableSchema,
    encode_version,
)
from cdc_pipeline.slice_file import event_schema, write_slice_file
from cdc_pipeline.steps import OnStep, step

_ROUNDS = 2
_ROWS = 200
_COLUMNS = (("id", "int8"), ("name", "text"), ("amount", "numeric(12,2)"), ("created_at", "timestamptz"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """`objects`: a part of the bucket that nothing else uses. `open_lake`: a lake on it, closed when the block ends."""

    objects: ObjectStore
    open_lake: Callable[[], AbstractContextManager[Lake]]
    new_id: Callable[[], UUID]
    on_step: OnStep

    def run(self) -> None:
        """Applies inserts, updates and deletes of whole and partial rows as slices, then deletes all objects."""
        table = LakeTable(
            name=TableName(database="warm", schema="up", table="scratch"),
            table_uuid=str(self.new_id()),
            schema=TableSchema(columns=tuple(Column(name=name, type=type_) for name, type_ in _COLUMNS), key=("id",)),
        )
        try:
            with self.open_lake() as lake:
                lake.create_table(table)
                for number, events in enumerate(_events(table.schema), start=1):
                    lake.upsert(table, self._claim(table, number, events))
        finally:
            for found in self.objects.list_prefix(""):
                with step(self.on_step, "scratch.delete"):
                    self.objects.delete(found.key)

    def _claim(self, table: LakeTable, number: int, events: pa.Table) -> ClaimWork:
        file = write_slice_file(events, table.schema)
        key = slice_key(table.name, 0, f"{number}.parquet")
        with step(self.on_step, "scratch.put"):
            self.objects.put_if_absent(key, file.content)
        content = SliceInput(
            number=number, slice_id=file.sha256, key=key, rows=file.rows, sha256=file.sha256, schema=table.schema
        )
        return ClaimWork(
            claim_id=str(self.new_id()),
            first_number=number,
            last_number=number,
            slices=(content,),
            partial_rows=file.partial_rows,
        )


def _events(schema: TableSchema) -> Iterator[pa.Table]:
    fields = event_schema(schema)
    for number in range(_ROUNDS):
        partial = number % 2 == 1
        columns = {
            OPERATION: [Operation.UPDATE if partial else Operation.INSERT] * (_ROWS - 1) + [Operation.DELETE],
            VERSION: [encode_version(number + 1, row + 1) for row in range(_ROWS)],
            COMMIT_TIME: [datetime(2024, 1, 1, tzinfo=UTC)] * _ROWS,
            ABSENT: [["name"] if partial else None] * _ROWS,
            "id": list(range(_ROWS)),
            "name": [None if partial else "warm"] * _ROWS,
        }
        arrays = [pa.array(columns.get(field.name, [None] * _ROWS), type=field.type) for field in fields]
        yield pa.table(arrays, schema=fields)
