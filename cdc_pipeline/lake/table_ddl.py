"""CREATE TABLE statements for lake tables, with the properties that keep upserts cheap."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdc_pipeline.lake.columns import needs_mapping, own_types, stats_columns
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at, text_literal
from cdc_pipeline.lake.shape import Shape, shape_of_source
from cdc_pipeline.record import CURRENT
from cdc_pipeline.settings import PartitionBy

MAPPING = {"delta.columnMapping.mode": "name"}
_LISTED = {"delta.feature.timestampNtz": "supported"}
"""Makes the table list its features. Otherwise deltalake's `to_pandas` shows NULLs in a table with column mapping."""
STATS = "delta.dataSkippingStatsColumns"
VECTORS = "delta.enableDeletionVectors"
_NAMES = re.compile(r"(?:`(?:[^`]|``)*`|[^,`])+")
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")


def create_sql(table: LakeTable, url: str) -> str:
    names = [*table.schema.names, *(partition.lake_column for partition in table.partition_by)]
    shape = shape_of_source(table.schema)
    return shape_sql(
        replace(shape, source_id=table.source_id) if table.is_history else shape,
        table.partition_by,
        stats_columns(table),
        url,
        mapped=needs_mapping(names),
        vectors=table.deletion_vectors,
        is_history=table.is_history,
    )


def shape_sql(
    shape: Shape,
    partition_by: Sequence[PartitionBy],
    stats: Sequence[str],
    url: str,
    *,
    mapped: bool,
    vectors: bool,
    is_history: bool,
) -> str:
    keys = [identifier(partition.lake_column) for partition in partition_by]
    columns = [
        *(f"{identifier(column.name)} {column.type}" for column in shape.columns),
        *(f"{name} {type_}" for name, type_ in own_types(is_history=is_history)),
        *(f"{key} STRING" for key in keys),
    ]
    properties = properties_of_shape(shape, stats, vectors=vectors) | (MAPPING | _LISTED if mapped else {})
    keys += [CURRENT] if is_history else []
    partitioned = f" PARTITIONED BY ({', '.join(keys)})" if keys else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table_at(url)} ({', '.join(columns)}) USING delta"
        f"{partitioned} TBLPROPERTIES ({_listed(properties)})"
    )


def properties_of_shape(shape: Shape, stats: Sequence[str], *, vectors: bool) -> dict[str, str]:
    """Returns the table's properties, without those of column mapping."""
    return {
        VECTORS: "true" if vectors else "false",
        STATS: ",".join(map(identifier, stats)),
        "delta.checkpointInterval": "20",
        "delta.logRetentionDuration": "interval 7 days",
        "delta.deletedFileRetentionDuration": "interval 7 days",
    } | shape.properties()


def listed_stats(configuration: Mapping[str, str]) -> list[str]:
    """Returns the columns that STATS lists. Users may have written it, with or without quotes and spaces."""
    names = [name.strip() for name in _NAMES.findall(configuration.get(STATS, ""))]
    return [_QUOTED.sub(lambda found: found[1].replace("``", "`"), name) for name in names]


def recorded_stats(table: LakeTable, configuration: Mapping[str, str]) -> set[str]:
    """Returns the columns of which a new file has statistics: those that claims search files by, and those of STATS."""
    return {*stats_columns(table), *listed_stats(configuration)}


def _listed(properties: dict[str, str]) -> str:
    return ", ".join(f"{text_literal(name)} = {text_literal(value)}" for name, value in properties.items())
