"""Removes a table, or the whole pipeline, from source and metadata store, and on request from the bucket.

A removal may be killed at any step and repeated. The metadata is deleted last, and of a table's objects the one that
names its owner, so that a repetition still knows what belongs to the pipeline. Only objects that belong to this
pipeline are deleted: several pipelines may share a lake and use the same table names.
"""

from dataclasses import dataclass

import structlog

from cdc_pipeline.areas import CDC_EVENT, DB_SNAPSHOT, STAGING_AREA, lake_key, owner_key, stream_prefix, table_prefix
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.errors import SettingsError, UsageError
from cdc_pipeline.lake.protocol import Lake
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.operations.source_setup.lake_owner import has_owner_object, owner_of_lake_table
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
    lake: Lake
    chain: CutChain
    on_step: OnStep

    def remove_table(self, name: TableName, *, with_lake: bool) -> Removed:
        """Removes one table; `with_lake`: also its slices, snapshots and lake table.

        First registers what a consumer that was killed has decided: the next consumer would register the table again.
        Raises UsageError while pipeline.yml lists it, LeaseBusy while a consumer or another process works on it.
        With `with_lake`, raises UsageError for a table that is not this pipeline's.
        """
        if name in self.listed:
            raise UsageError(
                f"pipeline.yml lists {name}, and the next consumer would register it again",
                expected="a table that is no longer to be kept",
                remedy="take it out of pipeline.yml, stop the consumer, then remove it",
            )
        self.store.removal.check_idle(self.stream, name)
        if with_lake and not self._owns(name, is_registered=self.store.tables.find(name) is not None):
            raise UsageError(
                f"neither the metadata store nor the lake has a table {name} of the pipeline {self.stream}",
                expected="a table that this pipeline has, or has had",
                remedy="correct its name; of a removal that was repeated, nothing is left to do",
            )
        left = self.source.leave([name], whole=False)
        if self.store.tables.find(name) is not None:
            self.chain.catch_up()
        objects = self._delete_table(name) if with_lake else 0
        known = self.store.removal.remove_table(self.stream, name)
        return Removed(tables=(name,), was_known=known, objects=objects, left_to_do=left)

    def remove_pipeline(self, *, with_lake: bool, source_is_gone: bool = False) -> Removed:
        """Removes slot, publication, cut files and metadata; `with_lake`: also slices, snapshots and lake tables.

        `source_is_gone`: the source is not contacted. Raises LeaseBusy while a consumer or another process is at work.
        With `with_lake`, raises SettingsError if another pipeline owns one of the tables.
        """
        self.store.removal.check_idle(self.stream)
        registered = [row.name for row in self.store.tables.tables() if row.stream == self.stream]
        tables = tuple(dict.fromkeys((*self.listed, *registered)))
        ours = [name for name in tables if with_lake and self._owns(name, is_registered=name in registered)]
        left = () if source_is_gone else self.source.leave(tables, whole=True)
        objects = self._delete_objects(stream_prefix(self.stream)) + sum(map(self._delete_table, ours))
        known = self.store.removal.remove_stream(self.stream)
        log.info("pipeline removed", stream=self.stream, tables=len(tables), objects=objects)
        return Removed(tables=tables, was_known=known, objects=objects, left_to_do=left)

    def _owns(self, name: TableName, *, is_registered: bool) -> bool:
        """Whether the table's objects belong to this pipeline. Raises SettingsError if they belong to another one."""
        owner = owner_of_lake_table(name, objects=self.objects, on_step=self.on_step)
        if owner is None:
            return is_registered
        if owner.pipeline == self.stream:
            return True
        raise SettingsError(
            f"{name} in the lake {self.objects.url} belongs to the pipeline {owner.pipeline}",
            expected=f"tables of the pipeline {self.stream} only; nothing was removed",
            remedy="take it out of pipeline.yml, or remove without --lake",
        )

    def _delete_table(self, name: TableName) -> int:
        """Deletes the objects of the table, and last the one that names its owner.

        What a dead worker left running in Spark is cancelled first: it would commit into the folder afterwards.
        """
        row = self.store.tables.find(name)
        claim = None if row is None else self.store.claims.open_claim(row.table_id)
        if claim is not None and claim.session:
            self.lake.cancel(claim.session, str(claim.claim_id))
        owner = owner_key(name)
        count = sum(self._delete_objects(prefix, but=owner) for prefix in self._prefixes(name))
        with step(self.on_step, "removed_objects.delete"):
            self.objects.delete(owner)
        return count

    def _prefixes(self, name: TableName) -> list[str]:
        """Returns the folders of the table, without that of its history if a table has this name itself."""
        areas = [table_prefix(area, name) for area in (CDC_EVENT, DB_SNAPSHOT, STAGING_AREA)]
        history = history_name(name)
        is_table = (
            history in self.listed
            or self.store.tables.find(history) is not None
            or has_owner_object(history, objects=self.objects, on_step=self.on_step)
        )
        return [*areas, lake_key(name), *([] if is_table else [lake_key(history)])]

    def _delete_objects(self, prefix: str, *, but: str = "") -> int:
        """Deletes what is below the prefix, except `but`. Returns how many objects there were."""
        with step(self.on_step, "removed_objects.delete"):
            found = [each.key for each in (*self.objects.list_prefix(prefix), *self.objects.unfinished(prefix))]
            self.objects.delete_all([key for key in found if key != but])
        return len(found)
