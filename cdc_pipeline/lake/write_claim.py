"""Writes rows as new data files of a table, sorted like a snapshot's. No commit refers to them yet."""

from pyspark.sql import SparkSession
from pyspark.sql.connect.functions import expr

from cdc_pipeline.lake.columns import HISTORY_IN_FILES, partition_expression
from cdc_pipeline.lake.compaction import named, write_files, written_files
from cdc_pipeline.lake.delta_log import Action
from cdc_pipeline.lake.new_shape import physical_fields, physical_parts
from cdc_pipeline.lake.protocol import ClaimWork, DataFile
from cdc_pipeline.lake.quoting import identifier
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.schema_change import Fitted
from cdc_pipeline.lake.table_ddl import recorded_stats
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import CURRENT, STATE

_ROWS_PER_FILE = 1_000_000


def files_for(work: ClaimWork) -> int:
    """Returns how many files the rows of a claim need."""
    return -(-sum(content.rows for content in work.slices) // _ROWS_PER_FILE)


def write_rows(
    session: SparkSession,
    store: ObjectStore,
    fitted: Fitted,
    metadata: Action,
    sql: str,
    folder: str,
    *,
    files: int | None,
) -> tuple[DataFile, ...]:
    """Returns the files with rows; they are complete on return. `sql` returns rows with the lake's column names.

    Those of a history table have all its columns; others may lack some, which are NULL. `folder` is an object-store key
    that no other call uses. `files`: how many files to write, if each data partition has one; None: as many as Spark
    reads parts.
    """
    physical = physical_fields(metadata)
    source = session.sql(sql)
    is_history = fitted.table.is_history  # its columns are known without asking Spark, which takes a tenth of a second
    names = (*fitted.shape.names, *HISTORY_IN_FILES) if is_history else source.columns
    values = {name: identifier(name) for name in (*fitted.shape.names, *HISTORY_IN_FILES) if name in names}
    if STATE in names:
        values[STATE] = _state(*map(identifier, physical_parts(metadata, STATE)))
    for partition in fitted.table.partition_by:
        values[partition.lake_column] = partition_expression(partition, identifier(partition.column))
    partitions = [physical[partition.lake_column][0] for partition in fitted.table.partition_by]
    if is_history:
        values[CURRENT] = CURRENT
        partitions.append(physical[CURRENT][0])
    rows = source.select(*(named(expr(value), *physical[name]) for name, value in values.items()))
    keys = [identifier(physical[name][0]) for name in fitted.table.schema.key]
    if files is not None:
        rows = rows.repartitionByRange(files, *keys) if files > 1 and keys else rows.coalesce(files)
    order = [*map(identifier, partitions), *keys]
    write_files(rows.sortWithinPartitions(*order) if order else rows, partitions, store.spark_url(folder))
    recorded = recorded_stats(fitted.table, configuration_of(metadata))
    stats = tuple(inside for name, (inside, _) in physical.items() if name in recorded)
    return written_files(store, folder, stats)


def _state(deletion: str, columns: str) -> str:
    """Returns SQL for STATE whose parts have the names that files have inside."""
    return f"CAST({STATE} AS STRUCT<{deletion}: STRING, {columns}: MAP<STRING, STRING>>)"
