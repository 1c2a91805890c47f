"""Snapshot tasks as the metadata store gives them."""

from datetime import UTC, datetime
from typing import Any

from cdc_pipeline.metadata_store.snapshots.records import SnapshotTask
from cdc_pipeline.metadata_store.states import TaskKind, TaskState

NOW = datetime(2024, 1, 1, tzinfo=UTC)


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
