"""Builds the workers and operations of one process, each from the resources that it uses."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc_pipeline.areas import WARM_UPS
from cdc_pipeline.record import TableName
from cdc_pipeline.wiring.adapters import open_lake, open_object_store
from cdc_pipeline.wiring.resources import Resources

if TYPE_CHECKING:
    from cdc_pipeline.apply.slice_to_lake import SliceWorker
    from cdc_pipeline.consume.cut_chain import CutChain
    from cdc_pipeline.operations.apply_tables import SliceRuns
    from cdc_pipeline.operations.held_cuts import HeldCuts
    from cdc_pipeline.operations.late_slices import LateSlices
    from cdc_pipeline.operations.maintenance import Maintenance
    from cdc_pipeline.operations.rebuild import StoreRebuild
    from cdc_pipeline.operations.removal import PipelineRemoval
    from cdc_pipeline.operations.repair import Repair
    from cdc_pipeline.operations.replay import Replay
    from cdc_pipeline.operations.resident_worker import ResidentWorker, RunLines
    from cdc_pipeline.operations.retention import Cleanup
    from cdc_pipeline.operations.rewind import Rewind
    from cdc_pipeline.operations.source_copies import SourceCopies
    from cdc_pipeline.operations.source_setup.log_watch import SourceLog
    from cdc_pipeline.operations.source_setup.reading import ConsumerRuns
    from cdc_pipeline.operations.source_setup.registered import RegisteredStream
    from cdc_pipeline.operations.source_setup.set_up import SourceSetup
    from cdc_pipeline.operations.source_setup.stale_tables import StaleMarks
    from cdc_pipeline.operations.source_setup.tables import TableRegistration
    from cdc_pipeline.operations.verification import Verification
    from cdc_pipeline.operations.warm_up import WarmUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Resources):
    """Builds every worker and operation. Commands, DAGs and the demo open it and pass it to nothing that they call."""

    def cut_chain(self) -> "CutChain":
        from cdc_pipeline.consume.cut_chain import CutChain

        return CutChain(name=self.settings.name, objects=self.objects, store=self.store, on_step=self.on_step)

    def slice_worker(self) -> "SliceWorker":
        from cdc_pipeline.apply.claim_work import ClaimLimits
        from cdc_pipeline.apply.slice_to_lake import SliceWorker

        worker = self.settings.worker
        limits = ClaimLimits(slices=worker.claim_slices, rows=worker.claim_rows, unpacked_bytes=worker.unpacked_bytes)
        return SliceWorker(
            work=self.table_work,
            limits=limits,
            retry_policy=worker.retry_policy,
            new_id=self.new_id,
            maintenance=self.settings.maintenance,
        )

    def registered_stream(self) -> "RegisteredStream":
        from cdc_pipeline.operations.source_setup.registered import RegisteredStream

        return RegisteredStream(name=self.settings.name, listed=frozenset(self.table_names()), store=self.store)

    def source_log(self) -> "SourceLog":
        from cdc_pipeline.operations.source_setup.log_watch import SourceLog

        return SourceLog(stream=self.settings.name, source=self.source, store=self.store)

    def source_setup(self) -> "SourceSetup":
        from cdc_pipeline.operations.source_setup.set_up import SourceSetup

        return SourceSetup(
            registered=self.registered_stream(),
            source=self.source,
            store=self.store,
            chain=self.cut_chain(),
            tables=self._table_registration(),
            stale=self._stale_marks(),
        )

    def consumer_runs(self) -> "ConsumerRuns":
        from cdc_pipeline.operations.source_setup.opening import ConsumerOpening
        from cdc_pipeline.operations.source_setup.reading import ConsumerRuns

        opening = ConsumerOpening(
            owner=self.owner,
            slice_length=self.settings.slice_length,
            slice_rows=self.settings.source.slice_rows,
            registered=self.registered_stream(),
            source=self.source,
            store=self.store,
            objects=self.objects,
            chain=self.cut_chain(),
            tables=self._table_registration(),
            stale=self._stale_marks(),
            source_log=self.source_log(),
            clock=self.clock,
            on_step=self.on_step,
        )
        return ConsumerRuns(registered=self.registered_stream(), opening=opening)

    def _table_registration(self) -> "TableRegistration":
        from cdc_pipeline.operations.source_setup.tables import TableRegistration

        return TableRegistration(
            registered=self.registered_stream(),
            table_settings=self.settings.table,
            store=self.store,
            objects=self.objects,
            new_id=self.new_id,
            on_step=self.on_step,
        )

    def _stale_marks(self) -> "StaleMarks":
        from cdc_pipeline.operations.source_setup.stale_tables import StaleMarks

        followed = frozenset(table.table for table in self.settings.tables if table.on_schema_change == "follow")
        return StaleMarks(
            registered=self.registered_stream(),
            capabilities=self.source.capabilities,
            followed=followed,
            store=self.store,
        )

    def slice_runs(self) -> "SliceRuns":
        from cdc_pipeline.operations.apply_tables import EmptyLakes, SliceRuns

        worker = self.slice_worker()
        empty_lakes = EmptyLakes(worker=worker, clock=self.clock)
        return SliceRuns(
            store=self.store,
            worker=worker,
            empty_lakes=None if self.source.capabilities.copies_tables else empty_lakes,
        )

    def slice_run(self, table: TableName, *, by_hand: bool) -> dict[str, Any]:
        """Runs the slices of one table; returns the report of the run.

        Raises SettingsError for a table that has left pipeline.yml, before anything could pause it.
        """
        (listed,) = self.table_names((str(table),))
        return self.slice_runs().run(listed, by_hand=by_hand)

    def resident_worker(self, lines: "RunLines", is_current: Callable[[], bool] = lambda: True) -> "ResidentWorker":
        """Builds a worker for slice requests. `lines`: the processor of structlog that keeps the lines of its runs."""
        from cdc_pipeline.operations.resident_worker import ResidentWorker

        return ResidentWorker(
            owner=self.owner,
            lease_length=self.settings.worker.lease,
            slots=self.settings.worker.slots,
            requests=self.store.slice_requests,
            run=lambda request: self.slice_run(request.table, by_hand=request.by_hand),
            lines=lines,
            retry_policy=self.settings.worker.retry_policy,
            is_current=is_current,
        )

    def verification(self) -> "Verification":
        from cdc_pipeline.operations.verification import Verification

        return Verification(
            work=self.table_work,
            source=self.source,
            worker=self.slice_worker(),
            cuts=self._held_cuts(),
            copies=self._source_copies(),
        )

    def repair(self) -> "Repair":
        from cdc_pipeline.operations.repair import Repair

        return Repair(
            work=self.table_work,
            source=self.source,
            worker=self.slice_worker(),
            cuts=self._held_cuts(),
            copies=self._source_copies(),
            late_slices=self.late_slices(),
        )

    def _held_cuts(self) -> "HeldCuts":
        from cdc_pipeline.operations.held_cuts import HeldCuts

        return HeldCuts(
            stream=self.settings.name,
            store=self.store,
            source=self.source,
            new_id=self.new_id,
            consume_until_idle=self.consumer_runs().consume_until_idle,
        )

    def _source_copies(self) -> "SourceCopies":
        from cdc_pipeline.operations.source_copies import SourceCopies

        return SourceCopies(objects=self.objects, clock=self.clock, new_id=self.new_id, on_step=self.on_step)

    def maintenance(self) -> "Maintenance":
        from cdc_pipeline.operations.maintenance import Maintenance

        return Maintenance(
            work=self.table_work,
            oldest_version_to_come=self.source_setup().oldest_version_to_come,
            need=self.settings.maintenance,
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

        old = OldObjects(stream=self.settings.name, store=self.store, objects=self.objects, on_step=self.on_step)
        return Cleanup(
            work=self.table_work,
            keep=self.settings.keep,
            chain=self.cut_chain(),
            old_objects=old,
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
            lake=self.lake,
            chain=self.cut_chain(),
            on_step=self.on_step,
        )

    def replay(self) -> "Replay":
        from cdc_pipeline.operations.replay import Replay

        return Replay(
            listed=frozenset(self.table_names()),
            work=self.table_work,
            source=self.source,
            late_slices=self.late_slices(),
        )

    def rewind(self) -> "Rewind":
        from cdc_pipeline.operations.rewind import Rewind

        return Rewind(work=self.table_work, worker=self.slice_worker())

    def warm_up(self) -> "WarmUp":
        from cdc_pipeline.operations.warm_up import WarmUp

        folder = f"{WARM_UPS}/{self.clock():%Y%m%dT%H%M%SZ}-{self.new_id().hex}"
        objects = open_object_store(self.settings, folder)
        url, upsert = self.endpoints.spark_url, self.settings.worker.upsert
        return WarmUp(
            objects=objects,
            open_lake=lambda: closing(open_lake(url, objects, self.on_step, upsert=upsert)),
            new_id=self.new_id,
            on_step=self.on_step,
        )
