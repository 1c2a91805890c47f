"""MySQL's and MariaDB's types -> names of the table of types; the server's texts -> texts that `parse_text` reads.

A value has the same text by snapshot and by stream: `parseable_text` says how a SELECT's text becomes that text, and
`sources.mysql.row_image` makes it from the bytes of the binary log.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

_COLUMN_TYPE = re.compile(r"(?P<base>[a-z0-9_]+)(?:\((?P<arguments>.*)\))?(?P<rest>[^)]*)", re.DOTALL)
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "0": "\0"}
_INTEGERS = {
    "tinyint": ("int2", "int2"),
    "smallint": ("int2", "int4"),
    "mediumint": ("int4", "int4"),
    "int": ("int4", "int8"),
    "bigint": ("int8", "numeric(20,0)"),
}
"""Base type -> type of signed and of unsigned values."""
_FLOATS = {"float": "float4", "double": "float8"}
_MOMENTS = {"date": "date", "datetime": "timestamp", "timestamp": "timestamptz", "time": "time", "year": "int2"}
TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json"})
BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
GEOMETRIES = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)
_UNREAD = re.compile(r"compressed|mariadb-5\.3")
"""Words behind types whose values have another form in the log: the second one marks that of times before 10.1."""
UTC_OFFSET = b"+00"
HEX_PREFIX = b"\\x"


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlType:
    """A column type as `information_schema` writes it, such as `decimal(10,2) unsigned zerofill`.

    `labels`: the values of an ENUM or a SET, in their order. `length`: the first number in parentheses, None without.
    """

    base: str
    arguments: str = ""
    unsigned: bool = False
    zerofill: bool = False
    labels: tuple[str, ...] = ()

    @property
    def length(self) -> int | None:
        first = self.arguments.partition(",")[0]
        return int(first) if first.isdigit() else None

    @property
    def name(self) -> str | None:
        """The canonical name, None for a type that cannot be read."""
        if self.base in _INTEGERS:
            return _INTEGERS[self.base][self.unsigned]
        if self.base == "decimal":
            return f"numeric({self.arguments})" if "," in self.arguments else f"numeric({self.arguments},0)"
        if self.base == "bit":
            return f"bit({self.length or 1})"
        if (self.base, self.length) == ("year", 2):
            return None  # MariaDB shows no century, and the log has one
        if self.base in BINARIES or self.base in GEOMETRIES:
            return "bytea"
        return {**_FLOATS, **_MOMENTS, **dict.fromkeys(TEXTS, "text")}.get(self.base)


def parse_column_type(written: str) -> MysqlType:
    """Reads `COLUMN_TYPE` of `information_schema.columns`. A type that is not known keeps its name as `base`."""
    found = _COLUMN_TYPE.fullmatch(written.strip())
    if found is None:
        return MysqlType(base=written)
    base, arguments, rest = found["base"].lower(), found["arguments"] or "", found["rest"].lower()
    unread = _UNREAD.search(rest)
    if unread is not None:
        return MysqlType(base=f"{base} {unread[0]}")
    is_list = base in {"enum", "set"}
    return MysqlType(
        base=base,
        arguments="" if is_list else "".join(arguments.split()),
        unsigned="unsigned" in rest,
        zerofill="zerofill" in rest,
        labels=tuple(_ESCAPED.sub(_unescaped, label) for label in _LABEL.findall(arguments)) if is_list else (),
    )


def _unescaped(found: re.Match[str]) -> str:
    """Returns the character that the catalogue writes as two."""
    following = found[1]
    return "'" if following is None else _ESCAPES.get(following, following)


def parseable_text(mysql_type: MysqlType) -> Callable[[bytes], bytes] | None:
    """Returns how the server's text of a value becomes the text of the canonical type, None if it is that text.

    Expects a session with the time zone +00:00, and floating-point columns read as DOUBLE, since the server
    prints only six digits of a FLOAT.
    """
    if mysql_type.base == "time" and mysql_type.length:
        return time_text
    if mysql_type.base == "timestamp":
        return lambda text: text + UTC_OFFSET
    if mysql_type.base == "bit":
        digits = mysql_type.length or 1
        return lambda octets: bit_text(int.from_bytes(octets), digits)
    if mysql_type.base in BINARIES or mysql_type.base in GEOMETRIES:
        return binary_text
    if is_floating(mysql_type):
        return lambda text: float_text(float(text))
    return _without_zeros if mysql_type.zerofill else None


def is_floating(mysql_type: MysqlType) -> bool:
    return mysql_type.base in _FLOATS


def time_text(text: bytes) -> bytes:
    """Removes the zeros that end the fraction of a TIME, as PostgreSQL does: the lake compares times as texts."""
    return text.rstrip(b"0").rstrip(b".") if b"." in text else text


def binary_text(octets: bytes) -> bytes:
    return HEX_PREFIX + octets.hex().encode()


def bit_text(number: int, digits: int) -> bytes:
    return f"{number:0{digits}b}".encode()


def float_text(value: float) -> bytes:
    return repr(value).encode()


def _without_zeros(text: bytes) -> bytes:
    """Removes the zeros with which ZEROFILL pads the digits before the point."""
    stripped = text.lstrip(b"0")
    return stripped if stripped[:1].isdigit() else b"0" + stripped
