"""Tables that ask for a snapshot by themselves: they changed in a way that their stream does not tell."""

from collections.abc import Sequence

import structlog

from cdc_pipeline.metadata_store.rows import Snapshot
from cdc_pipeline.record import TableName
from cdc_pipeline.source_setup import set_up_source
from cdc_pipeline.wiring import Pipeline
from snapshot.run import run_snapshot

log = structlog.get_logger()


def due_tables(pipeline: Pipeline, tables: Sequence[TableName]) -> tuple[TableName, ...]:
    """Those of `tables` that ask for a snapshot now."""
    wanted = {row.name for row in pipeline.store.tables.tables() if row.snapshot_wanted}
    return tuple(name for name in tables if name in wanted)


def take_due_snapshots(pipeline: Pipeline, tables: Sequence[TableName]) -> tuple[Snapshot, ...]:
    """The snapshots as they ended; nothing when no table asks for one. Readers see the old rows until the new ones."""
    due = due_tables(pipeline, tables)
    if not due:
        return ()
    refused = set_up_source(pipeline, begin_again=due).refused
    ready = tuple(name for name in due if name not in refused)
    log.info("snapshots taken by themselves", tables=", ".join(map(str, ready)))
    return run_snapshot(pipeline, ready, slots=pipeline.settings.snapshot.concurrency) if ready else ()
