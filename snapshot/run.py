"""A snapshot from start to end in one process: the orchestrator here, its worker slots in threads."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event

from cdc_pipeline.metadata_store.rows import Snapshot
from cdc_pipeline.record import TableName
from cdc_pipeline.wiring import Pipeline
from snapshot.wiring import snapshot_orchestrator, snapshot_worker


def run_snapshot(
    pipeline: Pipeline, tables: Sequence[TableName], *, slots: int, poll_interval: timedelta | None = None
) -> tuple[Snapshot, ...]:
    """The snapshots as they ended. What kills a worker slot ends the run, and is raised."""
    since, stop = pipeline.store.history.now(), Event()
    with ThreadPoolExecutor(max_workers=slots) as threads:
        workers = [snapshot_worker(pipeline, f"{pipeline.owner}:{number}") for number in range(slots)]
        running = [threads.submit(worker.run, tables, since, stop) for worker in workers]
        for future in running:
            future.add_done_callback(lambda ended: stop.set() if ended.exception() else None)
        try:
            snapshots = snapshot_orchestrator(pipeline, poll_interval=poll_interval).run(tables, stop)
        finally:
            stop.set()
        for future in running:
            future.result()
    return snapshots
