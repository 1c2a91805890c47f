"""Columns of change files -> typed values, a whole column at once, where every value has its type's usual form."""

import sys
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.types.decimals import cast_decimals, decimal_texts
from cdc_pipeline.types.declared import declared_type
from cdc_pipeline.types.masks import octets_of
from cdc_pipeline.types.table import resolve
from cdc_pipeline.types.uuids import uuid_texts

_DIGITS = b"-0123456789"
_NUMBER = b"+-.0123456789Ee"
_MOMENT = b" -.0123456789:T"
_LONGEST_NUMBER, _LONGEST_MOMENT = 100, 40
_INTEGERS = frozenset({"int2", "int4", "int8", "oid"})
_FLOATS = frozenset({"float4", "float8"})
_FORMS = {
    **dict.fromkeys(_INTEGERS, (_DIGITS, 1, 20)),
    **dict.fromkeys((*_FLOATS, "numeric"), (_NUMBER, 1, _LONGEST_NUMBER)),
    "date": (_DIGITS, 10, 10),
    "timestamp": (_MOMENT, 16, _LONGEST_MOMENT),
    "timestamptz": (_MOMENT + b"+Z", 20, _LONGEST_MOMENT),
}
"""By type: the bytes and the least and most length of texts that Arrow reads as the slower code does."""
_PLAIN_NUMBER = r"^(?:-?[1-9][0-9]{0,99}(?:\.[0-9]{1,99})?|0(?:\.[0-9]{1,99})?)$"
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = (date(year, 1, 1).toordinal() - date(1970, 1, 1).toordinal() for year in (2, 9999))
"""The years 1 and 9999 are left to the slower code: an offset may move their times out of what the lake can hold."""
_LARGEST_FLOAT4, _LARGEST_FLOAT8 = 3e38, sys.float_info.max
_RENDERED = frozenset({"bit", "bytea", "hstore", "interval", "point", "time", "timetz", "varbit"})
"""Types whose texts may have another form in the lake than in a file."""
_TRUE, _FALSE = pa.array(["t", "true", "1"]), pa.array(["f", "false", "0"])
_KINDS: dict[frozenset[type], pa.DataType] = {
    frozenset({str}): pa.string(),
    frozenset({int}): pa.int64(),
    frozenset({bool}): pa.bool_(),
}
_NUMBERS = frozenset({int, Decimal})


def of_one_kind(values: Sequence[object]) -> pa.Array | None:
    """Returns texts, whole numbers or booleans of JSON as an Arrow column; None for other values, and for a mixture."""
    return _array(values, frozenset(map(type, values)) - {type(None)})


def as_column(values: Sequence[object], type_name: str) -> pa.Array | None:
    """Returns values of JSON as one Arrow column; None if they have several types, or if Arrow cannot hold one.

    Numbers of which one is not whole become their texts, unless `type_name` is that of whole numbers.
    """
    kinds = frozenset(map(type, values)) - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if Decimal in kinds and kinds <= _NUMBERS and declared_type(type_name) not in _INTEGERS:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return _array(values, kinds)


def _array(values: Sequence[object], kinds: frozenset[type]) -> pa.Array | None:
    try:
        return pa.array(values, _KINDS[kinds]) if kinds in _KINDS else None
    except (OverflowError, UnicodeEncodeError, pa.ArrowException):
        return None


def parse_whole_column(column: pa.Array, type_name: str) -> pa.Array | None:
    """Returns the typed values of a column without NULLs of its own making; None if one needs a closer look.

    `column`: texts, numbers, booleans or times, as a file has them. `type_name`: as for `parse_debezium`, and the
    values are those that it returns for the same column of JSON values without a schema.
    """
    declared = declared_type(type_name)
    column_type = resolve(declared)
    if column_type.element is not None:
        return None
    base, _, arguments = declared.removesuffix(")").partition("(")
    name = base.rpartition(".")[2]
    try:
        return _parsed(column, name, arguments, column_type.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _parsed(column: pa.Array, name: str, arguments: str, arrow: pa.DataType) -> pa.Array | None:
    if column.null_count == len(column):
        return pa.nulls(len(column), arrow)
    parse = next((parse for is_kind, parse in _KINDS_OF_COLUMNS if is_kind(column.type)), None)
    return None if parse is None else parse(column, name, arguments, arrow)


def _of_texts(texts: pa.Array, name: str, arguments: str, arrow: pa.DataType) -> pa.Array | None:
    if name == "boolean":
        return _booleans(texts)
    if name == "uuid":
        return uuid_texts(texts)
    if name == "numeric" and not pa.types.is_decimal(arrow):
        plain = not arguments and pc.all(pc.match_substring_regex(texts, _PLAIN_NUMBER), min_count=0).as_py()
        return texts if plain else None
    octets, shortest, longest = _FORMS.get(name, (b"", 0, 0))
    if name in _RENDERED or (octets and not _is_made_of(texts, octets, shortest, longest)):
        return None
    if pa.types.is_decimal(arrow):
        return cast_decimals(texts, arrow)
    return _held(texts.cast(arrow)) if octets or pa.types.is_string(arrow) else None


def _of_any_texts(column: pa.Array, name: str, arguments: str, arrow: pa.DataType) -> pa.Array | None:
    return _of_texts(column.cast(pa.string()), name, arguments, arrow)


def _of_integers(column: pa.Array, name: str, arguments: str, arrow: pa.DataType) -> pa.Array | None:
    if name in _INTEGERS or name == "float8":
        return column.cast(arrow)
    is_text = name == "numeric" or (name not in _RENDERED and pa.types.is_string(arrow))
    return _of_any_texts(column, name, arguments, arrow) if is_text else None


def _of_floats(column: pa.Array, name: str, arguments: str, arrow: pa.DataType) -> pa.Array | None:
    if name == "numeric" and pa.types.is_decimal(arrow):
        return _of_any_texts(column.cast(pa.float64()), name, arguments, arrow)
    narrows = name == "float4" and column.type != pa.float32()
    return column.cast(arrow) if name in _FLOATS and not narrows else None


def _of_booleans(column: pa.Array, name: str, arguments: str, arrow: pa.DataType) -> pa.Array | None:
    del arguments, arrow
    return column if name == "boolean" else None


def _of_octets(column: pa.Array, name: str, arguments: str, arrow: pa.DataType) -> pa.Array | None:
    del arguments
    return column.cast(arrow) if name == "bytea" else None


def _of_decimals(column: pa.Array, name: str, arguments: str, arrow: pa.DataType) -> pa.Array | None:
    if pa.types.is_decimal(arrow):
        return column.cast(arrow)
    return _of_texts(decimal_texts(column), name, arguments, arrow)


def _of_moments(column: pa.Array, name: str, arguments: str, arrow: pa.DataType) -> pa.Array | None:
    """Times with a zone are for `timestamptz` alone, and times without one for `timestamp`."""
    kind = column.type
    same = (
        (name == "date" and pa.types.is_date32(kind))
        or (name == "timestamp" and pa.types.is_timestamp(kind) and kind.tz is None)
        or (name == "timestamptz" and pa.types.is_timestamp(kind) and kind.tz is not None)
    )
    return _held(column.cast(arrow)) if same else _of_any_texts(column, name, arguments, arrow)


_KINDS_OF_COLUMNS: tuple[tuple[Callable[[pa.DataType], bool], Callable[..., pa.Array | None]], ...] = (
    (pa.types.is_string, _of_texts),
    (pa.types.is_large_string, _of_any_texts),
    (pa.types.is_string_view, _of_any_texts),
    (pa.types.is_integer, _of_integers),
    (pa.types.is_floating, _of_floats),
    (pa.types.is_boolean, _of_booleans),
    (pa.types.is_binary, _of_octets),
    (pa.types.is_large_binary, _of_octets),
    (pa.types.is_decimal, _of_decimals),
    (pa.types.is_temporal, _of_moments),
)


def _booleans(texts: pa.Array) -> pa.Array | None:
    lower = pc.utf8_lower(texts)
    true, false = (pc.is_in(lower, known) for known in (_TRUE, _FALSE))
    known = pc.or_(pc.or_(true, false), texts.is_null())
    return pc.if_else(texts.is_null(), None, true) if pc.all(known, min_count=0).as_py() else None


def _is_made_of(texts: pa.Array, octets: bytes, shortest: int, longest: int) -> bool:
    """Returns whether every text has a length in these bounds, and only bytes of `octets`."""
    found = pc.min_max(pc.binary_length(texts)).as_py()
    if not shortest <= found["min"] <= found["max"] <= longest:
        return False
    return not octets_of(texts).translate(None, octets)


def _held(values: pa.Array) -> pa.Array | None:
    """Returns the values if they are no infinite numbers, and no times outside the years 2 to 9998."""
    if pa.types.is_floating(values.type):
        largest = pa.scalar(_LARGEST_FLOAT4 if values.type == pa.float32() else _LARGEST_FLOAT8, values.type)
        return values if pc.all(pc.less_equal(pc.abs(values), largest), min_count=0).as_py() else None
    if not pa.types.is_temporal(values.type):
        return values
    is_date = pa.types.is_date(values.type)
    found = pc.min_max(values.cast(pa.int32() if is_date else pa.int64())).as_py()
    unit = 1 if is_date else _DAY
    return values if _FIRST_DAY * unit <= found["min"] and found["max"] < _LAST_DAY * unit else None
