"""The columns of a lake table: the source's, our own, and the data partition keys."""

from cdc_pipeline.errors import UsageError
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import DELETED, STATE, STATE_TYPE, VERSION, Column
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.types import resolve

OWN_TYPES = ((VERSION, "STRING"), (DELETED, "BOOLEAN"), (STATE, STATE_TYPE))
"""The columns that every lake table has beside the source's."""

_FORMATS = {"year": "yyyy", "month": "yyyy-MM", "day": "yyyy-MM-dd", "hour": "yyyy-MM-dd'T'HH"}
_MOMENTS = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ")
_WITHOUT_STATS = ("BOOLEAN", "BINARY", "ARRAY")
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


def definition(column: Column) -> str:
    """`name` TYPE, as Spark's DDL has it."""
    return f"{identifier(column.name)} {resolve(column.type).spark}"


def partition_expression(partition: PartitionBy, column: str) -> str:
    """The text that a row's data partition is named by, in UTC; `column` is SQL."""
    if partition.unit == "value":
        return f"CAST({column} AS STRING)"
    return f"date_format({column}, {text_literal(_FORMATS[partition.unit])})"


def check_partitions(table: LakeTable) -> None:
    """Raises UsageError for a unit of time over a column that is no moment, or a column that is not there."""
    for partition in table.partition_by:
        if partition.column not in table.schema.names:
            raise UsageError(
                f"{table.name} has no column {partition.column!r} to partition by",
                expected=f"one of {', '.join(table.schema.names)}",
                remedy="mend partition_by in pipeline.yml",
            )
        type_name = table.schema.column(partition.column).type
        if partition.unit != "value" and resolve(type_name).spark not in _MOMENTS:
            raise UsageError(
                f"{table.name} is to be partitioned by the {partition.unit} of {partition.column!r}, a {type_name}",
                expected="a date or timestamp column",
                remedy="use unit: value, or another column",
            )


def stats_columns(table: LakeTable) -> list[str]:
    """Columns whose least and greatest value each file records: few, so that the table's state stays small."""
    wanted = [*table.schema.key, table.create_time, table.update_time]
    kept = dict.fromkeys(
        name
        for name in wanted
        if name in table.schema.names and not resolve(table.schema.column(name).type).spark.startswith(_WITHOUT_STATS)
    )
    return [*(name for name in kept if name is not None), VERSION]


def needs_mapping(names: list[str]) -> bool:
    """Whether Parquet files of Delta cannot use these names as they are."""
    return any(_NEEDS_MAPPING & set(name) for name in names)
