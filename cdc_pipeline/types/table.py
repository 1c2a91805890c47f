"""The table of types: canonical PostgreSQL type name -> Arrow type -> Delta type."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types.widening import wider

SYSTEM_NAMESPACE = "pg_catalog"
ARRAY = "[]"
_MAX_PRECISION = 38
_MODIFIER_HEADER = 4
_SCALE_BITS = 0x7FF
_SCALE_SIGN = 0x400
_MODIFIED = re.compile(r"(?P<base>[^(]+)\((?P<arguments>[^)]*)\)")
_NUMERIC = re.compile(r"numeric\((?P<precision>\d+),(?P<scale>-?\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """The Arrow and Spark types of a source type. `element`: the element type of a one-dimensional array."""

    name: str
    arrow: pa.DataType
    spark: str
    element: "ColumnType | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRule:
    """One row of the table of types.

    `kept`: how the lake stores values. `unfit`: values that become NULL; their text is delivered beside the column.
    """

    names: tuple[str, ...]
    arrow: pa.DataType
    spark: str
    kept: str
    unfit: str = "every value fits"


_EXACT, _TEXT = "exact", "as its text"
_DATE_UNFIT = "infinity, -infinity, BC, years after 9999"


def _text(*names: str, kept: str = _TEXT) -> TypeRule:
    return TypeRule(names=names, arrow=pa.string(), spark="STRING", kept=kept, unfit="invalid UTF-8")


TABLE = (
    TypeRule(names=("boolean",), arrow=pa.bool_(), spark="BOOLEAN", kept=_EXACT),
    TypeRule(names=("int2",), arrow=pa.int16(), spark="SMALLINT", kept=_EXACT),
    TypeRule(names=("int4",), arrow=pa.int32(), spark="INT", kept=_EXACT),
    TypeRule(names=("int8", "oid"), arrow=pa.int64(), spark="BIGINT", kept=_EXACT),
    TypeRule(names=("float4",), arrow=pa.float32(), spark="FLOAT", kept=_EXACT),
    TypeRule(names=("float8",), arrow=pa.float64(), spark="DOUBLE", kept=_EXACT),
    TypeRule(names=("bytea",), arrow=pa.binary(), spark="BINARY", kept=_EXACT),
    TypeRule(names=("date",), arrow=pa.date32(), spark="DATE", kept=_EXACT, unfit=_DATE_UNFIT),
    TypeRule(names=("timestamp",), arrow=pa.timestamp("us"), spark="TIMESTAMP_NTZ", kept=_EXACT, unfit=_DATE_UNFIT),
    TypeRule(
        names=("timestamptz",), arrow=pa.timestamp("us", "UTC"), spark="TIMESTAMP", kept=_EXACT, unfit=_DATE_UNFIT
    ),
    _text("text", "varchar", "bpchar", "char", "name", kept=_EXACT),
    _text("json", "jsonb", "jsonpath", "xml", kept=_EXACT),
    _text("numeric"),
    _text("uuid"),
    _text("time", "timetz", "interval"),
    _text("money"),
    _text("bit", "varbit"),
    _text("inet", "cidr", "macaddr", "macaddr8"),
    _text("point", "line", "lseg", "box", "path", "polygon", "circle"),
    _text("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
    _text("int4multirange", "int8multirange", "nummultirange", "datemultirange", "tsmultirange", "tstzmultirange"),
    _text("tsvector", "tsquery", "gtsvector"),
    _text("pg_lsn", "xid", "xid8", "cid", "tid", "pg_snapshot", "txid_snapshot", "refcursor", "aclitem"),
    _text("regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator"),
    _text("regproc", "regprocedure", "regrole", "regtype", "int2vector", "oidvector"),
)

_RULES = {name: rule for rule in TABLE for name in rule.names}


def resolve(type_name: str) -> ColumnType:
    """Returns the type of a canonical name. Values of a type that is not in the table are stored as their text."""
    if type_name.endswith(ARRAY):
        element = resolve(type_name.removesuffix(ARRAY))
        spark = f"ARRAY<{element.spark}>"
        return ColumnType(name=type_name, arrow=pa.list_(element.arrow), spark=spark, element=element)
    numeric = _NUMERIC.fullmatch(type_name)
    if numeric is not None:
        return _numeric(type_name, int(numeric["precision"]), int(numeric["scale"]))
    modified = _MODIFIED.fullmatch(type_name)
    rule = _RULES.get(modified["base"] if modified else type_name, _RULES["text"])
    return ColumnType(name=type_name, arrow=rule.arrow, spark=rule.spark)


def arrow_schema(table_schema: TableSchema) -> pa.Schema:
    """Returns the source's columns in their order, all nullable."""
    return pa.schema([pa.field(column.name, resolve(column.type).arrow) for column in table_schema.columns])


def canonical_name(*, namespace: str, name: str, modifier: int = -1) -> str:
    """Returns the canonical name of `pg_type.typname` with `pg_attribute.atttypmod`.

    For an array pass its element (`pg_type.typelem`) and append `[]`; for a domain pass its base type. The name of a
    type outside `pg_catalog` includes its namespace, so that it is not taken for a built-in type.
    """
    if namespace != SYSTEM_NAMESPACE:
        return f"{namespace}.{name}"
    if name == "numeric":
        return numeric_name(modifier)
    return "boolean" if name == "bool" else name


def text_of(type_name: str) -> str:
    """Returns the type of a column whose values are stored as the source's text: `text(date)`."""
    return f"text({type_name})"


def numeric_name(modifier: int) -> str:
    """Returns `numeric`, or `numeric(p,s)` from the type modifier, whose lower 11 bits are the signed scale."""
    if modifier < _MODIFIER_HEADER:
        return "numeric"
    packed = modifier - _MODIFIER_HEADER
    scale = ((packed & _SCALE_BITS) ^ _SCALE_SIGN) - _SCALE_SIGN
    return f"numeric({packed >> 16 & 0xFFFF},{scale})"


def _numeric(type_name: str, precision: int, scale: int) -> ColumnType:
    if 1 <= precision <= _MAX_PRECISION and 0 <= scale <= precision:
        spark = f"DECIMAL({precision},{scale})"
        return ColumnType(name=type_name, arrow=pa.decimal128(precision, scale), spark=spark)
    text = _RULES["numeric"]
    return ColumnType(name=type_name, arrow=text.arrow, spark=text.spark)


def widest(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Returns a column of each name, with the type that the lake has: the first one, or a later one that is wider.

    `columns`: oldest first. Of columns with numbers the newest counts: for their types the lake begins again.
    """
    found: dict[str, Column] = {}
    for column in columns:
        before = found.get(column.name, column)
        if column.number is not None or wider(resolve(before.type).spark, resolve(column.type).spark):
            found[column.name] = column
    return tuple(found.values())


def changed_types(known: Iterable[Column], now: Iterable[Column]) -> list[tuple[Column, Column]]:
    """Returns pairs (known column, column now) of columns whose type in the lake would differ."""
    before = {column.name: column for column in known}
    return [
        (before[column.name], column)
        for column in now
        if column.name in before and resolve(column.type).spark != resolve(before[column.name].type).spark
    ]
