"""What the consumer hands to the registry in one transaction, and the identity of what it hands over."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from cdc_pipeline.record import TableSchema
from cdc_pipeline.slice_file import SliceFile
from cdc_pipeline.time_slice import Label

EMPTY = "empty"
BEGINNING = "beginning"
"""The place at which a stream's first cut begins."""


def chain_position_behind(position: str, late_slices: int) -> str:
    """Where a stream goes on: behind the cut at `position` and so many late slices that lie at it."""
    return f"{position}-{late_slices}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """[start_offset, end_offset) of one stream partition; both equal when nothing came.

    `last_position`: what its reader has to know at `end_offset`, by table; `begun`: the files that were begun within.
    See `sources.protocol.PartitionPlace`.
    """

    stream_partition: int
    start_offset: str
    end_offset: str
    last_position: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return self.start_offset == self.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One table's events of one stream partition in a cut. An empty slice has neither path, sha256 nor schema_id.

    `oldest_version` of its events: the registry checks it, and does not keep it.
    """

    table_id: int
    stream_partition: int
    path: str | None = None
    sha256: str | None = None
    size_bytes: int = 0
    rows: int = 0
    schema_id: str | None = None
    key_changes: int = 0
    partial_rows: int = 0
    truncates: int = 0
    key_ranges: tuple[tuple[Any, Any], ...] = ()
    truncated_at: str | None = None
    late: bool = False
    oldest_version: str | None = None

    @classmethod
    def of(
        cls, file: SliceFile, *, table_id: int, stream_partition: int, path: str, schema_id: str, late: bool = False
    ) -> "Slice":
        """The slice whose file lies at `path`."""
        return cls(
            table_id=table_id,
            stream_partition=stream_partition,
            path=path,
            sha256=file.sha256,
            size_bytes=len(file.content),
            rows=file.rows,
            schema_id=schema_id,
            key_changes=file.key_changes,
            partial_rows=file.partial_rows,
            truncates=file.truncates,
            key_ranges=file.key_ranges,
            truncated_at=file.truncated_at,
            late=late,
            oldest_version=file.oldest_version,
        )

    def values(self) -> dict[str, Any]:
        """The columns of the registry's row that the slice itself tells."""
        row = asdict(self) | {"key_ranges": [list(bounds) for bounds in self.key_ranges]}
        del row["oldest_version"]
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedEvent:
    """An event that the lake's types cannot hold, whole; `column` is the one that does not fit."""

    table_id: int
    stream_partition: int
    version: str
    reason: str
    column: str
    payload: dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LateSlice:
    """A slice that comes behind its turn. `events`: those in quarantine that it holds, by snapshot and place there."""

    slice: Slice
    slice_id: str
    events: tuple[tuple[str | None, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Everything between two places of a stream. `partitions` names every stream partition of it exactly once.

    `owner` and `epoch` are those of the assignment; `epoch` None: a cut file has decided the cut, so it is registered
    whoever owns the stream now. `position` rises from cut to cut. `requested`: somebody asked for a boundary here, so
    no claim reaches over it; asked for at the position of the last cut, with nothing between, that one becomes
    requested.

    `tables`: ids of all tables that were read from `start` to `position`. One without a slice had no event there.
    `start` is None in a cut that an older version decided: such a cut has an empty slice for each table without events.
    """

    stream: str
    owner: str
    epoch: int | None
    tables: tuple[int, ...]
    start: str | None
    position: str
    commit_time: datetime
    label: Label
    requested: bool = False
    partitions: tuple[PartitionRange, ...]
    slices: tuple[Slice, ...] = ()
    quarantined: tuple[QuarantinedEvent, ...] = ()

    @property
    def is_empty(self) -> bool:
        return all(part.is_empty for part in self.partitions)


def slice_identity(
    *, table_uuid: UUID, stream_partition: int, start_offset: str, end_offset: str, sha256: str | None
) -> str:
    """The same events in the same place of the same table have the same id, whatever number they were given."""
    parts = (str(table_uuid), str(stream_partition), start_offset, end_offset, sha256 or EMPTY)
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def late_identity(table_uuid: UUID, quarantine_ids: Sequence[int], sha256: str | None) -> str:
    """No other slice can have it: an event is replayed once."""
    parts = (str(table_uuid), "late", ",".join(map(str, sorted(quarantine_ids))), sha256 or "")
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def schema_identity(schema: TableSchema) -> str:
    """SHA-256 of the canonical JSON: no spaces, sorted names, not escaped."""
    document = json.dumps(schema.to_json(), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()
