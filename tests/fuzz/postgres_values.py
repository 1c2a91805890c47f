"""Types of the shop's columns, values of them as SQL, and how a column is compared."""

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from random import Random
from typing import Any

WIDER = {
    "smallint": "integer",
    "integer": "bigint",
    "real": "double precision",
    "numeric(6,2)": "numeric(9,2)",
    "numeric(9,2)": "numeric(12,3)",
    "character varying(10)": "varchar(20)",
    "character varying(20)": "text",
    "text": "varchar(400)",
    "date": "timestamp",
}
"""As `format_type` writes a type -> what ALTER TYPE makes of it."""
_TYPES = (
    *("int2", "int4", "int8", "numeric(6,2)", "numeric(9,2)", "varchar(10)", "text", "bool", "date", "timestamp"),
    *("timestamptz", "float4", "float8", "mood", "int[]", "jsonb", "uuid", "bytea"),
)
_NUMBERS = frozenset({"int2", "int4", "int8", "smallint", "integer", "bigint"})
_AS_TEXT = frozenset({"jsonb", "uuid", "mood"})
_DAY = date(2020, 2, 29)


def new_type(chance: Random) -> str:
    return chance.choice(_TYPES)


def literal(type_: str, chance: Random, *, in_key: bool = False) -> str:
    """NULL now and then, unless it is `in_key`."""
    if not in_key and chance.random() < 0.15:
        return "NULL"
    if type_ in _NUMBERS:
        return str(chance.randrange(400 if in_key else 30))
    texts = ["'x'", "''", "'ü''\\\"'", "'null'", f"'t{chance.randrange(30)}'"]
    return chance.choice(_values(chance).get(type_.partition("(")[0], texts))


def _values(chance: Random) -> dict[str, Sequence[str]]:
    day = _DAY + timedelta(days=chance.randrange(1000))
    float_ = [str(chance.randrange(-50, 50) / 4)]
    array = ["'{}'", "'{1,NULL,3}'", "'{7}'"]
    return {
        "numeric": [str(Decimal(chance.randrange(100_000)).scaleb(-2))],
        **dict.fromkeys(("bool", "boolean"), ("true", "false")),
        "date": [f"'{day}'"],
        **dict.fromkeys(("timestamp", "timestamp without time zone"), (f"'{day} 12:34:56.789'",)),
        **dict.fromkeys(("timestamptz", "timestamp with time zone"), (f"'{day} 12:34:56.789Z'",)),
        **dict.fromkeys(("float4", "float8", "real", "double precision"), float_),
        "mood": ["enum_last(NULL::mood)"],
        **dict.fromkeys(("int[]", "integer[]"), array),
        "jsonb": ["'{\"a\": 1}'", "'[]'", "'null'"],
        "uuid": [f"'00000000-0000-0000-0000-{chance.randrange(30):012}'"],
        "bytea": ["'\\x00ff'", "''"],
    }


def rewritten(type_: str, name: str, chance: Random) -> tuple[str, str]:
    """Another type, and the expression that ALTER TYPE ... USING computes."""
    if type_ in _NUMBERS:
        return chance.choice([(type_, f"{name} + 1"), ("bigint", f"{name} * 2"), ("text", f"'n' || {name}")])
    if type_.startswith(("text", "character")):
        return chance.choice([(type_, f"upper({name})"), ("int", f"length({name})"), ("text", f"{name} || '!'")])
    return chance.choice([("text", f"{name}::text"), (type_, f"CASE WHEN {name} IS NOT NULL THEN {name} END")])


def compared(name: str, type_: str) -> str:
    """How a column is selected to be compared with the lake's."""
    if type_ in _AS_TEXT:
        return f'"{name}"::text'
    return f'"{name}"::float8' if type_ == "real" else f'"{name}"'


def plain(value: Any) -> Any:
    """Hashable, and equal for what both sides mean by it."""
    match value:
        case Decimal():
            return ("number", value.normalize())
        case memoryview():
            return bytes(value)
        case list():
            return tuple(map(plain, value))
        case _:
            return value
