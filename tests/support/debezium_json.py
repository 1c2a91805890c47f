"""What the source prints -> what Debezium writes for it: the field of its schema, and the value in JSON.

As its PostgreSQL connector does with decimal.handling.mode=precise or string, time.precision.mode=microseconds,
interval.handling.mode=string and include.unknown.datatypes=true.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.support.source_values import Printed, elements

Field = dict[str, Any]
NOT_CARRIED = frozenset({"money", "varbit"})
"""Debezium writes money without its sign and grouping, and bits without the zeros before them."""
STRINGS = frozenset(
    {
        *("text", "varchar", "bpchar", "char", "name", "inet", "cidr", "macaddr", "macaddr8"),
        *("int4range", "numrange", "daterange", "tsrange", "tstzrange", "tsvector"),
    }
)
_DAY = 86_400_000_000
_TO_2000 = 10_957
_STAMP = re.compile(r"(\d+)-(\d+)-(\d+)(?: (\d+):(\d+):(\d+)(?:\.(\d+))?)?(?:\+00)?( BC)?")
_INTERVAL = re.compile(
    r"(?:([+-]?\d+) years?)? ?(?:([+-]?\d+) mons?)? ?(?:([+-]?\d+) days?)? ?(?:([+-]?)(\d+):(\d+):([\d.]+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """`carried` is false for values of which Debezium does not write all."""

    schema: Field
    values: list[object]
    carried: list[bool]


def written(type_name: str, printed: list[Printed], *, decimals: str = "precise") -> Written:
    """`type_name` is canonical; `decimals` is decimal.handling.mode."""
    schema, encode = _codec(type_name, decimals)
    carried = [_is_carried(type_name, each, decimals) for each in printed]
    values = [
        encode(each) if whole and each is not None else None for each, whole in zip(printed, carried, strict=True)
    ]
    return Written(schema=schema, values=values, carried=carried)


def _is_carried(type_name: str, printed: Printed, decimals: str) -> bool:
    """Not the bounds of an array, nor numbers that are none as the bytes of a decimal."""
    base = type_name.removesuffix("[]").partition("(")[0]
    if isinstance(printed, dict) and not str(printed["dimensions"] or "[1:0]").startswith("[1:"):
        return False
    texts = elements(printed) if isinstance(printed, dict) else [printed]
    special = any(text is not None and _not_a_number(text) for text in texts)
    return base not in NOT_CARRIED and not (base == "numeric" and decimals == "precise" and special)


def _codec(type_name: str, decimals: str) -> tuple[Field, Callable[[Any], object]]:
    if type_name.endswith("[]"):
        items, encode = _codec(type_name.removesuffix("[]"), decimals)
        return {"type": "array", "items": items}, lambda printed: _list(printed, encode)
    base, _, arguments = type_name.removesuffix(")").partition("(")
    if base == "numeric":
        return _decimal_codec(arguments, decimals)
    if base in STRINGS:
        return {"type": "string"}, str
    return _CODECS.get(base, ({"type": "bytes"}, _base64_text)) if "." not in base else _own_type(base)


def _own_type(name: str) -> tuple[Field, Callable[[Any], object]]:
    if name.endswith("mood"):
        return _semantic("string", "io.debezium.data.Enum", allowed="sad,ok"), str
    return {"type": "bytes"}, _base64_text


def _list(printed: dict[str, object], encode: Callable[[Any], object]) -> list[object]:
    """Bounds are lost on the way; more than one dimension stays nested."""
    values = [None if text is None else encode(text) for text in elements(printed)]
    return [values] if str(printed["dimensions"]).count("[") > 1 else values


def _semantic(kind: str, name: str, **parameters: str) -> Field:
    return {"type": kind, "optional": True, "name": name, "version": 1, "parameters": parameters}


def _decimal_codec(arguments: str, decimals: str) -> tuple[Field, Callable[[Any], object]]:
    if decimals == "string":
        return {"type": "string"}, _decimal_string
    if not arguments:
        return _semantic("struct", "io.debezium.data.VariableScaleDecimal"), _variable_scale
    precision, scale = arguments.split(",")
    parameters = {"scale": scale, "connect.decimal.precision": precision}
    return (
        _semantic("bytes", "org.apache.kafka.connect.data.Decimal", **parameters),
        lambda text: _unscaled(Decimal(text), int(scale)),
    )


def _not_a_number(text: str) -> str | None:
    return {"NaN": "NAN", "Infinity": "POSITIVE_INF", "-Infinity": "NEGATIVE_INF"}.get(text)


def _decimal_string(text: str) -> str:
    """As Java prints a BigDecimal."""
    return _not_a_number(text) or str(Decimal(text))


def _variable_scale(text: str) -> object:
    scale = len(text.partition(".")[2])
    return {"scale": scale, "value": _unscaled(Decimal(text), scale)}


def _unscaled(value: Decimal, scale: int) -> str:
    digits = int("".join(map(str, value.as_tuple().digits)))
    exponent = int(value.as_tuple().exponent) + scale
    number = digits * 10**exponent if exponent >= 0 else digits // 10**-exponent
    signed = -number if value.is_signed() else number
    return b64encode(signed.to_bytes(signed.bit_length() // 8 + 1, signed=True)).decode()


def _base64_text(text: str) -> str:
    return b64encode(text.encode()).decode()


def _float(text: str) -> object:
    return text if text in {"NaN", "Infinity", "-Infinity"} else float(text)


def _point(text: str) -> Mapping[str, object]:
    x, y = text.strip("()").split(",")
    return {"x": _float(x), "y": _float(y), "wkb": None, "srid": None}


def _bits(text: str) -> str:
    return b64encode(int(text, 2).to_bytes(-(-len(text) // 8), "little")).decode()


def days(text: str) -> int:
    """Of the Gregorian calendar since 1970, in 32 bits that overflow for infinity."""
    if text.endswith("infinity"):
        return -(1 << 31) + _TO_2000 - (0 if text.startswith("-") else 1)
    year, month, day, *_, before_christ = _stamp(text)
    return _civil_days(1 - int(year) if before_christ else int(year), int(month), int(day))


def _civil_days(year: int, month: int, day: int) -> int:
    """Counted from March, so that the leap day is the last of its year."""
    year -= month <= 2
    months = (month + 9) % 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * months + 2) // 5 + day - 719_469


def _microseconds(text: str) -> int:
    if text.endswith("infinity"):
        return -9_223_372_036_832_400_000 if text.startswith("-") else 9_223_372_036_825_200_000
    *_, hours, minutes, seconds, fraction, _ = _stamp(text)
    return days(text) * _DAY + _time(f"{hours}:{minutes}:{seconds}.{fraction or 0}")


def _stamp(text: str) -> tuple[str, ...]:
    found = _STAMP.fullmatch(text)
    assert found is not None
    return found.groups(default="")


def _time(text: str) -> int:
    hours, minutes, seconds = text.split(":")
    return int(Decimal((int(hours) * 60 + int(minutes)) * 60 + Decimal(seconds)) * 1_000_000)


def _zoned(text: str) -> str:
    if text.endswith("infinity"):
        return text
    year, month, day, hours, minutes, seconds, fraction, before_christ = _stamp(text)
    proleptic = 1 - int(year) if before_christ else int(year)
    shown = f"{'-' if proleptic < 0 else '+' if proleptic > 9999 else ''}{abs(proleptic):04d}"
    return f"{shown}-{month}-{day}T{hours}:{minutes}:{seconds}.{fraction.ljust(6, '0')}Z"


def _interval(text: str) -> str:
    found = _INTERVAL.fullmatch(text)
    assert found is not None
    years, months, date_days, sign, *clock = found.groups(default="0")
    sign = sign.strip("+0")
    hours, minutes, seconds = (f"{sign}{Decimal(part)}" for part in clock)
    return f"P{int(years)}Y{int(months)}M{int(date_days)}DT{hours}H{minutes}M{seconds}S"


_CODECS: Mapping[str, tuple[Field, Callable[[Any], object]]] = {
    "boolean": ({"type": "boolean"}, lambda text: text == "t"),
    "int2": ({"type": "int16"}, int),
    "int4": ({"type": "int32"}, int),
    "int8": ({"type": "int64"}, int),
    "oid": ({"type": "int64"}, int),
    "float4": ({"type": "float"}, _float),
    "float8": ({"type": "double"}, _float),
    "bytea": ({"type": "bytes"}, lambda text: b64encode(bytes.fromhex(text[2:])).decode()),
    "uuid": (_semantic("string", "io.debezium.data.Uuid"), str),
    "json": (_semantic("string", "io.debezium.data.Json"), str),
    "jsonb": (_semantic("string", "io.debezium.data.Json"), str),
    "xml": (_semantic("string", "io.debezium.data.Xml"), str),
    "date": (_semantic("int32", "io.debezium.time.Date"), days),
    "timestamp": (_semantic("int64", "io.debezium.time.MicroTimestamp"), _microseconds),
    "timestamptz": (_semantic("string", "io.debezium.time.ZonedTimestamp"), _zoned),
    "time": (_semantic("int64", "io.debezium.time.MicroTime"), _time),
    "timetz": (_semantic("string", "io.debezium.time.ZonedTime"), lambda text: text.replace("+00", "Z")),
    "interval": (_semantic("string", "io.debezium.time.Interval"), _interval),
    "bit": (_semantic("bytes", "io.debezium.data.Bits", length="5"), _bits),
    "point": (_semantic("struct", "io.debezium.data.geometry.Point"), _point),
}
