"""CREATE TABLE statements for lake tables, with the properties that keep upserts cheap."""

from collections.abc import Sequence
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


def _listed(properties: dict[str, str]) -> str:
    return ", ".join(f"{text_literal(name)} = {text_literal(value)}" for name, value in properties.items())
