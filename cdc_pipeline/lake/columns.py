"""The columns of a lake table: the source's, the pipeline's own, and the data partition columns."""

import hashlib
from dataclasses import replace

from cdc_pipeline.errors import UsageError
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import (
    CONFIRMED,
    CURRENT,
    DELETED,
    END_VERSION,
    PARTIAL,
    STATE,
    STATE_TYPE,
    VALID_FROM,
    VALID_TO,
    VERSION,
    Column,
    history_name,
)
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.types import resolve

OWN_TYPES = ((VERSION, "STRING"), (DELETED, "BOOLEAN"), (STATE, STATE_TYPE))
"""The pipeline's own columns, which every lake table but a history table has in addition to the source's."""
HISTORY_TYPES = (
    (VERSION, "STRING"),
    (DELETED, "BOOLEAN"),
    (END_VERSION, "STRING"),
    (VALID_FROM, "TIMESTAMP"),
    (VALID_TO, "TIMESTAMP"),
    (CONFIRMED, "MAP<STRING, TIMESTAMP>"),
    (PARTIAL, "MAP<STRING, ARRAY<STRING>>"),
    (CURRENT, "BOOLEAN"),
)
"""The pipeline's own columns of a history table."""
HISTORY_IN_FILES = tuple(name for name, _ in HISTORY_TYPES if name != CURRENT)
"""Those that its files have: CURRENT is a data partition."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Names the folder of a data partition whose value is NULL."""
_LONGEST_LABEL, _KEPT_OF_LABEL, _LABEL_DIGITS = 60, 40, 16
"""Bytes, characters, digits. A folder's name has 180 bytes beside a column's name: 60 escaped ones, or 40 and 17."""
_NUL = "chr(0)"
"""In SQL. A path cannot have it, and Spark does not escape it there."""
_FORMATS = {"year": "yyyy", "month": "yyyy-MM", "day": "yyyy-MM-dd", "hour": "yyyy-MM-dd'T'HH"}
_MOMENTS = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ")
_WITHOUT_STATS = ("BOOLEAN", "BINARY", "ARRAY")
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


def history_of(table: LakeTable) -> LakeTable:
    """Returns the table's history table: `<table>.history`, with each version that a row has had."""
    return replace(table, name=history_name(table.name), partition_by=(), keeps_history=False, is_history=True)


def own_types(*, is_history: bool) -> tuple[tuple[str, str], ...]:
    """Returns name and Spark type of the pipeline's own columns."""
    return HISTORY_TYPES if is_history else OWN_TYPES


def definition(column: Column) -> str:
    """Returns the column's name and type in Spark's DDL."""
    return f"{identifier(column.name)} {resolve(column.type).spark}"


def partition_expression(partition: PartitionBy, column: str) -> str:
    """Returns SQL for the text that names a row's data partition, in UTC. `column` is SQL.

    The text that stands for NULL in names of folders is NULL: Spark would write both into one file. A long text,
    and one with NUL, becomes the label of `partition_label`.
    """
    if partition.unit != "value":
        return f"date_format({column}, {text_literal(_FORMATS[partition.unit])})"
    text = f"NULLIF(CAST({column} AS STRING), {text_literal(NULL_PARTITION)})"
    kept = f"left(replace({text}, {_NUL}, ''), {_KEPT_OF_LABEL})"
    cut = f"concat({kept}, '~', left(sha2({text}, 256), {_LABEL_DIGITS}))"
    return f"IF(octet_length({text}) > {_LONGEST_LABEL} OR contains({text}, {_NUL}), {cut}, {text})"


def partition_label(text: str) -> str:
    """Returns the text that names the data partition of a value, which has to fit the name of a folder.

    A text of more than 60 bytes, or with NUL, is cut to its first 40 other characters and the beginning of its hash.
    """
    octets = text.encode()
    if len(octets) <= _LONGEST_LABEL and "\0" not in text:
        return text
    kept = text.replace("\0", "")[:_KEPT_OF_LABEL]
    return f"{kept}~{hashlib.sha256(octets).hexdigest()[:_LABEL_DIGITS]}"


def check_partitions(table: LakeTable) -> None:
    """Raises UsageError for a missing column, or a unit of time on a column that is neither date nor timestamp."""
    for partition in table.partition_by:
        if partition.column not in table.schema.names:
            raise UsageError(
                f"{table.name} has no column {partition.column!r} to partition by",
                expected=f"one of {', '.join(table.schema.names)}",
                remedy="correct partition_by in pipeline.yml",
            )
        type_name = table.schema.column(partition.column).type
        if partition.unit != "value" and resolve(type_name).spark not in _MOMENTS:
            raise UsageError(
                f"{table.name} is to be partitioned by the {partition.unit} of {partition.column!r}, a {type_name}",
                expected="a date or timestamp column",
                remedy="use unit: value, or another column",
            )


def check_keyless(table: LakeTable) -> None:
    """Raises UsageError for history or soft deletes of a keyless table. Events alone may show that a table is one."""
    if table.schema.is_keyless and (table.keeps_history or table.deletes == "soft"):
        name, what = ("history", "is to be kept") if table.keeps_history else ("deletes", "are to be soft")
        raise UsageError(
            f"the events of {table.name} have no key, and its {name} {what}",
            expected="an id, by which a row is found again",
            remedy=f"leave {name} out of pipeline.yml for this table, or give the table an id; remove a table that"
            " exists with cdc remove --lake, and list it again",
        )


def stats_columns(table: LakeTable) -> list[str]:
    """Returns the columns whose minimum and maximum each file records.

    They are few, to keep the table's state small.
    """
    wanted = [*table.schema.key, table.create_time, table.update_time]
    kept = dict.fromkeys(
        name
        for name in wanted
        if name in table.schema.names and not resolve(table.schema.column(name).type).spark.startswith(_WITHOUT_STATS)
    )
    own = [VERSION, END_VERSION] if table.is_history else [VERSION]
    return [*(name for name in kept if name is not None), *own]


def needs_mapping(names: list[str]) -> bool:
    """Whether the table needs column mapping, because Delta does not allow one of these names inside Parquet files."""
    return any(_NEEDS_MAPPING & set(name) for name in names)
