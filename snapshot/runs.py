"""A snapshot in parts that a scheduler runs side by side, each safe to be killed and run again."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from threading import Event
from typing import Any

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.source_setup import set_up_source
from cdc_pipeline.wiring import Pipeline
from snapshot.due import due_tables
from snapshot.wiring import snapshot_orchestrator, snapshot_worker


def begin_run(pipeline: Pipeline, chosen: Sequence[str] | None, slots: int) -> list[dict[str, Any]]:
    """What each worker slot needs to know: the tables, since when (by the store's clock), and its number.

    `chosen` None: the tables that ask for a snapshot by themselves; no slot has anything to do where there are none.
    Tables that the source refuses are said in the log and left out; raises the refusal where no table is left.
    """
    all_names = pipeline.table_names()
    names = due_tables(pipeline, all_names) if chosen is None else pipeline.table_names(tuple(chosen))
    refused = set_up_source(pipeline, begin_again=names).refused if names else {}
    ready = [name for name in names if name not in refused]
    if names and not ready:
        raise next(iter(refused.values()))
    since = pipeline.store.history.now().isoformat()
    run = {"chosen": [str(name) for name in ready], "since": since}
    return [{**run, "slot": slot} for slot in range(slots if ready else 0)]


def orchestrate_run(
    pipeline: Pipeline, slots: Sequence[Mapping[str, Any]], *, target_file_bytes: int, poll_interval: timedelta
) -> list[dict[str, Any]]:
    """The snapshots as they ended, of the run that `begin_run` described. One that ended already is not begun again.

    Raises SnapshotError that names each table that failed, after all others were published.
    """
    if not slots:
        return []
    chosen, since = slots[0]["chosen"], datetime.fromisoformat(slots[0]["since"])
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
