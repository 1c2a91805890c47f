"""How the fast lake describes its columns, and how its rows follow a changed source."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.new_shape import delta_fields
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.reshaping import Reshaper, Reshaping
from cdc_pipeline.lake.shape import Shape, ShapeChange
from cdc_pipeline.lake.table_ddl import VECTORS
from cdc_pipeline.record import DELETED, STATE, VERSION
from cdc_pipeline.types import TABLE

_DELTA = {"BIGINT": "long", "INT": "integer", "SMALLINT": "short", "FLOAT": "float", "DOUBLE": "double"}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_ARROW = {rule.spark: rule.arrow for rule in TABLE}
OWN = {VERSION: "STRING", DELETED: "BOOLEAN", STATE: "STRING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReshaper(Reshaper):
    """Needs no session: `files` rewrites the rows for the new metadata."""

    session: SparkSession = field(init=False)
    files: Callable[[LakeTable, Reshaping, Action], list[Action]]

    def actions(self, table: LakeTable, work: Reshaping) -> list[Action]:
        metadata = described_again(work)
        return [{"metaData": metadata}, *(self.files(table, work, metadata) if work.rewrites else ())]


def described(shape: Shape, table_uuid: str, *, vectors: bool) -> list[Action]:
    types = {column.name: column.type for column in shape.columns} | OWN
    fields = [
        {"name": name, "type": _delta_type(type_), "nullable": True, "metadata": {}} for name, type_ in types.items()
    ]
    metadata = {
        "id": table_uuid,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {VECTORS: "true" if vectors else "false", **shape.properties()},
    }
    features = ["timestampNtz"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    return [{"protocol": protocol}, {"metaData": metadata}]


def described_again(shaped: Reshaping) -> Action:
    (_, after) = described(shaped.change.after, "", vectors=shaped.vectors)
    configuration = {**shaped.configuration, **after["metaData"]["configuration"]}
    return {**shaped.metadata, "schemaString": after["metaData"]["schemaString"], "configuration": configuration}


def stored_schema(metadata: Action) -> pa.Schema:
    return pa.schema([pa.field(name, _arrow_type(type_)) for name, type_ in delta_fields(metadata)])


def reshaped(rows: pa.Table, change: ShapeChange, schema: pa.Schema) -> pa.Table:
    """Under their new names, with new columns filled; `schema` is that of the lake afterwards."""
    after = {column.name: column for column in change.after.columns}
    found = dict(zip(rows.column_names, rows.columns, strict=True))
    found[STATE] = pa.array([_state(text, change) for text in found[STATE].to_pylist()], pa.string())
    columns = []
    for place in schema:
        was = change.sources[place.name] if place.name in after else place.name
        value = None if was is not None else after[place.name].missing_value
        column = found[was] if was is not None else pa.array([value] * rows.num_rows)
        columns.append(pc.cast(column, place.type))
    return pa.table(columns, schema=schema)


def _state(text: str | None, change: ShapeChange) -> str | None:
    """What is kept by the columns' names."""
    if text is None:
        return None
    known = json.loads(text)
    names = {name: change.renamed.get(name, name) for name in known["columns"] if name not in change.removed}
    for part in ("versions", "lacked"):
        known[part] = {
            change.renamed.get(name, name): at for name, at in known[part].items() if name not in change.removed
        }
    return json.dumps(known | {"columns": list(names.values())})


def _delta_type(spark: str) -> Any:
    if spark.startswith("ARRAY<"):
        return {"type": "array", "elementType": _delta_type(spark[6:-1]), "containsNull": True}
    return _DELTA.get(spark, spark.lower())


def _arrow_type(spark: str) -> pa.DataType:
    if spark.startswith("ARRAY<"):
        return pa.list_(_arrow_type(spark[6:-1]))
    decimal = _DECIMAL.fullmatch(spark)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _ARROW[spark]
