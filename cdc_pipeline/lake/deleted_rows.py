"""The rows of a table with soft deletes that its next snapshot lacks: the source deleted them, and the lake keeps them.

Spark compares the ids, and writes these rows, flagged, into files with the snapshot's columns. They are invisible until
the snapshot is published.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.functions import expr

from cdc_pipeline.areas import encode_component, lake_key
from cdc_pipeline.lake.columns import partition_expression, stats_columns
from cdc_pipeline.lake.compaction import named, write_files, written_files
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.lake_rows_sql import DELETION, HIDDEN
from cdc_pipeline.lake.ledger import published_table
from cdc_pipeline.lake.ledger_values import PublishedTable
from cdc_pipeline.lake.new_shape import delta_fields, physical_names
from cdc_pipeline.lake.protocol import DataFile, LakeTable
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.lake.shape import LakeColumn, Shape, shape_of
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import DELETED, VERSION, Column
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.types import resolve, wider

logger = structlog.get_logger()

_ROWS_PER_FILE = 1_000_000
_NUMBER = re.compile(r"SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)")
_WITHOUT_TEXT = ("ARRAY", "BINARY")
"""Types of Spark whose values Spark writes as another text than sources do."""


def sources_of(
    metadata: Action, folder: str, table: LakeTable, published: PublishedTable
) -> dict[str, LakeColumn | None] | None:
    """Returns column of the snapshot -> the lake's column whose values it takes; None for a new one.

    `metadata`: of the lake's table, whose log is in `folder`. `published`: what the snapshot publishes. Returns None if
    ids of the lake cannot be compared with the snapshot's, because the id has other columns or types now.
    """
    configuration = metadata.get("configuration") or {}
    before = shape_of(delta_fields(metadata), configuration, metadata["partitionColumns"])
    known = published_table(configuration, folder)
    lake = before if known is None or _is_same_source(known, published) else _without_numbers(before)
    sources = {column.name: lake.find(column) for column in table.schema.columns}
    ids = {column.name: sources[column.name] for column in table.schema.key_columns}
    if any(was is None or wider(was.type, _type(table.schema.column(name))) is None for name, was in ids.items()):
        return None
    if known is not None:
        names = before.lake_names(known.schema)
        if {was.name for was in ids.values() if was is not None} != {names.get(name) for name in known.schema.key}:
            return None
    return sources


def right_before(version: str) -> str:
    """Returns a version that is older than this one, and newer than those of earlier positions.

    By it a row of the snapshot that was quarantined comes back once it is replayed, with the snapshot's own version.
    Before the first position, it is older than every version, but none that is missing.
    """
    return version[:-1] or "-"


def _is_same_source(known: PublishedTable, published: PublishedTable) -> bool:
    """Whether column numbers mean the same columns in both. Without a number of the table, a new one begins them."""
    is_numbered = published.source_oid != 0
    return known.source_oid == published.source_oid and (is_numbered or known.table_uuid == published.table_uuid)


def _without_numbers(shape: Shape) -> Shape:
    return replace(shape, columns=tuple(replace(column, number=None) for column in shape.columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRows:
    """The rows of `table` that a snapshot lacks. `files`: those of the snapshot. `published`: what it publishes."""

    session: SparkSession
    store: ObjectStore
    on_step: OnStep
    table: LakeTable
    files: tuple[DataFile, ...]
    published: PublishedTable

    def write(self, read: int) -> tuple[DataFile, ...]:
        """Writes the rows of version `read` that the snapshot lacks into files of their own, and returns these.

        Returns none, and logs how many flagged rows go, if the id has other columns or types now.
        """
        log = DeltaLog(self.store, lake_key(self.table.name))
        with step(self.on_step, "lake_schema.read"):
            sources = sources_of(log.metadata(read), log.folder, self.table, self.published)
            physical = physical_names(self.store, self.table, self.published.snapshot_id)
        lake = self.session.read.format("delta").option("versionAsOf", read).load(self.store.spark_url(log.table_key))
        rows = lake.where(HIDDEN) if sources is None else self._missing(lake, sources, physical)
        with step(self.on_step, "lake_files.read"):
            count = rows.count()
        if sources is None and count:
            logger.warning(
                "flagged rows are not kept: the table has another id", table=str(self.table.name), rows=count
            )
        return self._written(rows, count, physical) if count and sources is not None else ()

    def _missing(
        self, lake: DataFrame, sources: Mapping[str, LakeColumn | None], physical: Mapping[str, tuple[str, int | None]]
    ) -> DataFrame:
        """Returns the rows with the snapshot's columns, and the VERSION of their delete."""
        schema, version = self.table.schema, text_literal(right_before(self.published.cutoff_version))
        values = {column.name: _value(column, sources[column.name]) for column in schema.columns}
        values[VERSION] = f"IF({DELETION} >= {VERSION}, least({DELETION}, {version}), {version})"
        rows = lake.select(*(expr(value).alias(name) for name, value in values.items()))
        if not self.files:
            return rows
        types = ", ".join(f"{identifier(physical[each.name][0])} {_type(each)}" for each in schema.key_columns)
        # Without this option Spark adds a column for each folder like `x=1`.
        files = self.session.read.schema(types).option("recursiveFileLookup", "true")
        ids = files.parquet(*(self.store.spark_url(file.key) for file in self.files))
        same = (f"lake.{identifier(name)} = snapshot.{identifier(physical[name][0])}" for name in schema.key)
        return rows.alias("lake").join(ids.alias("snapshot"), expr(" AND ".join(same)), "left_anti")

    def _written(
        self, rows: DataFrame, count: int, physical: Mapping[str, tuple[str, int | None]]
    ) -> tuple[DataFile, ...]:
        values = {name: identifier(name) for name in (*self.table.schema.names, VERSION)} | {DELETED: "true"}
        for partition in self.table.partition_by:
            values[partition.lake_column] = partition_expression(partition, identifier(partition.column))
        partitions = [physical[partition.lake_column][0] for partition in self.table.partition_by]
        order = [*map(identifier, partitions), *(identifier(physical[name][0]) for name in self.table.schema.key)]
        rows = rows.select(*(named(expr(value), *physical[name]) for name, value in values.items()))
        parts = -(-count // _ROWS_PER_FILE)
        rows = rows.repartitionByRange(parts, *order) if parts > 1 else rows.repartition(1)
        name = f"snapshot-{encode_component(self.published.snapshot_id)}-deleted-{uuid.uuid4().hex}"
        folder = f"{lake_key(self.table.name)}/{name}"
        with step(self.on_step, "lake_files.write"):
            write_files(rows.sortWithinPartitions(*order), partitions, self.store.spark_url(folder))
            return written_files(self.store, folder, tuple(physical[each][0] for each in stats_columns(self.table)))


def _value(column: Column, was: LakeColumn | None) -> str:
    """Returns SQL for the column's value in a row of the lake; NULL for a value that its type cannot hold."""
    type_ = _type(column)
    if was is None:
        return f"CAST(NULL AS {type_})"
    if was.type == type_:
        return identifier(was.name)
    if wider(was.type, type_) or (_NUMBER.fullmatch(was.type) and _NUMBER.fullmatch(type_)):
        return f"try_cast({identifier(was.name)} AS {type_})"
    if was.type.startswith(_WITHOUT_TEXT) or type_.startswith(_WITHOUT_TEXT):
        return f"CAST(NULL AS {type_})"
    return f"try_cast(CAST({identifier(was.name)} AS STRING) AS {type_})"


def _type(column: Column) -> str:
    return resolve(column.type).spark
