"""Values of records as Arrow's columns have them, as a line of JSON has them, and as they are read of it again."""

import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Literal, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_pipeline.sources.debezium.one_line import parsed_json
from cdc_pipeline.types import Parsed, decimal_texts, parse_debezium, parse_whole_column

_MICROSECOND = timedelta(microseconds=1)
_NOT_HELD = (OverflowError, ValueError, KeyError)
_AS_JSON = frozenset({str, int, bool, type(None)})
"""Types whose values are the same before and after JSON."""
_RENDERED = frozenset({bytes, datetime, date, time, timedelta, Decimal, UUID})

Column: TypeAlias = "pa.Array | list[object]"
"""Values of records: as an Arrow array, or as JSON has them."""


def taken(column: Column, rows: npt.NDArray[np.int64]) -> Column:
    """Returns the values of these rows."""
    return [column[row] for row in rows.tolist()] if isinstance(column, list) else column.take(pa.array(rows))


def json_values(column: Column) -> list[object]:
    """Returns the values as JSON has them."""
    return column if isinstance(column, list) else as_json(plain_values(column))


def json_line(record: object) -> bytes:
    return json.dumps(record, default=_plain, separators=(",", ":")).encode()


def plain_values(column: pa.Array) -> Sequence[object]:
    """Returns the values of a column as a line of JSON is made of them. Times and decimals become texts.

    So do bytes, as PostgreSQL prints them: what else is in a line may be base64, or hexadecimal digits of AWS DMS. So
    does a nested value that Python cannot hold, such as a date after the year 9999. A byte of a text that is not
    UTF-8 becomes half a surrogate pair, which no type of the lake holds.
    """
    kind = column.type
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        column = _as_texts(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()]
    try:
        values: list[object] = column.to_pylist(maps_as_pydicts=_maps(kind))
    except _NOT_HELD:
        values = [_held(value) for value in column]
    return values


def readable_column(column: pa.Array) -> Column:
    """Returns a column that Arrow's functions can compute with, or its values as JSON has them.

    They know few nested types, and expect every text to be UTF-8; files may have others.
    """
    if pa.types.is_nested(column.type):
        return json_values(column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return json_values(column)
    return column


def _as_texts(column: pa.Array) -> pa.Array:
    """Returns times and decimals as texts; times of a zone that nobody knows in UTC."""
    if pa.types.is_decimal(column.type):
        return decimal_texts(column)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return column.cast(pa.timestamp(column.type.unit, "UTC")).cast(pa.string())


def _maps(kind: pa.DataType) -> Literal["strict"] | None:
    """Returns how maps become values: objects, or pairs if a key is no text."""
    if pa.types.is_map(kind) and not pa.types.is_string(kind.key_type):
        return None
    parts = (kind.field(number).type for number in range(kind.num_fields))
    return "strict" if all(_maps(part) for part in parts) else None


def _held(value: pa.Scalar) -> object:
    """Returns a value in Python's types: what is nested part by part, and as text what Python cannot hold."""
    try:
        return value.as_py(maps_as_pydicts=_maps(value.type))
    except _NOT_HELD:
        pass
    if isinstance(value, pa.StructScalar):
        return {field.name: _held(value[number]) for number, field in enumerate(value.type)}
    if isinstance(value, pa.MapScalar):
        return [(_held(entry[0]), _held(entry[1])) for entry in value.values]
    if isinstance(value, pa.ListScalar):
        return [_held(part) for part in value.values]
    if isinstance(value, pa.StringScalar | pa.LargeStringScalar | pa.StringViewScalar):
        return value.as_buffer().to_pybytes().decode(errors="surrogateescape")
    return str(_as_texts(pa.array([value], value.type))[0])


def as_json(values: Sequence[object]) -> list[object]:
    """Returns the values as they are once they were written to JSON and read again."""
    if frozenset(map(type, values)) <= _AS_JSON:
        return list(values)
    return [value if type(value) in _AS_JSON else _as_read(value) for value in values]


def _as_read(value: object) -> object:
    if type(value) in _RENDERED:
        return _plain(value)
    if type(value) is float and isfinite(value):
        return Decimal(repr(value))
    return parsed_json(json_line(value).decode())


def parsed_column(column: Column, type_name: str) -> Parsed:
    """Returns the values in the lake's type."""
    whole = None if isinstance(column, list) else parse_whole_column(column, type_name)
    return parse_debezium(json_values(column), type_name, None) if whole is None else Parsed(values=whole, unfit=None)


def _plain(value: object) -> object:
    """Renders what JSON lacks, as Debezium's JSON writes it."""
    match value:
        case bytes():
            return b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return value // _MICROSECOND
        case Decimal():
            return f"{value:f}"
        case UUID():
            return str(value)
    message = f"a value of the type {type(value).__name__}"
    raise TypeError(message)
