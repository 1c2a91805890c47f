"""Compares the description of a table in the binary log with a shape of the catalogue. Pure.

The log has names and types of the columns before each statement's rows (`binlog_row_metadata = FULL`). The catalogue
has what the log lacks: the length of a BINARY, labels in UTF-8, and the type that the table was declared with.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pymysqlreplication.constants import FIELD_TYPE

from cdc_pipeline.sources.mysql.row_image import ImageColumn
from cdc_pipeline.sources.mysql.shape import MysqlColumn, TableShape
from cdc_pipeline.types.mysql import BINARIES, GEOMETRIES, TEXTS, MysqlType
from cdc_pipeline.types.mysql_charsets import UTF8, codec_of

_TYPES = {
    "tinyint": FIELD_TYPE.TINY,
    "smallint": FIELD_TYPE.SHORT,
    "mediumint": FIELD_TYPE.INT24,
    "int": FIELD_TYPE.LONG,
    "bigint": FIELD_TYPE.LONGLONG,
    "decimal": FIELD_TYPE.NEWDECIMAL,
    "float": FIELD_TYPE.FLOAT,
    "double": FIELD_TYPE.DOUBLE,
    "bit": FIELD_TYPE.BIT,
    "date": FIELD_TYPE.DATE,
    "datetime": FIELD_TYPE.DATETIME2,
    "timestamp": FIELD_TYPE.TIMESTAMP2,
    "time": FIELD_TYPE.TIME2,
    "year": FIELD_TYPE.YEAR,
    "char": FIELD_TYPE.STRING,
    "varchar": FIELD_TYPE.VARCHAR,
    "enum": FIELD_TYPE.ENUM,
    "set": FIELD_TYPE.SET,
    "binary": FIELD_TYPE.STRING,
    "varbinary": FIELD_TYPE.VARCHAR,
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), FIELD_TYPE.BLOB),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), FIELD_TYPE.BLOB),
    **dict.fromkeys(GEOMETRIES, FIELD_TYPE.GEOMETRY),
    "json": FIELD_TYPE.JSON,
}
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_FRACTIONS = frozenset({"datetime", "timestamp", "time"})
_BINARY = "binary"
_HIDDEN = re.compile(r"[0-9a-f]{32}|!hidden!.*|DB_ROW_HASH_\d+")
"""Names of columns that the catalogue does not have: in which MySQL keeps the values of an index on an expression, and
MariaDB the hashes of a unique key of long texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogColumn:
    """A column as the log describes it. `length`, `decimals`: see `ImageColumn`.

    `charset`: "" if the library does not know the collation's number. `labels`: "" for each one in a character
    set other than UTF-8, since the library reads all of them as UTF-8.
    """

    name: str
    type: int
    length: int
    decimals: int
    unsigned: bool
    charset: str
    labels: tuple[str, ...]


def log_columns(columns: Sequence[Any]) -> tuple[LogColumn, ...]:
    """Returns the columns of mysql-replication's event of a table. A column without a name gets the name ""."""
    return tuple(
        LogColumn(
            name=column.name or "",
            type=column.type,
            length=_length(column),
            decimals=getattr(column, "fsp", getattr(column, "decimals", 0)),
            unsigned=column.unsigned,
            charset=_charset(column.collation_name),
            labels=_labels(column),
        )
        for column in columns
    )


def image_columns(found: Sequence[LogColumn], shape: TableShape) -> tuple[ImageColumn, ...] | None:
    """Returns how rows with these columns are decoded, None if the columns are not those of the shape."""
    shown = [column for column in found if not _is_hidden(column.name, shape)]
    if len(shown) != len(shape.columns):
        return None
    pairs = dict(zip(shown, shape.columns, strict=True))
    if not all(_is_same(column, declared) for column, declared in pairs.items()):
        return None
    return tuple(_image_column(column, pairs.get(column)) for column in found)


def _is_hidden(name: str, shape: TableShape) -> bool:
    return name in shape.left_out or (_HIDDEN.fullmatch(name) is not None and name not in shape.names)


def _is_same(found: LogColumn, declared: MysqlColumn) -> bool:
    mysql_type = declared.mysql_type
    return (
        found.name == declared.name
        and found.type == _TYPES.get(mysql_type.base)
        and (mysql_type.base not in _INTEGERS or found.unsigned == mysql_type.unsigned)
        and _has_arguments(found, mysql_type)
        and _has_charset(found, declared)
    )


def _has_arguments(found: LogColumn, declared: MysqlType) -> bool:
    """Returns whether those arguments of the type agree on which the bytes of a value depend."""
    if declared.base == "decimal":
        precision, _, scale = declared.arguments.partition(",")
        return (found.length, found.decimals) == (int(precision), int(scale or 0))
    if declared.base in _FRACTIONS:
        return found.decimals == (declared.length or 0)
    if declared.base == "bit":
        return found.length == (declared.length or 1)
    if declared.base == "binary":
        return found.length == declared.length
    if declared.labels:
        known = declared.labels[: len(found.labels)]
        return len(known) == len(found.labels) and all(
            label in ("", name) for label, name in zip(found.labels, known, strict=True)
        )
    return True


def _has_charset(found: LogColumn, declared: MysqlColumn) -> bool:
    base = declared.mysql_type.base
    if not found.charset or base not in TEXTS | BINARIES:
        return True
    return found.charset == (_BINARY if base in BINARIES else _named(declared.charset or ""))


def _image_column(found: LogColumn, declared: MysqlColumn | None) -> ImageColumn:
    """Returns how a value is read. One without a declared column is passed over: as bytes, so no text is decoded."""
    hidden = ImageColumn(
        name=found.name, type=found.type, length=found.length, decimals=found.decimals, binary=True, is_hidden=True
    )
    if declared is None:
        return hidden
    mysql_type = declared.mysql_type
    is_binary = mysql_type.base in BINARIES or mysql_type.base in GEOMETRIES
    return replace(
        hidden,
        is_hidden=False,
        unsigned=mysql_type.unsigned,
        binary=is_binary,
        fixed=mysql_type.length or 0 if mysql_type.base == "binary" else 0,
        encoding=None if is_binary or mysql_type.labels else codec_of(declared.charset),
        labels=tuple(label.encode() for label in mysql_type.labels),
    )


def _length(column: Any) -> int:
    """Returns the number under which the library has the column's length, which depends on the type."""
    names = ("max_length", "length_size", "precision", "bits", "size")
    return next((int(getattr(column, name)) for name in names if hasattr(column, name)), 0)


def _labels(column: Any) -> tuple[str, ...]:
    labels = tuple(column.enum_values[1:] if column.enum_values else column.set_values or ())
    return labels if _charset(column.collation_name) in UTF8 else ("",) * len(labels)


def _charset(collation: str | None) -> str:
    return "" if collation is None else _named(collation.partition("_")[0])


def _named(charset: str) -> str:
    return "utf8mb3" if charset == "utf8" else charset
