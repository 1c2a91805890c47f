"""CREATE TABLE of a lake table, with the properties that keep its upserts cheap."""

from cdc_pipeline.lake.columns import lake_definitions, needs_mapping, stats_columns
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at, text_literal

MAPPING = {"delta.columnMapping.mode": "name"}


def create_sql(table: LakeTable, url: str) -> str:
    properties = {
        "delta.enableDeletionVectors": "true",
        "delta.dataSkippingStatsColumns": ",".join(map(identifier, stats_columns(table))),
        "delta.checkpointInterval": "20",
        "delta.logRetentionDuration": "interval 7 days",
        "delta.deletedFileRetentionDuration": "interval 7 days",
    }
    names = [*table.schema.names, *(partition.lake_column for partition in table.partition_by)]
    if needs_mapping(names):
        properties |= MAPPING
    partitions = ", ".join(identifier(partition.lake_column) for partition in table.partition_by)
    return (
        f"CREATE TABLE IF NOT EXISTS {table_at(url)} ({', '.join(lake_definitions(table))}) USING delta"
        f"{f' PARTITIONED BY ({partitions})' if partitions else ''} TBLPROPERTIES ({property_list(properties)})"
    )


def property_list(properties: dict[str, str]) -> str:
    return ", ".join(f"{text_literal(name)} = {text_literal(value)}" for name, value in properties.items())
