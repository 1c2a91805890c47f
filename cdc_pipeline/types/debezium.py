"""Debezium's fields and JSON values -> the columns and Arrow values that the source itself would deliver."""

import json
import re
import uuid
from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import md5
from typing import Never, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.errors import UsageError
from cdc_pipeline.record import Column
from cdc_pipeline.types.array_text import parse_lists
from cdc_pipeline.types.debezium_declared import declared_renderer
from cdc_pipeline.types.debezium_text import CONNECT_DECIMAL, Field, Render
from cdc_pipeline.types.declared import declared_type
from cdc_pipeline.types.masks import either
from cdc_pipeline.types.table import ARRAY, ColumnType, resolve
from cdc_pipeline.types.text import Parsed, parse_foreign_text
from cdc_pipeline.types.unfit import Unfit
from cdc_pipeline.types.whole_columns import as_column, parse_whole_column

PLACEHOLDER = "__debezium_unavailable_value"
_OCTETS = PLACEHOLDER.encode()
_ENCODED = b64encode(_OCTETS).decode()
_MAP_PLACEHOLDER = {PLACEHOLDER: PLACEHOLDER}
_MAP_TEXT = json.dumps(_MAP_PLACEHOLDER, separators=(",", ":"))
"""Of a map that is sent as a text, as PostgreSQL's `hstore` is by default."""
PLACEHOLDER_TEXTS = (PLACEHOLDER, _ENCODED, _OCTETS.hex(), f"\\x{_OCTETS.hex()}", _MAP_TEXT)
_ELEMENT_PLACEHOLDERS = (
    [PLACEHOLDER],
    [_ENCODED],
    list(_OCTETS),
    [str(uuid.UUID(bytes=md5(_OCTETS, usedforsecurity=False).digest(), version=3))],
)

Text = TypeVar("Text")
_JSON_TYPES = frozenset({"json", "jsonb"})
_NO_JSON = re.compile("NaN|Infinity")
_SMALL = re.compile(r"-?[0-9]{1,4}")

_BY_NAME = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.IsoDate": "date",
    "org.apache.kafka.connect.data.Date": "date",
    "io.debezium.time.Time": "time",
    "io.debezium.time.MicroTime": "time",
    "io.debezium.time.NanoTime": "time",
    "io.debezium.time.IsoTime": "time",
    "org.apache.kafka.connect.data.Time": "time",
    "io.debezium.time.ZonedTime": "timetz",
    "io.debezium.time.Timestamp": "timestamp",
    "io.debezium.time.MicroTimestamp": "timestamp",
    "io.debezium.time.NanoTimestamp": "timestamp",
    "io.debezium.time.IsoTimestamp": "timestamp",
    "org.apache.kafka.connect.data.Timestamp": "timestamp",
    "io.debezium.time.ZonedTimestamp": "timestamptz",
    "io.debezium.time.Interval": "interval",
    "io.debezium.data.Json": "json",
    "io.debezium.data.Uuid": "uuid",
    "io.debezium.data.Xml": "xml",
    "io.debezium.data.Ltree": "ltree",
    "io.debezium.data.VariableScaleDecimal": "numeric",
    "io.debezium.data.geometry.Point": "point",
}
_BY_TYPE = {
    "int8": "int2",
    "int16": "int2",
    "int32": "int4",
    "int64": "int8",
    "float": "float4",
    "float32": "float4",
    "double": "float8",
    "float64": "float8",
    "boolean": "boolean",
    "string": "text",
    "bytes": "bytea",
    "struct": "json",
}


def debezium_column(field: Field) -> Column:
    """Returns the column of one field of a `before` or `after` schema. Raises UsageError for an invalid field."""
    name = field.get("field")
    if not isinstance(name, str):
        raise _refused(field)
    return Column(name=name, type=_type_of(field))


def parse_debezium(values: Sequence[object], type_name: str, field: Field | None) -> Parsed:
    """Parses JSON values, best read with `json.loads(line, parse_float=Decimal)`, which keeps every digit.

    `type_name`: from `columns` in pipeline.yml or from `debezium_column`. `field`: how the value is encoded, such as
    the unit of a time as a number, or a decimal as bytes. Without it numbers are microseconds (milliseconds for types
    with precision 0 to 3), or days for a date; bytes and bits are base64; decimals are numbers, digits or
    `{scale, value}`. A value that is not of the type is unfit, never an error.
    """
    if field is None or not (field.get("name") or field.get("type") == "bytes"):
        column = as_column(values, type_name)
        whole = None if column is None else parse_whole_column(column, type_name)
        if whole is not None:
            return Parsed(values=whole, unfit=None)
    return parse_one_by_one(values, type_name, field)


def parse_one_by_one(values: Sequence[object], type_name: str, field: Field | None) -> Parsed:
    """Does the same as `parse_debezium`, value by value."""
    declared = declared_type(type_name)
    column_type = resolve(declared)
    if column_type.element is None:
        return _parse_scalars(values, column_type, _renderer(declared, field))
    items = None if field is None else field.get("items")
    render = _renderer(column_type.element.name, items)
    texts, unfit = _rendered(values, lambda value: _element_texts(value, render))
    lists = pa.array(texts, pa.list_(pa.string()))
    parsed, unfit_rows = parse_lists(lists, column_type.element, _parse_elements)
    return Parsed(values=parsed, unfit=either(unfit, unfit_rows))


def is_placeholder(value: object) -> bool:
    """Whether the value is Debezium's placeholder for an unchanged value that the source did not send."""
    match value:
        case str():
            return value in PLACEHOLDER_TEXTS
        case list():
            return value in _ELEMENT_PLACEHOLDERS
        case dict():
            return value == _MAP_PLACEHOLDER
    return False


def _renderer(type_name: str, field: Field | None) -> Render:
    """Returns the function for a type. JSON lacks NaN and infinity, which other formats of files have."""
    render = declared_renderer(type_name, field)
    if type_name not in _JSON_TYPES:
        return render

    def of_json(value: object) -> str:
        text = render(value)
        if _NO_JSON.search(text) and not isinstance(value, str):
            json.loads(text, parse_constant=_unfit)
        return text

    return of_json


def _unfit(_constant: str) -> Never:
    raise Unfit


def _type_of(field: Field) -> str:
    name, kind = field.get("name"), field.get("type")
    if not isinstance(name, str | None) or not isinstance(kind, str | None):
        raise _refused(field)
    if name == CONNECT_DECIMAL:
        return _numeric_type(field)
    if name in _BY_NAME:
        return _BY_NAME[name]
    if kind == "array" and isinstance(field.get("items"), dict):
        element = _type_of(field["items"])
        return "json" if element.endswith(ARRAY) else element + ARRAY
    if kind == "map":
        return "hstore" if _holds_strings(field) else "json"
    if kind not in _BY_TYPE:
        raise _refused(field)
    return _BY_TYPE[kind]


def _numeric_type(field: Field) -> str:
    """The numeric type of a Kafka Connect decimal. Precision and scale are integers, mostly written as texts."""
    parameters = field.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise _refused(field)
    precision, scale = parameters.get("connect.decimal.precision"), parameters.get("scale")
    if any(number is not None and _SMALL.fullmatch(str(number)) is None for number in (precision, scale)):
        raise _refused(field)
    return f"numeric({precision},{scale or 0})" if precision else "numeric"


def _holds_strings(field: Field) -> bool:
    parts = [field.get(part) for part in ("keys", "values")]
    return all(isinstance(part, dict) and part.get("type") == "string" for part in parts)


def _parse_scalars(values: Sequence[object], column_type: ColumnType, render: Render) -> Parsed:
    texts, unfit = _rendered(values, lambda value: _encodable(render(value)))
    parsed = parse_foreign_text(pa.array(texts, pa.string()), column_type)
    return Parsed(values=parsed.values, unfit=either(unfit, parsed.unfit))


def _rendered(values: Sequence[object], render: Callable[[object], Text]) -> tuple[list[Text | None], pa.Array | None]:
    texts: list[Text | None] = []
    unfit = []
    for value in values:
        try:
            texts.append(None if value is None else render(value))
        except ValueError:
            unfit.append(len(texts))
            texts.append(None)
    if not unfit:
        return texts, None
    return texts, pc.is_in(pa.array(range(len(texts))), pa.array(unfit))


def _element_texts(value: object, render: Render) -> list[str | None]:
    """The texts of the elements of a one-dimensional list."""
    if not isinstance(value, list) or any(isinstance(element, list) for element in value):
        raise Unfit
    return [None if element is None else _encodable(render(element)) for element in value]


def _encodable(text: str) -> str:
    """Returns the text. Raises UnicodeEncodeError, a ValueError, for half of a surrogate pair, which UTF-8 lacks."""
    if not text.isascii():
        text.encode()
    return text


def _parse_elements(strings: pa.Array, element: ColumnType) -> tuple[pa.Array, pa.Array | None]:
    parsed = parse_foreign_text(strings, element)
    return parsed.values, parsed.unfit


def _refused(field: Field) -> UsageError:
    return UsageError(
        f"an invalid field of Debezium's schema: {str(dict(field))[:200]}",
        expected="a name, and a type of Kafka Connect such as int32, string, bytes or array",
        remedy="declare the column under `columns:`",
    )
