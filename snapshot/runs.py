"""A snapshot in parts that a scheduler runs side by side, each safe to be killed and run again."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from threading import Event
from typing import Any

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.source_setup import set_up_source
from cdc_pipeline.wiring import Pipeline
from snapshot.wiring import snapshot_orchestrator, snapshot_worker


def begin_run(pipeline: Pipeline, chosen: Sequence[str], slots: int) -> list[dict[str, Any]]:
    """What each worker slot needs to know: the tables, since when (by the store's clock), and its number."""
    names = pipeline.table_names(tuple(chosen))
    set_up_source(pipeline, begin_again=names)
    since = pipeline.store.history.now().isoformat()
    return [{"chosen": [str(name) for name in names], "since": since, "slot": slot} for slot in range(slots)]


def orchestrate_run(
    pipeline: Pipeline, chosen: Sequence[str], since: datetime, *, target_file_bytes: int, poll_interval: timedelta
) -> list[dict[str, Any]]:
    """The snapshots as they ended. A table whose snapshot ended in this run already is not begun again.

    Raises SnapshotError that names each table that failed, after all others were published.
    """
    names = {pipeline.store.tables.table(name).table_id: name for name in pipeline.table_names(tuple(chosen))}
    ended = pipeline.store.history.ended_since(list(names), since)
    known = {snapshot.table_id for snapshot in ended}
    orchestrator = snapshot_orchestrator(pipeline, target_file_bytes=target_file_bytes, poll_interval=poll_interval)
    left = [name for table_id, name in names.items() if table_id not in known]
    snapshots = (*ended, *orchestrator.run(left, Event()))
    failed = [found for found in snapshots if found.state is not SnapshotState.PUBLISHED]
    if failed:
        raise SnapshotError(
            "; ".join(f"{names[found.table_id]} {found.state}: {found.error}" for found in failed),
            expected="every table published",
            remedy="mend what it names and run the snapshot of these tables again; the others are done",
        )
    return [
        {
            "table": str(names[found.table_id]),
            "rows": found.rows,
            "rows_withheld": pipeline.store.history.withheld(found.snapshot_id),
            "files": found.files,
            "lake_version": found.lake_version,
        }
        for found in snapshots
    ]


def work_run(pipeline: Pipeline, chosen: Sequence[str], since: datetime, slot: int) -> int:
    """Number of tasks that this slot did; ends when every table has a snapshot that ended at or after `since`."""
    names = pipeline.table_names(tuple(chosen))
    return snapshot_worker(pipeline, f"{pipeline.owner}:{slot}").run(names, since, Event())
