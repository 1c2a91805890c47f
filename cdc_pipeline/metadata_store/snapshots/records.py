"""Rows of snapshots and their tasks as frozen records."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdc_pipeline.metadata_store.states import SnapshotState, TaskKind, TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot: its rows equal the source at `cutoff_offset`, and have `cutoff_version` as their version.

    `exported_snapshot`: the name under which the source shows its rows at the cutoff.
    `fence_number` and `lake_version`: of the commit that published it.
    """

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
    """A unit of work of a snapshot. `slot`: the worker slot that has it, until `lease_expires_at`.

    `input` and `output` are JSON. `output` names files that are durable; None before the task is done.
    """

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
