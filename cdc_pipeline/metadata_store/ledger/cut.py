"""What a cut of a stream contains, before it is registered: slices, offset ranges and quarantined events."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.record import TableSchema
from cdc_pipeline.time_slice import Label

if TYPE_CHECKING:
    from cdc_pipeline.slice_file import SliceFile

BEGINNING = "beginning"
"""The chain position of a stream's first cut."""


def chain_position_behind(position: str, late_slices: int) -> str:
    """Returns the chain position after the cut at `position` and the late slices that followed that cut."""
    return f"{position}-{late_slices}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """The range [start_offset, end_offset) of one stream partition; both are equal when it had no event.

    `last_position`: by table, the position that the next reader needs at `end_offset`. `begun`: the source files that
    were started within the range, number -> name. See `sources.protocol.PartitionProgress`.
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
    """One table's events of one stream partition in a cut.

    `key_ranges`: inclusive ranges of the first id column. `truncated_at`: the version of the last truncate. `late`: the
    slice may hold events that are older than events of slices before it. `oldest_version`: the oldest version of its
    events; it is not stored.
    """

    table_id: int
    stream_partition: int
    path: str
    sha256: str
    size_bytes: int = 0
    rows: int = 0
    schema_id: str
    key_changes: int = 0
    partial_rows: int = 0
    truncates: int = 0
    key_ranges: tuple[tuple[Any, Any], ...] = ()
    truncated_at: str | None = None
    late: bool = False
    oldest_version: str | None = None

    @classmethod
    def of(
        cls, file: "SliceFile", *, table_id: int, stream_partition: int, path: str, schema_id: str, late: bool = False
    ) -> "Slice":
        """Returns the slice whose file is stored under `path`."""
        described = {each.name: getattr(file, each.name) for each in fields(file) if each.name != "content"}
        return cls(
            **described,
            table_id=table_id,
            stream_partition=stream_partition,
            path=path,
            size_bytes=len(file.content),
            schema_id=schema_id,
            late=late,
        )

    def is_below(self, horizon: str) -> bool:
        """Returns whether the slice has an event below this tombstone horizon."""
        return self.oldest_version is not None and self.oldest_version < horizon

    def columns(self) -> dict[str, Any]:
        """Returns the columns of `cdc.slice` whose values the cut contains."""
        row = asdict(self) | {"key_ranges": [list(bounds) for bounds in self.key_ranges]}
        del row["oldest_version"]
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedEvent:
    """A whole event that does not fit the lake's types. `column`: the first column that does not fit."""

    table_id: int
    stream_partition: int
    version: str
    reason: str
    column: str
    payload: dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LateSlice:
    """A slice outside the cuts. `events`: (snapshot id or None, `place`) of each quarantined event that it replays."""

    slice: Slice
    slice_id: str
    events: tuple[tuple[str | None, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Everything between two positions of a stream. `partitions` names each of its stream partitions exactly once.

    `position` rises from cut to cut. `requested`: this boundary was requested, so no claim contains slices from both
    sides of it. An empty requested cut at the position of the last cut marks that cut as requested.

    `tables`: ids of all tables that were read from `start` to `position`. A table without a slice had no event there.

    `places`: the numbers of the quarantined events, where some events of the decided cut are left out; empty if none
    are.
    """

    stream: str
    tables: tuple[int, ...]
    start: str
    position: str
    commit_time: datetime
    label: Label
    requested: bool = False
    partitions: tuple[PartitionRange, ...]
    slices: tuple[Slice, ...] = ()
    quarantined: tuple[QuarantinedEvent, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        return all(part.is_empty for part in self.partitions)

    def numbered_events(self) -> tuple[tuple[int, QuarantinedEvent], ...]:
        """Returns the quarantined events with their numbers in the decided cut, by which late slices name them."""
        return tuple(zip(self.places or range(len(self.quarantined)), self.quarantined, strict=True))

    def range_of(self, stream_partition: int) -> PartitionRange:
        """Raises RegistryError when the cut does not name the stream partition."""
        for part in self.partitions:
            if part.stream_partition == stream_partition:
                return part
        raise RegistryError(f"an event lies in stream partition {stream_partition}", expected="one that the cut names")


def slice_identity(*, table_uuid: UUID, stream_partition: int, start_offset: str, end_offset: str, sha256: str) -> str:
    """Returns the id of a slice. It depends on the table, the range and the content, and not on the slice's number."""
    parts = (str(table_uuid), str(stream_partition), start_offset, end_offset, sha256)
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def late_identity(table_uuid: UUID, quarantine_ids: Sequence[int], sha256: str) -> str:
    """Returns the id of a late slice. It is unique, because an event is replayed once."""
    parts = (str(table_uuid), "late", ",".join(map(str, sorted(quarantine_ids))), sha256)
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def gap_reason(followed: str, start: str) -> str:
    """Returns why a table is stale that no cut has read between these positions."""
    words = f"its changes from {followed} to {start} were not read: the stream continued without it"
    return f"{words}; run cdc snapshot on it"


def late_reason(position: str) -> str:
    """Returns why a table is stale of which the cut at this position has events below the tombstone horizon."""
    words = f"changes of it up to {position} came below its horizon, and tombstones under it may be gone"
    return f"{words}; run cdc snapshot on it"


def schema_identity(schema: TableSchema) -> str:
    """Returns the SHA-256 of the schema's canonical JSON: no spaces, sorted names, no escapes."""
    document = json.dumps(schema.to_json(), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()
