"""Builds snapshot runs, their orchestrator and their worker slots from a pipeline."""

from datetime import timedelta

from cdc_pipeline.wiring import Pipeline
from snapshot.orchestrator import SnapshotOrchestrator
from snapshot.runs import SnapshotRuns
from snapshot.staging_to_lake import StagingToLake
from snapshot.worker import SnapshotWorker

_IDLE_WAIT = timedelta(seconds=1)


def snapshot_runs(
    pipeline: Pipeline, *, target_file_bytes: int | None = None, poll_interval: timedelta | None = None
) -> SnapshotRuns:
    """Builds the runs. A value that the caller gives replaces the one of pipeline.yml."""
    return SnapshotRuns(
        store=pipeline.store,
        table_names=pipeline.table_names,
        set_up=lambda tables: pipeline.source_setup().set_up(begin_again=tables).refused,
        orchestrator=snapshot_orchestrator(pipeline, target_file_bytes=target_file_bytes, poll_interval=poll_interval),
        worker=lambda number: snapshot_worker(pipeline, f"{pipeline.owner}:{number}"),
    )


def snapshot_orchestrator(
    pipeline: Pipeline, *, target_file_bytes: int | None = None, poll_interval: timedelta | None = None
) -> SnapshotOrchestrator:
    settings = pipeline.settings.snapshot
    return SnapshotOrchestrator(
        owner=pipeline.owner,
        source=pipeline.source,
        snapshot_file_bytes=settings.snapshot_file_bytes,
        target_file_bytes=target_file_bytes or settings.target_file_bytes,
        poll_interval=poll_interval or settings.poll_interval,
        lease_length=pipeline.settings.worker.lease,
        store=pipeline.store,
        lake=pipeline.lake,
        staging_to_lake=staging_to_lake(pipeline),
        clock=pipeline.clock,
        new_id=pipeline.new_id,
        on_step=pipeline.on_step,
    )


def snapshot_worker(pipeline: Pipeline, slot: str) -> SnapshotWorker:
    return SnapshotWorker(
        slot=slot,
        source=pipeline.source,
        task_lease=pipeline.settings.worker.lease,
        idle_wait=_IDLE_WAIT,
        store=pipeline.store,
        objects=pipeline.objects,
        staging_to_lake=staging_to_lake(pipeline),
        on_step=pipeline.on_step,
    )


def staging_to_lake(pipeline: Pipeline) -> StagingToLake:
    return StagingToLake(
        owner=pipeline.owner,
        lease_length=pipeline.settings.worker.lease,
        store=pipeline.store,
        objects=pipeline.objects,
        lake=pipeline.lake,
        lake_table=pipeline.lake_table,
        on_step=pipeline.on_step,
    )
