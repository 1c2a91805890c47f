"""Debezium's JSON values -> the text that PostgreSQL prints for the same value, type by type."""

import json
import re
import sys
from base64 import b64decode
from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from fractions import Fraction
from math import inf, isfinite, nextafter
from typing import Any

from cdc_pipeline.types.debezium_moments import (
    as_integer,
    date_text,
    interval_text,
    time_text,
    timestamp_text,
    with_nanoseconds,
    zoned_time_text,
    zoned_timestamp_text,
)
from cdc_pipeline.types.unfit import Unfit
from cdc_pipeline.types.uuids import uuid_text

Field = Mapping[str, Any]
Render = Callable[[object], str]

CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_MILLISECOND, _MICROSECOND, _NANOSECOND = 1_000_000, 1_000, 1
_TICKS = {
    "io.debezium.time.Time": _MILLISECOND,
    "io.debezium.time.Timestamp": _MILLISECOND,
    "org.apache.kafka.connect.data.Time": _MILLISECOND,
    "org.apache.kafka.connect.data.Timestamp": _MILLISECOND,
    "io.debezium.time.NanoTime": _NANOSECOND,
    "io.debezium.time.NanoTimestamp": _NANOSECOND,
}
OWN_TYPES = {
    CONNECT_DECIMAL: "numeric",
    "io.debezium.data.VariableScaleDecimal": "numeric",
    **dict.fromkeys(("io.debezium.time.Date", "org.apache.kafka.connect.data.Date"), "date"),
    **dict.fromkeys((f"io.debezium.time.{unit}Time" for unit in ("", "Micro", "Nano")), "time"),
    **dict.fromkeys((f"io.debezium.time.{unit}Timestamp" for unit in ("", "Micro", "Nano")), "timestamp"),
    "org.apache.kafka.connect.data.Time": "time",
    "org.apache.kafka.connect.data.Timestamp": "timestamp",
}
_MILLISECOND_DIGITS = ("0", "1", "2", "3")
_NOT_NUMBERS = {
    "NAN": "NaN",
    "NaN": "NaN",
    "POSITIVE_INF": "Infinity",
    "Infinity": "Infinity",
    "NEGATIVE_INF": "-Infinity",
    "-Infinity": "-Infinity",
    "nan": "NaN",
    "inf": "Infinity",
    "-inf": "-Infinity",
}
_TRUE, _FALSE = ("t", "true", "1"), ("f", "false", "0")
_DIGITS = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEXADECIMAL = "\\x"
_MOST_DIGITS = 131_072
_MOST_OCTETS = 61_500
"""Most bytes of a number: PostgreSQL allows 131,072 digits before the point and 16,383 after it."""
_ANY_DIGITS = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_FIXED_EXPONENTS = range(-4, 15)
_BITS_PER_BYTE = 8
_LARGEST_FLOAT4 = float.fromhex("0x1.fffffefffffffp127")


def renderer(type_name: str, field: Field | None) -> Render:
    """Returns the function that renders a value other than NULL. It raises ValueError if the type cannot hold it."""
    base, _, arguments = type_name.removesuffix(")").partition("(")
    match base.rpartition(".")[2]:
        case "numeric":
            return _numeric(arguments, field)
        case "bit" | "varbit" as bits:
            return _bits(int(arguments or 1) if bits == "bit" else 0)
        case name:
            known = _renders(_tick(arguments, field)).get(name)
            return known or _text_renderer(field)


def _text_renderer(field: Field | None) -> Render:
    """Returns the function for a column of texts: what the field's own type prints, since numbers may encode it."""
    own = None if field is None else OWN_TYPES.get(str(field.get("name")))
    if own is not None:
        return with_nanoseconds(renderer(own, field), _tick("", field))
    return _text_of_octets if field is not None and field.get("type") == "bytes" else _text


def _renders(tick: int) -> Mapping[str, Render]:
    return {
        "boolean": _boolean,
        **dict.fromkeys(("int2", "int4", "int8", "oid"), _integer),
        "float4": _float(_LARGEST_FLOAT4),
        "float8": _float(sys.float_info.max),
        "bytea": _bytea,
        "date": date_text,
        "interval": interval_text,
        "time": time_text(tick),
        "timetz": zoned_time_text,
        "timestamp": timestamp_text(tick),
        "timestamptz": zoned_timestamp_text(tick),
        "point": _point,
        "hstore": _hstore,
        "uuid": lambda value: uuid_text(_text(value)),
    }


def _tick(arguments: str, field: Field | None) -> int:
    """Nanoseconds per unit of a number: given by the field's name, or else by the type's precision."""
    if field is not None and field.get("name"):
        return _TICKS.get(field["name"], _MICROSECOND)
    return _MILLISECOND if arguments in _MILLISECOND_DIGITS else _MICROSECOND


def _boolean(value: object) -> str:
    """`value`: true or false, 1 or 0, or the text of one of them."""
    known = value.lower() if isinstance(value, str) else value
    if known is True or known in (1, *_TRUE):
        return "t"
    if known is False or known in (0, *_FALSE):
        return "f"
    raise Unfit


def _integer(value: object) -> str:
    """`value`: a number, or its digits as text, as files without types have it."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return str(int(value))
    return str(as_integer(value))


def _float(largest: float) -> Render:
    def text(value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            raise Unfit
        shown = str(value)
        special = _NOT_NUMBERS.get(shown)
        if special is None and not abs(float(shown)) <= largest:
            raise Unfit
        return special or shown

    return text


def _bytea(value: object) -> str:
    return "\\x" + _octets(value).hex()


def _octets(value: object) -> bytes:
    r"""`value`: base64, or `\x` and hexadecimal digits, as PostgreSQL prints bytes."""
    if not isinstance(value, str):
        raise Unfit
    if value.startswith(_HEXADECIMAL):
        return bytes.fromhex(value.removeprefix(_HEXADECIMAL))
    return b64decode(value, validate=True)


def _text_of_octets(value: object) -> str:
    return _octets(value).decode()


def _numeric(arguments: str, field: Field | None) -> Render:
    """Renders plain digits, with at least as many after the point as the type's scale."""
    scale = max(int(arguments.partition(",")[2] or 0), 0)
    encoded = field is not None and field.get("name") == CONNECT_DECIMAL
    given_scale = _given_scale(field)

    def text(value: object) -> str:
        if encoded and isinstance(value, str):
            return _plain(_decimal(_octets(value), given_scale), scale)
        if isinstance(value, dict):
            return _plain(_decimal(_octets(value.get("value")), as_integer(value.get("scale"))), scale)
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
            raise Unfit
        special = _NOT_NUMBERS.get(str(value)) if not isinstance(value, int) else None
        return special or _plain(_number(value), scale)

    return text


def _given_scale(field: Field | None) -> int:
    parameters = (field or {}).get("parameters")
    return int(parameters.get("scale") or 0) if isinstance(parameters, dict) else 0


def _number(value: float | Decimal | str) -> Decimal:
    """Raises Unfit for a text that only Python reads as a number, such as one with an underscore or a space."""
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise Unfit
    try:
        return Decimal(str(value) if isinstance(value, float) else value)
    except ArithmeticError as error:
        raise Unfit from error


def _decimal(octets: bytes, scale: int) -> Decimal:
    if not octets or len(octets) > _MOST_OCTETS:
        raise Unfit
    return Decimal(int.from_bytes(octets, signed=True)).scaleb(-scale, _ANY_DIGITS)


def _plain(number: Decimal, scale: int) -> str:
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or abs(number.adjusted()) > _MOST_DIGITS:
        raise Unfit
    number = number or number.copy_abs()
    return f"{number:.{scale}f}" if exponent >= -scale else f"{number:f}"


def _bits(length: int) -> Render:
    """Renders little-endian bytes. They lack the leading zeros of a `varbit`, so no value of that type fits."""

    def text(value: object) -> str:
        if isinstance(value, bool):
            number, size = int(value), 1
        else:
            octets = _octets(value)
            number, size = int.from_bytes(octets, "little"), len(octets)
        if number.bit_length() > length or size > -(-length // _BITS_PER_BYTE):
            raise Unfit
        return f"{number:0{length}b}"

    return text


def _point(value: object) -> str:
    """A point with a spatial reference system becomes JSON text."""
    if not isinstance(value, dict) or value.get("srid") is not None:
        return _text(value)
    return f"({_coordinate(value.get('x'))},{_coordinate(value.get('y'))})"


def _coordinate(value: object) -> str:
    """As PostgreSQL prints a float8: an exponent below 1e-4 and from 1e15 on, no point without digits after it."""
    found = float(_float(sys.float_info.max)(value))
    if not isfinite(found):
        return _NOT_NUMBERS[str(found)]
    number = _shortest(found).normalize()
    sign, digits, _ = number.as_tuple()
    exponent = number.adjusted()
    if exponent in _FIXED_EXPONENTS or not number:
        return f"{number:f}"
    first, rest = str(digits[0]), "".join(map(str, digits[1:]))
    return f"{'-' if sign else ''}{first}{'.' if rest else ''}{rest}e{exponent:+03d}"


def _shortest(value: float) -> Decimal:
    """The fewest digits that are closer to the float than to its neighbours. Python also accepts the exact middle."""
    number = Decimal(repr(value))
    digits = len(number.as_tuple().digits)
    while _is_in_the_middle(number, value):
        number = Decimal(f"{value:.{digits}e}")
        digits += 1
    return number


def _is_in_the_middle(number: Decimal, value: float) -> bool:
    neighbours = filter(isfinite, (nextafter(value, inf), nextafter(value, -inf)))
    return any(Fraction(number) * 2 == Fraction(value) + Fraction(neighbour) for neighbour in neighbours)


def _hstore(value: object) -> str:
    """Renders keys in PostgreSQL's order: shorter keys first."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    if not isinstance(value, dict):
        raise Unfit
    pairs = sorted(value.items(), key=lambda pair: (len(pair[0].encode()), pair[0].encode()))
    return ", ".join(f"{_quoted(key)}=>{'NULL' if item is None else _quoted(item)}" for key, item in pairs)


def _quoted(text: object) -> str:
    if not isinstance(text, str):
        raise Unfit
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)


def json_text(value: object) -> str:
    """Compact JSON, with every number as it was written."""
    match value:
        case dict():
            return "{" + ",".join(f"{json_text(str(key))}:{json_text(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(json_text, value)) + "]"
        case Decimal():
            return str(value)
    return json.dumps(value, ensure_ascii=False)
