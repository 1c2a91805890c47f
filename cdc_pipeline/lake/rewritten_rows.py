"""All rows of a lake table in a new shape, after its source has changed, under the names that files use."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.functions import expr

from cdc_pipeline.lake.columns import HISTORY_TYPES, partition_expression
from cdc_pipeline.lake.compaction import named
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.new_shape import physical_fields, physical_parts
from cdc_pipeline.lake.quoting import identifier, text_literal, value_literal
from cdc_pipeline.lake.shape import LakeColumn, ShapeChange
from cdc_pipeline.record import PARTIAL, STATE
from cdc_pipeline.settings import PartitionBy

_UNCHANGED = tuple(name for name, _ in HISTORY_TYPES if name != PARTIAL)


def rewritten_rows(
    session: SparkSession,
    url: str,
    read: int,
    change: ShapeChange,
    partitions: Mapping[str, PartitionBy],
    after: Action,
) -> DataFrame:
    """Returns all rows of version `read`, hidden ones included, in the shape after `change`.

    `partitions`: old data partition column -> the partition after the change. `after` is the new metadata of the table.
    """
    rows = session.read.format("delta").option("versionAsOf", read).load(url)
    values = {column.name: _value(change, column) for column in change.after.columns}
    values |= {name: identifier(name) for name in _UNCHANGED if name in rows.columns}
    if STATE in rows.columns:
        values[STATE] = _state(change, *map(identifier, physical_parts(after, STATE)))
    if PARTIAL in rows.columns:
        values[PARTIAL] = _partial(change)
    for before, partition in partitions.items():
        # A long value may name no folder in full, as an earlier version wrote it into the log.
        recomputed = partition.unit == "value" or partition.column in change.widened
        values[partition.lake_column] = (
            partition_expression(partition, values[partition.column]) if recomputed else identifier(before)
        )
    physical = physical_fields(after)
    return rows.select(*(named(expr(value), *physical[name]) for name, value in values.items()))


def _value(change: ShapeChange, column: LakeColumn) -> str:
    was = change.sources[column.name]
    if was is not None:
        return f"CAST({identifier(was)} AS {column.type})" if column.name in change.widened else identifier(was)
    return f"CAST({value_literal(column.missing_value, column.missing_type)} AS {column.type})"


def _state(change: ShapeChange, deletion: str, columns: str) -> str:
    """Returns SQL for STATE with columns renamed and removed, because it has the versions by column name."""
    kept = f"{STATE}.columns"
    if change.removed:
        kept = f"map_filter({kept}, (name, version) -> {_is_kept(change)})"
    if change.renamed:
        kept = f"transform_keys({kept}, (name, version) -> {_new_name(change)})"
    type_ = f"STRUCT<{deletion}: STRING, {columns}: MAP<STRING, STRING>>"
    return f"IF({STATE} IS NULL, NULL, CAST(named_struct('deletion', {STATE}.deletion, 'columns', {kept}) AS {type_}))"


def _partial(change: ShapeChange) -> str:
    """Returns SQL for PARTIAL with columns renamed and removed."""
    names = "names"
    if change.removed:
        names = f"filter({names}, name -> {_is_kept(change)})"
    if change.renamed:
        names = f"transform({names}, name -> {_new_name(change)})"
    return PARTIAL if names == "names" else f"transform_values({PARTIAL}, (version, names) -> {names})"


def _is_kept(change: ShapeChange) -> str:
    return f"name NOT IN ({', '.join(map(text_literal, change.removed))})"


def _new_name(change: ShapeChange) -> str:
    cases = " ".join(f"WHEN {text_literal(was)} THEN {text_literal(name)}" for was, name in change.renamed.items())
    return f"CASE name {cases} ELSE name END"
