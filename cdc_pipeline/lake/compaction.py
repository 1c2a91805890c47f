"""Writes staged snapshot rows as sorted lake files in the table's folder.

They are invisible until they are published.
"""

from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow.parquet
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.functions import expr

from cdc_pipeline.areas import encode_component, lake_key
from cdc_pipeline.lake.columns import NULL_PARTITION, definition, partition_expression, stats_columns
from cdc_pipeline.lake.file_stats import delta_stats
from cdc_pipeline.lake.new_shape import physical_names
from cdc_pipeline.lake.protocol import Compaction, DataFile, LakeTable
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import DELETED, VERSION
from cdc_pipeline.steps import OnStep, step

_NO_MARKER = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def compact(
    session: SparkSession, store: ObjectStore, table: LakeTable, work: Compaction, on_step: OnStep
) -> tuple[DataFile, ...]:
    """Sorts the rows by id into about `target_files` files. Empty files are not returned.

    Spark spills its sort to disk. A keyless table's rows are only sorted by data partition: they have no id, and all
    have one version.
    """
    physical = physical_names(store, table, work.snapshot_id)
    folder = f"{lake_key(table.name)}/snapshot-{encode_component(work.snapshot_id)}-{encode_component(work.attempt)}"
    partitions = [physical[partition.lake_column][0] for partition in table.partition_by]
    rows = _lake_rows(session, store, table, work, physical)
    keys = [identifier(physical[name][0]) for name in table.schema.key]
    order = [*map(identifier, partitions), *keys]
    if work.target_files == 1:
        rows = rows.coalesce(1)
    else:
        rows = rows.repartitionByRange(work.target_files, *keys) if keys else rows.repartition(work.target_files)
    rows = rows.sortWithinPartitions(*order) if order else rows
    with step(on_step, "snapshot_files.write"):
        write_files(rows, partitions, store.spark_url(folder))
    with step(on_step, "snapshot_files.list"):
        return written_files(store, folder, tuple(physical[name][0] for name in stats_columns(table)))


def write_files(rows: DataFrame, partitions: Sequence[str], url: str) -> None:
    """Writes Parquet files into a folder that no other call uses.

    Column and partition names are those that files use.
    """
    writer = rows.write.options(**_NO_MARKER).mode("overwrite")
    (writer.partitionBy(*partitions) if partitions else writer).parquet(url)


def written_files(store: ObjectStore, folder: str, stats: tuple[str, ...]) -> tuple[DataFile, ...]:
    """Returns the files that `write_files` wrote, with the statistics of the columns `stats`.

    Empty files are not returned.
    """
    keys = [found.key for found in store.list_prefix(folder) if found.key.endswith(".parquet")]
    files = [_data_file(store, folder, key, stats) for key in keys if not _hidden(key)]
    return tuple(file for file in files if file.rows)


def _lake_rows(
    session: SparkSession,
    store: ObjectStore,
    table: LakeTable,
    work: Compaction,
    physical: dict[str, tuple[str, int | None]],
) -> DataFrame:
    staged = session.read.schema(", ".join(map(definition, table.schema.columns))).parquet(
        *map(store.spark_url, work.staged_keys)
    )
    values = {name: identifier(name) for name in table.schema.names} | {VERSION: text_literal(work.version)}
    if DELETED in physical:
        values[DELETED] = "false"
    for partition in table.partition_by:
        values[partition.lake_column] = partition_expression(partition, identifier(partition.column))
    return staged.select(*(named(expr(value), *physical[name]) for name, value in values.items()))


def named(value: SparkColumn, name: str, field_id: int | None) -> SparkColumn:
    return value.alias(name) if field_id is None else value.alias(name, metadata={"parquet.field.id": field_id})


def _hidden(key: str) -> bool:
    return key.rsplit("/", 1)[-1].startswith((".", "_"))


def _data_file(store: ObjectStore, folder: str, key: str, stats: tuple[str, ...]) -> DataFile:
    filesystem, root = store.filesystem()
    with filesystem.open_input_file(f"{root}/{key}") as content:
        size_bytes = content.size()
        metadata = pyarrow.parquet.read_metadata(content)
    folders = key.removeprefix(f"{folder}/").split("/")[:-1]
    values = [part.split("=", 1) for part in folders]
    return DataFile(
        key=key,
        size_bytes=size_bytes,
        rows=metadata.num_rows,
        partition_values=tuple((unquote(name), _partition_value(value)) for name, value in values),
        stats=delta_stats(metadata, stats),
    )


def _partition_value(folder_value: str) -> str | None:
    return None if folder_value == NULL_PARTITION else unquote(folder_value)
