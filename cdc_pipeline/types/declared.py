"""Type names as people write them in pipeline.yml -> canonical names of the table of types."""

import difflib
import re

from cdc_pipeline.errors import UsageError
from cdc_pipeline.types.table import ARRAY, TABLE

EXTENSIONS = ("citext", "hstore", "ltree", "lquery", "vector", "geometry", "geography")
_KNOWN = frozenset((*EXTENSIONS, *(name for rule in TABLE for name in rule.names)))
_ALIASES = {
    "bool": "boolean",
    "smallint": "int2",
    "smallserial": "int2",
    "int": "int4",
    "integer": "int4",
    "serial": "int4",
    "bigint": "int8",
    "bigserial": "int8",
    "real": "float4",
    "float": "float8",
    "double precision": "float8",
    "decimal": "numeric",
    "dec": "numeric",
    "character varying": "varchar",
    "character": "bpchar",
    "char": "bpchar",
    '"char"': "char",
    "string": "text",
    "bit varying": "varbit",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
}
_DIMENSIONS = re.compile(r"(?:\s*\[\d*\])+$|\s+array$", re.IGNORECASE)
_DECLARED = re.compile(
    r'(?P<base>"?[a-z][a-z0-9_ ]*?"?)\s*(?:\((?P<arguments>\s*-?\d+\s*(?:,\s*-?\d+\s*)?)\))?'
    r"(?P<zone> with(?:out)? time zone)?"
)
_NUMBERS = re.compile(r"\([\d\s,.-]*\)")
"""The modifier of a type; a dot in it separates no schema."""
_SINGLE_PRECISION_BITS = 24


def declared_type(name: str) -> str:
    """Returns the canonical name of a type as PostgreSQL accepts it, such as `timestamp(3) with time zone` or `int[]`.

    Canonical names and names with a schema, such as `shop.mood`, are returned unchanged. Raises UsageError for other
    names.
    """
    element = _DIMENSIONS.sub("", name.strip())
    if element != name.strip():
        return declared_type(element) + ARRAY
    if "." in _NUMBERS.sub("", element):
        return element
    parts = _DECLARED.fullmatch(" ".join(element.lower().split()))
    if parts is None:
        raise _unknown(name)
    arguments = "".join((parts["arguments"] or "").split())
    base = parts["base"] + (parts["zone"] or "")
    canonical = _ALIASES.get(base, base)
    if base == "float" and arguments:
        return "float4" if arguments.isdigit() and int(arguments) <= _SINGLE_PRECISION_BITS else "float8"
    if canonical not in _KNOWN or ("," in arguments and canonical != "numeric"):
        raise _unknown(name)
    if canonical == "numeric" and arguments and "," not in arguments:
        arguments += ",0"
    return f"{canonical}({arguments})" if arguments else canonical


def _unknown(name: str) -> UsageError:
    near = difflib.get_close_matches(name.lower(), [*_KNOWN, *_ALIASES], n=1)
    return UsageError(
        f"unknown type {name!r}",
        expected="a type of PostgreSQL, such as bigint, numeric(12,2), timestamptz or text[]",
        remedy=f"did you mean {near[0]}?" if near else "write a user-defined type with its schema, such as shop.mood",
    )
