"""What a source and the metadata store tell each other of a stream and its tables: plain values, no store."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from cdc_pipeline.record import TableName, TableSchema

Document = Mapping[str, Any]
"""JSON of the source's own, which the metadata store keeps for it without a look inside."""
_UNITS, _STEP = ("bytes", "KB", "MB", "GB", "TB"), 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """Where a stream partition is read on: its next offset, and what its next reader needs beside that.

    `last_position`: by table, what the source's reader remembers of its events, as that reader writes it.
    `begun`: number and name of the files that were begun between the position that was asked for before and this one.
    """

    offset: str
    last_position: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdentity:
    """What must stay the same for offsets to mean the same: the system, its timeline, and the channel that is read."""

    system: str
    timeline: int
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A listed table as it was registered.

    `source_id`: the number by which the source tells tables of one name apart; 0 where it has none. `published_as`: how
    the source publishes the table as long as no change of it is missing; "" if that was never noted, None for a stale
    table, which is stale for `reason`. `description`: the source's own documents, oldest first. `schema`: that of the
    newest slice. `horizon`: events of an older version come too late.
    """

    name: TableName
    source_id: int
    key: tuple[str, ...]
    published_as: str | None
    reason: str = ""
    description: tuple[Document, ...] = ()
    schema: TableSchema | None = None
    horizon: str = ""


class KnownStream(Protocol):
    """What the metadata store knows of a stream. Each call reads it anew: a consumer may register meanwhile."""

    def identity(self) -> StreamIdentity | None:
        """None for a stream that was never registered."""

    def next_offset(self) -> str | None:
        """The least offset at which a stream partition is read on; None for a stream that was never read."""

    def tables(self) -> Mapping[TableName, KnownTable]:
        """The tables of pipeline.yml that are registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A table that can be read. `schema` is None where only events show it.

    `source_id`, `published_as`, `description`: see `KnownTable`. `is_changing`: events of earlier columns may come.
    """

    name: TableName
    source_id: int
    key: tuple[str, ...]
    schema: TableSchema | None
    published_as: str = ""
    description: tuple[Document, ...] = ()
    is_changing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCut:
    """The last registered cut. `requested`: somebody asked for a cut at exactly this position."""

    position: str
    requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """Where a stream is read on, and what its reader needs of the metadata store. `places` is by stream partition.

    `commit_time`: start of the label of the last cut. `begun`: files that were begun before, by stream partition and
    number. `begin_file` registers one more file, durable
    on return, and returns its number.
    """

    places: Mapping[int, PartitionPlace]
    last_cut: LastCut | None
    commit_time: datetime | None
    tables: Mapping[TableName, KnownTable]
    begun: Mapping[int, Mapping[int, str]]
    begin_file: Callable[[int, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLog:
    """What the source keeps for a reader that has not confirmed it: `retained_bytes` of its log.

    The reader's place is lost when `bytes_left` more are written; None: never. `most_bytes`: the source's own limit;
    None: no limit. `wal_status`: in the source's words. `warning`: why somebody has to act, None as long as nobody has.
    `summary`: all of it in one line.
    """

    wal_status: str | None
    retained_bytes: int | None
    most_bytes: int | None
    bytes_left: int | None
    warning: str | None
    summary: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBeginning:
    """A stream that begins again at `offset`. `gap`: what lies in between and was never read, in the source's words."""

    identity: StreamIdentity
    offset: str
    gap: str


def shown_bytes(count: int) -> str:
    """`1.5 GB`, in steps of 1,024."""
    size, units = float(count), iter(_UNITS)
    unit = next(units)
    while size >= _STEP and unit != _UNITS[-1]:
        size, unit = size / _STEP, next(units)
    return f"{size:.1f} {unit}" if unit != _UNITS[0] else f"{count} {unit}"
