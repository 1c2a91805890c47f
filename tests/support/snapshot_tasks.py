"""Snapshot tasks as the metadata store gives them, and a snapshot that failed."""

from datetime import UTC, datetime
from typing import Any

from cdc_pipeline.metadata_store.snapshots.records import SnapshotTask
from cdc_pipeline.metadata_store.states import TaskKind, TaskState

NOW = datetime(2024, 1, 1, tzinfo=UTC)
REMEMBER_A_FAILURE = """
    INSERT INTO cdc.snapshot (snapshot_id, table_id, state, cutoff_offset, cutoff_version, cutoff_time, schema_id,
                              started_at, finished_at)
    SELECT 'failed', table_id, 'failed', '', '', now(), schema_id, now(), now()
    FROM cdc.source_table WHERE snapshot_wanted
"""
"""A snapshot of the one table that needs it now has failed."""


def finished_task(
    kind: TaskKind, output: dict[str, Any], *, ordinal: int = 0, given: dict[str, Any] | None = None
) -> SnapshotTask:
    return SnapshotTask(
        snapshot_id="first",
        kind=kind,
        ordinal=ordinal,
        state=TaskState.DONE,
        attempt=1,
        slot="slot",
        lease_expires_at=None,
        input=given or {},
        output=output,
        rows=0,
        bytes=0,
        error=None,
        created_at=NOW,
        started_at=NOW,
        finished_at=NOW,
    )
