"""Types of the shop's columns on MariaDB and MySQL, values of them as SQL, and how a column is compared."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
DATES = ("date", "timestamp")
_TYPES = (
    *("tinyint", "smallint", "int", "bigint", "int unsigned", "bigint unsigned", "decimal(6,2)", "decimal(9,2)"),
    *("varchar(10)", "varchar(20)", "text", "mediumtext", "date", "datetime(3)", "timestamp(6)", "time", "year"),
    *("float", "double", "enum('calm','cross')", "set('x','y')", "varbinary(5)", "blob", "bit(3)"),
)
_OTHER = {
    "varchar(10)": ("varchar(20)", "text", "char(10)"),
    "varchar(20)": ("varchar(300)", "varchar(10)"),
    "text": ("mediumtext", "varchar(50)"),
    "enum('calm','cross')": ("enum('calm','cross','new')", "enum('cross','calm')", "text"),
    "enum('calm','cross','new')": ("enum('calm','cross')",),
    "set('x','y')": ("set('x','y','z')", "set('y','x')"),
    "decimal(6,2)": ("decimal(9,2)", "decimal(9,3)"),
    "varbinary(5)": ("varbinary(9)", "blob"),
    "datetime(3)": ("datetime(6)", "timestamp(3)"),
    "date": ("datetime",),
    "float": ("double",),
}
_DAY = date(2020, 2, 29)


def new_type(chance: Random) -> str:
    return chance.choice(_TYPES)


def other_type(type_: str, chance: Random) -> str:
    """What MODIFY makes of a type: often one that holds all its values."""
    others = ("int", "bigint", "smallint", "int unsigned", "text") if type_.startswith(INTEGERS) else ("text",)
    return chance.choice(_OTHER.get(type_, others))


def literal(type_: str, chance: Random, *, nullable: bool = True, in_key: bool = False) -> str:
    """NULL now and then, unless it is `in_key` or must not be."""
    if nullable and not in_key and chance.random() < 0.15:
        return "NULL"
    if type_.startswith(INTEGERS):
        return str(chance.randrange(290 if in_key else 30))
    texts = ["'x'", "''", "'ü''\\\\\"'", "'null'", f"'t{chance.randrange(30)}'"]
    return chance.choice(_values(chance).get(type_.partition("(")[0], texts))


def _values(chance: Random) -> dict[str, Sequence[str]]:
    day = _DAY + timedelta(days=chance.randrange(1000))
    return {
        **dict.fromkeys(("decimal", "float", "double"), (str(Decimal(chance.randrange(4000)) / 4),)),
        "date": [f"'{day}'"],
        **dict.fromkeys(("datetime", "timestamp"), (f"'{day} 12:34:56.789'",)),
        "time": ["'12:34:56'", "'-100:00:01'"],
        "year": [str(day.year)],
        "enum": ["'calm'", "'cross'"],
        "set": ["''", "'x'", "'x,y'"],
        "bit": ["b'101'", "b'0'"],
        **dict.fromkeys(("varbinary", "blob"), ("x'00ff'", "''")),
    }


def compared(name: str, type_: str) -> str:
    """How a column is selected to be compared with the lake's."""
    match type_.partition("(")[0]:
        case "bit":
            return f"LPAD(BIN(`{name}` + 0), {type_[4:-1]}, '0')"
        case "time":
            return f"CAST(`{name}` AS CHAR)"
        case "bigint" if "unsigned" in type_:
            return f"CAST(`{name}` AS DECIMAL(20,0))"
        case _:
            return f"`{name}`"


def without_zone(value: Any) -> Any:
    """The session of the source is in UTC."""
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value
