"""PostgreSQL's text of a column -> typed Arrow values, and a mask of those that do not fit."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.types.array_text import parse_arrays
from cdc_pipeline.types.decimals import cast_decimals, parse_decimals
from cdc_pipeline.types.masks import either, rows_refused, without
from cdc_pipeline.types.table import ColumnType

_SHOWN_CHARACTERS = 120
_NOT_HEXADECIMAL = 0xFF
_HEX_PREFIX = "\\x"
_REFUSED = "not of the type"
TRUE, FALSE = ("t", "1"), ("f", "0")
_TRUE, _FALSE = pa.array(TRUE), pa.array(FALSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """`unfit`: mask of the values that were set to NULL because the type cannot hold them."""

    values: pa.Array
    unfit: pa.Array | None


def parse_text(texts: pa.Array, column_type: ColumnType) -> Parsed:
    """Parses text in PostgreSQL's output format, or the same as unchecked bytes; at most 2 GiB per call.

    Expects DateStyle ISO, IntervalStyle postgres, bytea_output hex, extra_float_digits 1 and time zone UTC.
    Raises DecodeError for text that is not a value of the type.
    """
    if pa.types.is_string_view(texts.type) and _is_number(column_type.arrow):
        try:
            return Parsed(values=_numbers(texts, column_type.arrow), unfit=None)
        except pa.ArrowInvalid:
            pass  # The slower code below finds the invalid values.
    strings, undecodable = _valid_text(texts)
    try:
        values, unfit = _parse_strings(strings, column_type)
    except pa.ArrowInvalid as error:
        raise _malformed(strings, column_type) from error
    return Parsed(values=values, unfit=either(undecodable, unfit))


def parse_foreign_text(texts: pa.Array, column_type: ColumnType) -> Parsed:
    """The same for text that PostgreSQL did not print: what is not a value of the type is unfit, not an error."""
    try:
        return parse_text(texts, column_type)
    except DecodeError:
        strings, undecodable = _valid_text(texts)
        refused = rows_refused(strings, lambda part: _parse_strings(part, column_type))
        values, unfit = _parse_strings(without(strings, refused), column_type)
        return Parsed(values=values, unfit=either(either(undecodable, refused), unfit))


def _is_number(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_decimal(arrow))


def _numbers(views: pa.Array, arrow: pa.DataType) -> pa.Array:
    return cast_decimals(views.cast(pa.string()), arrow) if pa.types.is_decimal(arrow) else views.cast(arrow)


def _parse_strings(strings: pa.Array, column_type: ColumnType) -> tuple[pa.Array, pa.Array | None]:
    arrow = column_type.arrow
    if column_type.element is not None:
        delimiter = ";" if column_type.element.name == "box" else ","
        return parse_arrays(strings, column_type.element, delimiter, _parse_element)
    if pa.types.is_decimal(arrow):
        return parse_decimals(strings, arrow)
    if pa.types.is_date(arrow):
        return parse_dates(strings)
    if pa.types.is_timestamp(arrow):
        return parse_timestamps(strings) if arrow.tz is None else parse_zoned_timestamps(strings)
    return _parse_everywhere_fitting(strings, arrow), None


def _parse_everywhere_fitting(strings: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Parses types for which every value of the source fits."""
    if pa.types.is_boolean(arrow):
        return _parse_booleans(strings)
    if pa.types.is_binary(arrow):
        return _parse_bytea(strings)
    return strings.cast(arrow)


def _parse_element(strings: pa.Array, element: ColumnType) -> tuple[pa.Array, pa.Array | None]:
    parsed = parse_text(strings, element)
    return parsed.values, parsed.unfit


def _valid_text(texts: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Returns `pa.string()` values and a mask. Text that is not UTF-8 becomes NULL, and true in the mask."""
    octets = texts.cast(pa.binary())
    try:
        return octets.cast(pa.string()), None
    except pa.ArrowInvalid:
        undecodable = rows_refused(octets, lambda part: part.cast(pa.string()))
    return without(octets, undecodable).cast(pa.string()), undecodable


def _parse_booleans(strings: pa.Array) -> pa.Array:
    """Parses `t` and `f`, and a bit, which Debezium sends as a boolean."""
    values = pc.is_in(strings, _TRUE)
    _require(pc.or_(pc.or_(values, pc.is_in(strings, _FALSE)), strings.is_null()))
    return without(values, strings.is_null())


def _parse_bytea(strings: pa.Array) -> pa.Array:
    r"""Parses `\x` and hexadecimal digits of all values at once, on the column's own buffer."""
    _require(pc.starts_with(strings, _HEX_PREFIX))
    filled = pc.fill_null(strings, _HEX_PREFIX)
    _, offset_buffer, data_buffer = filled.buffers()
    ends = np.frombuffer(offset_buffer or bytes(4), np.int32)[filled.offset : filled.offset + len(filled) + 1]
    text = np.frombuffer(data_buffer or b"", np.uint8)[ends[0] : ends[-1]]
    is_digit = np.ones(len(text), np.bool_)
    prefixes = ends[:-1] - ends[0]
    is_digit[prefixes] = is_digit[prefixes + 1] = False
    nibbles = _hexadecimal_values()[text[is_digit]]
    if (np.diff(ends) % 2).any() or (nibbles == _NOT_HEXADECIMAL).any():
        raise pa.ArrowInvalid(_REFUSED)
    data = nibbles[0::2] << 4 | nibbles[1::2]
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(np.diff(ends) // 2 - 1, dtype=np.int32)))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return without(pa.Array.from_buffers(pa.binary(), len(strings), buffers), strings.is_null())


def _hexadecimal_values() -> npt.NDArray[np.uint8]:
    values = np.full(256, _NOT_HEXADECIMAL, np.uint8)
    for value, digit in enumerate(b"0123456789abcdef"):
        values[digit] = value
    return values


def _require(mask: pa.Array) -> None:
    """Raises ArrowInvalid, as Arrow's casts do, unless the mask is true for every value that is not NULL."""
    if not pc.all(mask, min_count=0).as_py():
        raise pa.ArrowInvalid(_REFUSED)


def _malformed(strings: pa.Array, column_type: ColumnType) -> DecodeError:
    refused = rows_refused(strings, lambda part: _parse_strings(part, column_type))
    first = strings[pc.index(refused, value=True).as_py()].as_py()
    shown = repr(first)[:_SHOWN_CHARACTERS]
    return DecodeError(
        f"the text {shown}",
        expected=f"a value of type {column_type.name} as PostgreSQL prints it",
        remedy="check that the column has the type that it had when the row was written",
    )


_OUTSIDE = r"^-?infinity$|^[0-9]{5,}-|^0000-| BC$"
_ZONED = (
    r"^(?P<stamp>[0-9]{4}-[0-9: .-]+?)"
    r"(?P<sign>[+-])(?P<hours>[0-9]{2})(?::(?P<minutes>[0-9]{2}))?(?::(?P<seconds>[0-9]{2}))?$"
)
_FIRST_MICROSECOND = -62_135_596_800_000_000
_LAST_MICROSECOND = 253_402_300_799_999_999
_SECOND = 1_000_000


def parse_dates(strings: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    return _parse_inside(strings, pa.date32())


def parse_timestamps(strings: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    return _parse_inside(strings, pa.timestamp("us"))


def parse_zoned_timestamps(strings: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Converts to UTC. An offset can move a value out of the years 1 to 9999, which makes it unfit."""
    arrow = pa.timestamp("us", "UTC")
    outside = None
    try:
        instants = strings.cast(arrow).cast(pa.int64())
    except pa.ArrowInvalid:
        outside = _outside(strings)
        instants = _instants(without(strings, outside))
    moved = pc.or_(pc.less(instants, _FIRST_MICROSECOND), pc.greater(instants, _LAST_MICROSECOND))
    if pc.any(moved).as_py():
        moved = pc.fill_null(moved, fill_value=False)
        instants = without(instants, moved)
        outside = either(outside, moved)
    return instants.cast(arrow), outside


def _parse_inside(strings: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    with suppress(pa.ArrowInvalid):
        values = strings.cast(arrow)
        # Arrow has a year 0, and MySQL lets one in.
        if not pc.any(pc.less(values, pa.scalar("0001-01-01").cast(arrow))).as_py():
            return values, None
    outside = _outside(strings)
    return without(strings, outside).cast(arrow), outside


def _outside(strings: pa.Array) -> pa.Array:
    return pc.fill_null(pc.match_substring_regex(strings, _OUTSIDE), fill_value=False)


def _instants(strings: pa.Array) -> pa.Array:
    """Microseconds since 1970 UTC. Offsets are hours, hours:minutes or hours:minutes:seconds."""
    parts = pc.extract_regex(strings, _ZONED)
    if parts.null_count != strings.null_count:
        message = "not a timestamp with an offset"
        raise pa.ArrowInvalid(message)
    local = pc.struct_field(parts, "stamp").cast(pa.timestamp("us")).cast(pa.int64())
    hours, minutes, seconds = (_number(pc.struct_field(parts, name)) for name in ("hours", "minutes", "seconds"))
    offset = pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), seconds)
    signed = pc.if_else(pc.equal(pc.struct_field(parts, "sign"), "-"), pc.negate(offset), offset)
    return pc.subtract(local, pc.multiply(signed, _SECOND))


def _number(digits: pa.Array) -> pa.Array:
    """The number of a matched group; zero for a group that did not match."""
    return pc.if_else(pc.equal(digits, ""), "0", digits).cast(pa.int64())
