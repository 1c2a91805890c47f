"""Snapshots and their tasks, one frozen value per row."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdc_pipeline.metadata_store.models.states import SnapshotState, TaskKind, TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    snapshot_id: str
    table_id: int
    state: SnapshotState
    cutoff_offset: str
    cutoff_version: str
    cutoff_time: datetime
    exported_snapshot: str | None
    schema_id: str
    fence_number: int | None
    lake_version: int | None
    rows: int
    files: int
    bytes: int
    error: str | None
    started_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTask:
    snapshot_id: str
    kind: TaskKind
    ordinal: int
    state: TaskState
    attempt: int
    slot: str | None
    lease_expires_at: datetime | None
    input: dict[str, Any]
    output: dict[str, Any] | None
    rows: int
    bytes: int
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """Tasks of one kind of one snapshot, by state; rows and bytes are those of the tasks that are done."""

    kind: TaskKind
    waiting: int
    claimed: int
    done: int
    failed: int
    rows: int
    bytes: int
