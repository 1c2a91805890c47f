"""The Spark driver's first claims, on a scratch table: whoever comes next finds its classes loaded and compiled."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa

from cdc_pipeline.areas import STAGING_AREA, slice_key
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable, SliceInput
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
from cdc_pipeline.steps import step
from cdc_pipeline.wiring import Pipeline
from cdc_pipeline.wiring.adapters import open_lake, open_object_store

_ROUNDS = 4
_ROWS = 200
_COLUMNS = (("id", "int8"), ("name", "text"), ("amount", "numeric(12,2)"), ("created_at", "timestamptz"))


def warm_up(pipeline: Pipeline) -> None:
    """Whole and partial rows, inserts, updates and deletes, by the way that every slice takes. Leaves nothing."""
    objects = open_object_store(pipeline.settings, f"{STAGING_AREA}/.warm-up-{pipeline.new_id().hex}")
    table = LakeTable(
        name=TableName(database="warm", schema="up", table="scratch"),
        table_uuid=str(pipeline.new_id()),
        schema=TableSchema(columns=tuple(Column(name=name, type=type_) for name, type_ in _COLUMNS), key=("id",)),
    )
    lake = open_lake(pipeline.endpoints.spark_url, objects, pipeline.on_step)
    try:
        lake.create_table(table)
        for number, events in enumerate(_events(table.schema), start=1):
            lake.upsert(table, _claim(pipeline, objects, table, number, events))
    finally:
        lake.close()
        for found in objects.list_prefix(""):
            with step(pipeline.on_step, "scratch.delete"):
                objects.delete(found.key)


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


def _claim(pipeline: Pipeline, objects: ObjectStore, table: LakeTable, number: int, events: pa.Table) -> ClaimWork:
    file = write_slice_file(events, table.schema)
    key = slice_key(table.name, 0, f"{number}.parquet")
    with step(pipeline.on_step, "scratch.put"):
        objects.put_if_absent(key, file.content)
    content = SliceInput(
        number=number, slice_id=file.sha256, key=key, rows=file.rows, sha256=file.sha256, schema=table.schema
    )
    return ClaimWork(
        claim_id=str(pipeline.new_id()),
        first_number=number,
        last_number=number,
        slices=(content,),
        partial_rows=file.partial_rows,
    )
