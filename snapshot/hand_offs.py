"""Inputs and outputs of the parts of a snapshot: typed here, JSON in the metadata store and between Airflow's tasks.

The input of an export task is a part of the table as the source describes it (`TableCopy.parts`). All other inputs and
outputs are of the types below.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic import TypeAdapter

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.lake.protocol import DataFile
from cdc_pipeline.metadata_store.snapshots.records import SnapshotTask
from cdc_pipeline.metadata_store.snapshots.snapshot_tasks import NewTask
from cdc_pipeline.metadata_store.states import TaskKind

HandOff = TypeVar("HandOff")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """Output of an export task of a table with data partitions, input of a staging task: one snapshot data file.

    `file_id` names its staging files.
    """

    snapshot_key: str
    file_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One staging data file, of one data partition: ((lake column, value or None), …)."""

    key: str
    partition: tuple[tuple[str, str | None], ...]
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """Output of a staging task, and of an export task that staged its rows: a file per run of rows and partition."""

    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPartition:
    """Input of a compaction task: all staging files of one data partition, to be merged into `target_files` files."""

    partition: tuple[tuple[str, str | None], ...]
    staged_keys: tuple[str, ...]
    target_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFiles:
    """Output of a compaction task: lake files that no commit names yet."""

    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOrder:
    """Input of a worker slot: the run's tables, the run's start by the metadata store's clock, the slot's number.

    `refused`: why the source refuses other tables of the run, each with its name.
    """

    chosen: tuple[str, ...]
    since: datetime
    slot: int
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRows:
    """Output of the orchestrator of a run, for each table."""

    table: str
    rows: int
    rows_withheld: int
    files: int
    lake_version: int | None


def new_tasks(kind: TaskKind, inputs: Sequence[object]) -> list[NewTask]:
    """Returns one task per input, numbered in the order of the inputs."""
    return [NewTask(kind=kind, ordinal=ordinal, input=to_json(each)) for ordinal, each in enumerate(inputs)]


def input_of(task: SnapshotTask, kind: type[HandOff]) -> HandOff:
    """Returns the task's input. Raises SnapshotError when it is not of the type `kind`."""
    return _of_task(task, kind, task.input)


def output_of(task: SnapshotTask, kind: type[HandOff]) -> HandOff:
    """Returns the finished task's output. Raises SnapshotError when it is not of the type `kind`."""
    return _of_task(task, kind, task.output)


def has_staged(exported: SnapshotTask) -> bool:
    """Whether a finished export task wrote staging files, so that it needs no staging task."""
    return "files" in (exported.output or {})


def to_json(hand_off: object) -> dict[str, Any]:
    """Returns a JSON object whose keys are the names of the fields."""
    document: dict[str, Any] = _without_nuls(TypeAdapter(type(hand_off)).dump_python(hand_off, mode="json"))
    return document


def from_json(kind: type[HandOff], document: Mapping[str, Any] | None) -> HandOff:
    """The inverse of `to_json`. Raises ValueError when the document is not of the type `kind`."""
    return TypeAdapter(kind).validate_python(_with_nuls(document))


def _without_nuls(value: Any) -> Any:
    """Writes each text with NUL, which the metadata store's JSON cannot hold, as the texts between its NULs."""
    match value:
        case str() if "\0" in value:
            return {"between_nuls": value.split("\0")}
        case list():
            return [_without_nuls(each) for each in value]
        case dict():
            return {name: _without_nuls(each) for name, each in value.items()}
    return value


def _with_nuls(value: Any) -> Any:
    match value:
        case {"between_nuls": [*texts]}:
            return "\0".join(texts)
        case list():
            return [_with_nuls(each) for each in value]
        case dict():
            return {name: _with_nuls(each) for name, each in value.items()}
    return value


def _of_task(task: SnapshotTask, kind: type[HandOff], document: Mapping[str, Any] | None) -> HandOff:
    try:
        return from_json(kind, document)
    except ValueError as error:
        raise SnapshotError(
            f"the {task.kind} task {task.ordinal} of snapshot {task.snapshot_id} holds no {kind.__name__}:"
            f" {error!s:.300}",
            expected="what the release that began this snapshot, or an older one, wrote",
            remedy="take a new snapshot of the table: cdc snapshot TABLE",
        ) from error
