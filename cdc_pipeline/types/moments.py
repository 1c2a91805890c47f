"""Dates and timestamps as PostgreSQL prints them -> Arrow values, and a mask of those outside the years 1 to 9999."""

import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.types.masks import either, without

_OUTSIDE = r"^-?infinity$|^[0-9]{5,}-| BC$"
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
    try:
        return strings.cast(arrow), None
    except pa.ArrowInvalid:
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
