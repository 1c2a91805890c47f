"""Gives a lake table another shape: new metadata and, if its rows change, new files.

Spark creates an empty table of the new shape beside the lake's table, and its metadata is copied. If the rows change,
Spark writes them into new files, which are invisible before the commit.
"""

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.columns import needs_mapping, own_types, stats_columns
from cdc_pipeline.lake.compaction import write_files, written_files
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.new_shape import (
    MOST_MAPPED,
    both_protocols,
    delta_fields,
    physical_fields,
    shape_key,
    with_fields_of,
)
from cdc_pipeline.lake.protocol import Clock, LakeTable
from cdc_pipeline.lake.publication import add, remove
from cdc_pipeline.lake.rewritten_rows import rewritten_rows
from cdc_pipeline.lake.shape import Shape, ShapeChange, shape_of
from cdc_pipeline.lake.table_ddl import MAPPING, STATS, VECTORS, listed_stats, shape_sql
from cdc_pipeline.lake.table_features import unknown_features
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import CURRENT, END_VERSION, OWN_PREFIX
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.steps import OnStep, step

_PARTITION = re.compile(rf"{OWN_PREFIX}(?P<column>.+)_(?P<unit>value|year|month|day|hour)", re.DOTALL)
_OF_SHAPE = (*MAPPING, MOST_MAPPED, STATS, VECTORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshaping:
    """The planned change of the table that `metadata` describes as of version `read`.

    `partitions`: the data partitions with their columns' new names, in the order of `metadata`. `mapped`: column names
    are mapped to others inside the files. `vectors`: whether commits may write deletion vectors.
    """

    metadata: Action
    read: int
    change: ShapeChange
    partitions: tuple[PartitionBy, ...]
    mapped: bool
    vectors: bool

    @property
    def is_none(self) -> bool:
        return self.change.is_none and self.is_described

    @property
    def is_described(self) -> bool:
        """Whether only the pipeline's own table properties change."""
        return not (self.rewrites or self.change.added or self._lacks_own or self.vectors != self._had_vectors)

    @property
    def rewrites(self) -> bool:
        return self.change.rewrites or self.loses_vectors or self.mapped != self._was_mapped

    @property
    def loses_vectors(self) -> bool:
        return self._had_vectors and not self.vectors

    @property
    def partition_names(self) -> dict[str, PartitionBy]:
        """Old data partition column -> the partition after the change."""
        before = (partition.lake_column for partition in data_partitions(self.metadata))
        return dict(zip(before, self.partitions, strict=True))

    @property
    def stats(self) -> list[str]:
        """Columns with statistics, under their new names."""
        known = listed_stats(self.configuration)
        sources = {**self.change.sources, **{name: name for name in self._own}}
        return [name for name, was in sources.items() if was is not None and was in known]

    @property
    def configuration(self) -> Mapping[str, str]:
        return configuration_of(self.metadata)

    @property
    def _was_mapped(self) -> bool:
        return is_mapped(self.metadata)

    @property
    def _had_vectors(self) -> bool:
        return self.configuration.get(VECTORS) == "true"

    @property
    def is_history(self) -> bool:
        return any(name == END_VERSION for name, _ in delta_fields(self.metadata))

    @property
    def _own(self) -> list[str]:
        return [name for name, _ in own_types(is_history=self.is_history)]

    @property
    def _lacks_own(self) -> bool:
        return not {*self._own} <= {name for name, _ in delta_fields(self.metadata)}


def reshaping_of(metadata: Action, read: int, plan: Callable[[Shape], ShapeChange], *, vectors: bool) -> Reshaping:
    change = plan(shape_of(delta_fields(metadata), configuration_of(metadata), metadata["partitionColumns"]))
    partitions = tuple(
        PartitionBy(column=change.renamed.get(found.column, found.column), unit=found.unit)
        for found in data_partitions(metadata)
    )
    names = [*change.after.names, *(partition.lake_column for partition in partitions)]
    return Reshaping(
        metadata=metadata,
        read=read,
        change=change,
        partitions=partitions,
        mapped=is_mapped(metadata) or needs_mapping(names),
        vectors=vectors,
    )


def configuration_of(metadata: Action) -> Mapping[str, str]:
    return metadata.get("configuration") or {}


def is_mapped(metadata: Action) -> bool:
    return configuration_of(metadata).items() >= MAPPING.items()


def data_partitions(metadata: Action) -> tuple[PartitionBy, ...]:
    """Returns the data partitions, read from the names of the lake's partition columns."""
    found = (_PARTITION.fullmatch(name) for name in metadata.get("partitionColumns", ()))
    return tuple(PartitionBy.model_validate(parts.groupdict()) for parts in found if parts is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshaper:
    """Makes the actions of a reshaping, for the table whose log is `log`."""

    session: SparkSession
    store: ObjectStore
    log: DeltaLog
    clock: Clock
    on_step: OnStep

    def actions(self, table: LakeTable, work: Reshaping) -> list[Action]:
        """Returns the actions for one commit directly after `work.read`."""
        properties = work.change.after.properties()
        if work.is_described:
            return [{"metaData": {**work.metadata, "configuration": {**work.configuration, **properties}}}]
        side, key = self._empty_table(table, work)
        with step(self.on_step, "lake_schema.read"):
            described, protocol = side.metadata(0), side.newest("protocol", 0)
            old = self.log.newest("protocol", work.read)
        made = configuration_of(described)
        configuration = {**work.configuration, **{name: made[name] for name in _OF_SHAPE if name in made}}
        after = {**work.metadata, "configuration": {**configuration, **properties}}
        after |= {name: described[name] for name in ("schemaString", "partitionColumns")}
        if work.mapped and not work.rewrites:
            after = with_fields_of(work.metadata, after)
        lost = [*unknown_features(protocol), *(("deletionVectors",) if work.loses_vectors else ())]
        files = self._files(table, work, after, key) if work.rewrites else []
        return [{"protocol": both_protocols(old, protocol, without=lost)}, {"metaData": after}, *files]

    def _empty_table(self, table: LakeTable, work: Reshaping) -> tuple[DeltaLog, str]:
        """Creates an empty table of the new shape. Returns its log, and a name that only this attempt uses."""
        # Begins like a snapshot's name: `cdc clean` reads there how old an area for staging is.
        name = f"{self.clock():%Y%m%dT%H%M%SZ}-shape-{uuid.uuid4().hex}"
        key = shape_key(table, name)
        sql = shape_sql(
            work.change.after,
            work.partitions,
            work.stats,
            self.store.spark_url(key),
            mapped=work.mapped,
            vectors=work.vectors,
            is_history=work.is_history,
        )
        with step(self.on_step, "lake_schema.prepare"):
            self.session.sql(sql).collect()
        return self.log.beside(key), name

    def _files(self, table: LakeTable, work: Reshaping, after: Action, name: str) -> list[Action]:
        """Writes the rows of version `read` into new files.

        Returns the actions that remove the old files and add the new ones.
        """
        milliseconds = int(self.clock().timestamp() * 1000)
        with step(self.on_step, "lake_schema.read"):
            old = self.log.active_files(work.read).values()
        if not old:
            return []
        physical = {column: inside for column, (inside, _) in physical_fields(after).items()}
        folder = f"{lake_key(table.name)}/{name}"
        with step(self.on_step, "lake_files.write"):
            url = self.store.spark_url(lake_key(table.name))
            rows = rewritten_rows(self.session, url, work.read, work.change, work.partition_names, after)
            keys = [physical[partition.lake_column] for partition in work.partitions]
            keys += [physical[CURRENT]] if work.is_history else []
            write_files(rows, keys, self.store.spark_url(folder))
            recorded = dict.fromkeys([*work.stats, *(name for name in stats_columns(table) if name in physical)])
            files = written_files(self.store, folder, tuple(physical[column] for column in recorded))
        return [*(remove(file, milliseconds) for file in old), *(add(table, file, milliseconds) for file in files)]
