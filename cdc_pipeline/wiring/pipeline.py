"""What one process works with, and the workers and operations that are built from it."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from cdc_pipeline.apply.claim_work import ClaimLimits
from cdc_pipeline.apply.slice_to_lake import SliceWorker
from cdc_pipeline.areas import STAGING_AREA, lake_key
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.errors import SettingsError
from cdc_pipeline.installation.endpoints import Endpoints
from cdc_pipeline.lake.protocol import Lake, LakeTable
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.retry_policy import RetryPolicy
from cdc_pipeline.sources.protocol import Source
from cdc_pipeline.steps import OnStep
from cdc_pipeline.wiring.adapters import open_lake, open_object_store

if TYPE_CHECKING:
    from cdc_pipeline.operations.apply_tables import SliceRuns
    from cdc_pipeline.operations.held_cuts import HeldCuts
    from cdc_pipeline.operations.late_slices import LateSlices
    from cdc_pipeline.operations.maintenance import Maintenance
    from cdc_pipeline.operations.rebuild import StoreRebuild
    from cdc_pipeline.operations.removal import PipelineRemoval
    from cdc_pipeline.operations.repair import Repair
    from cdc_pipeline.operations.replay import Replay
    from cdc_pipeline.operations.retention import Cleanup
    from cdc_pipeline.operations.rewind import Rewind
    from cdc_pipeline.operations.source_copies import SourceCopies
    from cdc_pipeline.operations.verification import Verification
    from cdc_pipeline.operations.warm_up import WarmUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Builds every worker and operation from what it uses. One per process; threads share it, except for `lake`."""

    settings: Settings
    endpoints: Endpoints
    source: Source
    objects: ObjectStore
    store: MetadataStore
    open_lake: Callable[[], Lake]
    owner: str
    clock: Callable[[], datetime]
    new_id: Callable[[], UUID]
    on_step: OnStep

    @property
    def lake(self) -> Lake:
        return self.open_lake()

    def lake_table(self, name: TableName) -> LakeTable:
        """As the registry and pipeline.yml describe it now. Raises UsageError for a table that is not registered."""
        row = self.store.tables.table(name)
        if row.schema_id is None:
            raise SettingsError(f"{name} has no schema yet", remedy="run cdc setup-source")
        settings = self.settings.table(name)
        return LakeTable(
            name=name,
            table_uuid=str(row.table_uuid),
            schema=self.store.tables.schema(row.table_id, row.schema_id),
            ordered=self.source.capabilities.orders_ids(len(self.store.streams.stream_partitions(self.settings.name))),
            partition_by=settings.partition_by,
            deletes=settings.deletes,
            create_time=settings.create_time,
            update_time=settings.update_time,
            keeps_dropped=settings.dropped_columns == "keep",
            deletion_vectors=settings.deletion_vectors,
        )

    def lake_url(self, name: TableName) -> str:
        """Where Spark finds the lake's table."""
        return self.objects.spark_url(lake_key(name))

    def table_names(self, chosen: tuple[str, ...] = ()) -> tuple[TableName, ...]:
        """The chosen tables, or all of pipeline.yml. Raises SettingsError for one that it does not list."""
        known = {table.name: table.table for table in self.settings.tables}
        for name in chosen:
            if name not in known:
                raise SettingsError(
                    f"pipeline.yml lists no table {name!r}",
                    expected=f"one of {', '.join(known)}",
                    remedy="add it there, or mend the name",
                )
        return tuple(known[name] for name in chosen or known)

    def cut_chain(self) -> CutChain:
        return CutChain(name=self.settings.name, objects=self.objects, store=self.store, on_step=self.on_step)

    def slice_worker(self) -> SliceWorker:
        worker = self.settings.worker
        return SliceWorker(
            owner=self.owner,
            lease_length=worker.lease,
            limits=ClaimLimits(
                slices=worker.claim_slices, rows=worker.claim_rows, unpacked_bytes=worker.unpacked_bytes
            ),
            retry_policy=RetryPolicy(
                longest_pause=worker.longest_pause, retry_for=worker.retry_for, probe_parked=worker.probe_parked
            ),
            store=self.store,
            objects=self.objects,
            lake=self.lake,
            lake_table=self.lake_table,
            new_id=self.new_id,
            on_step=self.on_step,
        )

    def slice_runs(self) -> "SliceRuns":
        from cdc_pipeline.operations.apply_tables import EmptyLakes, SliceRuns

        empty_lakes = EmptyLakes(
            owner=self.owner,
            lease_length=self.settings.worker.lease,
            store=self.store,
            lake=self.lake,
            lake_table=self.lake_table,
            clock=self.clock,
        )
        return SliceRuns(
            store=self.store,
            worker=self.slice_worker(),
            empty_lakes=None if self.source.capabilities.copies_tables else empty_lakes,
        )

    def verification(self) -> "Verification":
        from cdc_pipeline.operations.verification import Verification

        return Verification(
            store=self.store,
            objects=self.objects,
            source=self.source,
            lake=self.lake,
            lake_table=self.lake_table,
            worker=self.slice_worker(),
            cuts=self._held_cuts(),
            copies=self._source_copies(),
            on_step=self.on_step,
        )

    def repair(self) -> "Repair":
        from cdc_pipeline.operations.repair import Repair

        return Repair(
            owner=self.owner,
            lease_length=self.settings.worker.lease,
            store=self.store,
            source=self.source,
            lake=self.lake,
            lake_table=self.lake_table,
            worker=self.slice_worker(),
            cuts=self._held_cuts(),
            copies=self._source_copies(),
            late_slices=self.late_slices(),
        )

    def _held_cuts(self) -> "HeldCuts":
        from cdc_pipeline.operations.held_cuts import HeldCuts
        from cdc_pipeline.source_setup import consume_until_idle

        return HeldCuts(
            stream=self.settings.name,
            store=self.store,
            source=self.source,
            new_id=self.new_id,
            consume_until_idle=lambda: consume_until_idle(self),
        )

    def _source_copies(self) -> "SourceCopies":
        from cdc_pipeline.operations.source_copies import SourceCopies

        return SourceCopies(objects=self.objects, new_id=self.new_id, on_step=self.on_step)

    def maintenance(self) -> "Maintenance":
        from cdc_pipeline.operations.maintenance import Maintenance
        from cdc_pipeline.source_setup import oldest_version_to_come

        return Maintenance(
            owner=self.owner,
            lease_length=self.settings.worker.lease,
            store=self.store,
            lake=self.lake,
            lake_table=self.lake_table,
            oldest_version_to_come=lambda table: oldest_version_to_come(self, table),
        )

    def rebuild(self) -> "StoreRebuild":
        from cdc_pipeline.operations.rebuild import StoreRebuild

        return StoreRebuild(
            stream=self.settings.name,
            tables=self.table_names(),
            store=self.store,
            objects=self.objects,
            lake=self.lake,
            chain=self.cut_chain(),
            on_step=self.on_step,
        )

    def cleanup(self) -> "Cleanup":
        from cdc_pipeline.operations.retention import Cleanup
        from cdc_pipeline.operations.retention.objects import OldObjects

        return Cleanup(
            keep=self.settings.keep,
            owner=self.owner,
            lease_length=self.settings.worker.lease,
            store=self.store,
            lake=self.lake,
            chain=self.cut_chain(),
            old_objects=OldObjects(
                stream=self.settings.name, store=self.store, objects=self.objects, on_step=self.on_step
            ),
        )

    def late_slices(self) -> "LateSlices":
        from cdc_pipeline.operations.late_slices import LateSlices

        return LateSlices(store=self.store, objects=self.objects, chain=self.cut_chain(), on_step=self.on_step)

    def removal(self) -> "PipelineRemoval":
        from cdc_pipeline.operations.removal import PipelineRemoval

        return PipelineRemoval(
            stream=self.settings.name,
            listed=self.table_names(),
            store=self.store,
            source=self.source,
            objects=self.objects,
            on_step=self.on_step,
        )

    def replay(self) -> "Replay":
        from cdc_pipeline.operations.replay import Replay

        return Replay(
            listed=frozenset(self.table_names()),
            store=self.store,
            source=self.source,
            late_slices=self.late_slices(),
        )

    def rewind(self) -> "Rewind":
        from cdc_pipeline.operations.rewind import Rewind

        return Rewind(
            owner=self.owner,
            lease_length=self.settings.worker.lease,
            store=self.store,
            objects=self.objects,
            lake=self.lake,
            lake_table=self.lake_table,
            worker=self.slice_worker(),
            on_step=self.on_step,
        )

    def warm_up(self) -> "WarmUp":
        from cdc_pipeline.operations.warm_up import WarmUp

        objects = open_object_store(self.settings, f"{STAGING_AREA}/.warm-up-{self.new_id().hex}")
        return WarmUp(
            objects=objects,
            open_lake=lambda: closing(open_lake(self.endpoints.spark_url, objects, self.on_step)),
            new_id=self.new_id,
            on_step=self.on_step,
        )
