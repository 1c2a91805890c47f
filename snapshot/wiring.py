"""Builds snapshot runs, their orchestrator and their worker slots from a pipeline."""

from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

from cdc_pipeline.errors import UsageError
from cdc_pipeline.wiring import Pipeline
from cdc_pipeline.wiring.adapters import open_exported_files
from snapshot.exports import Export, SnapshotRows
from snapshot.orchestrator import SnapshotOrchestrator
from snapshot.runs import SnapshotRuns
from snapshot.snapshot_to_staging import RUN_BYTES
from snapshot.staging_to_lake import StagingToLake
from snapshot.worker import SnapshotWorker

_IDLE_WAIT = timedelta(seconds=1)
_IN_MEMORY = 2
"""Rows take up to so many times the bytes in memory that they have in the source, not counting its TOAST tables."""
_MOST_RUN_BYTES = 1 << 30
"""An Arrow column of text holds at most 2 GiB, also when rows are sorted."""
_PATTERN = frozenset("*?[")


def snapshot_runs(
    pipeline: Pipeline,
    *,
    target_file_bytes: int | None = None,
    poll_interval: timedelta | None = None,
    export: Export | None = None,
) -> SnapshotRuns:
    """Builds the runs. A value that the caller gives replaces the one of pipeline.yml.

    `export`: files that new snapshots are taken of, instead of the source.
    """
    return SnapshotRuns(
        store=pipeline.store,
        table_names=pipeline.table_names,
        set_up=lambda tables: pipeline.source_setup().set_up(begin_again=tables).refused,
        orchestrator=snapshot_orchestrator(
            pipeline, target_file_bytes=target_file_bytes, poll_interval=poll_interval, export=export
        ),
        worker=lambda number: snapshot_worker(pipeline, f"{pipeline.owner}:{number}"),
    )


def snapshot_orchestrator(
    pipeline: Pipeline,
    *,
    target_file_bytes: int | None = None,
    poll_interval: timedelta | None = None,
    export: Export | None = None,
) -> SnapshotOrchestrator:
    settings = pipeline.settings.snapshot
    return SnapshotOrchestrator(
        work=pipeline.table_work,
        source=snapshot_rows(pipeline, export),
        snapshot_file_bytes=settings.snapshot_file_bytes,
        target_file_bytes=target_file_bytes or settings.target_file_bytes,
        poll_interval=poll_interval or settings.poll_interval,
        staging_to_lake=StagingToLake(work=pipeline.table_work),
        clock=pipeline.clock,
        new_id=pipeline.new_id,
    )


def snapshot_worker(pipeline: Pipeline, slot: str) -> SnapshotWorker:
    return SnapshotWorker(
        slot=slot,
        source=snapshot_rows(pipeline),
        task_lease=pipeline.settings.worker.lease,
        idle_wait=_IDLE_WAIT,
        store=pipeline.store,
        objects=pipeline.objects,
        staging_to_lake=StagingToLake(work=pipeline.table_work),
        on_step=pipeline.on_step,
        partitioned_run_bytes=_run_bytes(pipeline.settings.snapshot.snapshot_file_bytes),
    )


def _run_bytes(snapshot_file_bytes: int) -> int:
    return min(max(RUN_BYTES, _IN_MEMORY * snapshot_file_bytes), _MOST_RUN_BYTES)


def snapshot_rows(pipeline: Pipeline, export: Export | None = None) -> SnapshotRows:
    registered = pipeline.registered_stream()
    return SnapshotRows(
        source=pipeline.source,
        open_files=lambda named: open_exported_files(
            pipeline.settings, named.url, only=named.only, header=named.header, on_step=pipeline.on_step
        ),
        store=pipeline.store,
        objects=pipeline.objects,
        first_offset=lambda: registered.next_offset() or pipeline.source.survey(registered).first_offset,
        export=export,
        on_step=pipeline.on_step,
    )


def export_at(place: str, as_of: str, *, header: bool | None = None) -> Export:
    """Describes exported files at a path or a URL, whose last part may be a pattern. They may name one file.

    Raises UsageError for another URL, and for no text.
    """
    path = unquote(place.removeprefix("file://")) if place.startswith("file://") else place
    if not path.strip():
        raise UsageError(f"--from {place!r} names no place", remedy="name the folder or file of the exported rows")
    if "://" in path and not place.startswith("s3://"):
        raise UsageError(
            f"--from {place!r} is of an unknown kind",
            expected="a folder, a file, file:///folder or s3://bucket/folder",
            remedy="copy the files to one of these places",
        )
    folder, _, last = path.rstrip("/").rpartition("/")
    only = last if set(last) & _PATTERN else ""
    if "://" in path:
        return Export(url=folder if only else path.rstrip("/"), as_of=as_of, only=only, header=header)
    local = Path(path).resolve()
    if only or local.is_file():
        return Export(url=local.parent.as_uri(), as_of=as_of, only=local.name, header=header)
    return Export(url=local.as_uri(), as_of=as_of, header=header)
