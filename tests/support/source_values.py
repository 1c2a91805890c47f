"""What must be in the lake for what the source prints: a second reading of the text, value by value."""

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

UNFIT = "unfit"
Printed = str | dict[str, object] | None
"""Text, or of an array its dimensions and the texts of its elements."""


def expected(type_name: str, printed: Printed) -> object:
    """`type_name` is canonical. UNFIT where the type's policy is to keep the value aside."""
    if printed is None:
        return None
    if isinstance(printed, dict):
        return _expected_list(type_name.removesuffix("[]"), printed)
    base, _, arguments = type_name.removesuffix(")").partition("(")
    if base == "numeric" and arguments:
        return _decimal(printed, *map(int, arguments.split(",")))
    if base in {"date", "timestamp", "timestamptz"}:
        return _moment(base, printed)
    return _READ.get(base, str)(printed)


def elements(printed: dict[str, object]) -> list[str | None]:
    items = printed["items"]
    assert isinstance(items, list)
    return items


def _expected_list(element: str, printed: dict[str, object]) -> object:
    dimensions = str(printed["dimensions"] or "[1:0]")
    if dimensions.count("[") > 1 or not dimensions.startswith("[1:"):
        return UNFIT
    values = [expected(element, text) for text in elements(printed)]
    return UNFIT if UNFIT in values else values


def _decimal(printed: str, precision: int, scale: int) -> object:
    if precision > 38 or not 0 <= scale <= precision:
        return printed
    return UNFIT if printed == "NaN" else Decimal(printed)


def _moment(base: str, printed: str) -> object:
    if "infinity" in printed or printed.endswith("BC") or len(printed.partition("-")[0]) > 4:
        return UNFIT
    if base == "date":
        return date.fromisoformat(printed)
    moment = datetime.fromisoformat(printed)
    return moment if base == "timestamp" else moment.astimezone(UTC)


def shown(values: Sequence[object]) -> list[str]:
    """Comparable: NaN equals NaN, and -0 is not 0."""
    return [_shown(value) for value in values]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return repr(value)


_READ: Mapping[str, Callable[[str], object]] = {
    "boolean": {"t": True, "f": False}.__getitem__,
    **dict.fromkeys(("int2", "int4", "int8", "oid"), int),
    "float8": float,
    "float4": lambda text: struct.unpack("f", struct.pack("f", float(text)))[0],
    "bytea": lambda text: bytes.fromhex(text.removeprefix("\\x")),
}
