"""Removes a table, or the whole pipeline, from source and metadata store, and on request from the bucket.

A removal may be killed at any step and repeated: something that is already gone is no error. The metadata is deleted
last, so that a repetition still knows what belongs to the pipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from cdc_pipeline.areas import CDC_EVENT, DB_SNAPSHOT, STAGING_AREA, lake_key, stream_prefix, table_prefix
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.errors import UsageError
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, history_name
from cdc_pipeline.sources.protocol import Source
from cdc_pipeline.steps import OnStep, step

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What was removed. `left_to_do`: statements for the source that the pipeline's role is not allowed to run."""

    tables: tuple[TableName, ...]
    was_known: bool
    objects: int
    left_to_do: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRemoval:
    """Removes a table, or the whole pipeline. `listed`: the tables of pipeline.yml."""

    stream: str
    listed: tuple[TableName, ...]
    store: MetadataStore
    source: Source
    objects: ObjectStore
    chain: CutChain
    on_step: OnStep

    def remove_table(self, name: TableName, *, with_lake: bool) -> Removed:
        """Removes one table; `with_lake`: also its slices, snapshots and lake table.

        First registers what a consumer that was killed has decided: the next consumer would register the table again.
        Raises UsageError while pipeline.yml lists it, LeaseBusy while a consumer or another process works on it.
        """
        if name in self.listed:
            raise UsageError(
                f"pipeline.yml lists {name}, and the next consumer would register it again",
                expected="a table that is no longer to be kept",
                remedy="take it out of pipeline.yml, restart the consumer and Airflow's parser, then remove it",
            )
        self.store.removal.check_idle(self.stream, name)
        left = self.source.leave([name], whole=False)
        if self.store.tables.find(name) is not None:
            self.chain.catch_up()
        objects = self._delete_objects(_prefixes(name)) if with_lake else 0
        known = self.store.removal.remove_table(self.stream, name)
        return Removed(tables=(name,), was_known=known, objects=objects, left_to_do=left)

    def remove_pipeline(self, *, with_lake: bool, source_is_gone: bool = False) -> Removed:
        """Removes slot, publication, cut files and metadata; `with_lake`: also slices, snapshots and lake tables.

        `source_is_gone`: the source is not contacted. Raises LeaseBusy while a consumer or another process is at work.
        """
        self.store.removal.check_idle(self.stream)
        registered = [row.name for row in self.store.tables.tables() if row.stream == self.stream]
        tables = tuple(dict.fromkeys((*self.listed, *registered)))
        left = () if source_is_gone else self.source.leave(tables, whole=True)
        prefixes = [stream_prefix(self.stream), *(prefix for name in tables if with_lake for prefix in _prefixes(name))]
        objects = self._delete_objects(prefixes)
        known = self.store.removal.remove_stream(self.stream)
        log.info("pipeline removed", stream=self.stream, tables=len(tables), objects=objects)
        return Removed(tables=tables, was_known=known, objects=objects, left_to_do=left)

    def _delete_objects(self, prefixes: Sequence[str]) -> int:
        count = 0
        for prefix in prefixes:
            with step(self.on_step, "removed_objects.delete"):
                keys = [found.key for found in self.objects.list_prefix(prefix)]
                self.objects.delete_all(keys)
            count += len(keys)
        return count


def _prefixes(name: TableName) -> list[str]:
    areas = [table_prefix(area, name) for area in (CDC_EVENT, DB_SNAPSHOT, STAGING_AREA)]
    return [*areas, lake_key(name), lake_key(history_name(name))]
