"""Records of streams and tables that a source and the metadata store exchange. Plain values, without the store."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import Column, TableName, TableSchema, decode_position
from cdc_pipeline.time_slice import EPOCH

Document = Mapping[str, Any]
"""JSON that only the source reads. The metadata store keeps it as it is."""
_UNITS, _STEP = ("bytes", "KB", "MB", "GB", "TB"), 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """The point from which a stream partition is read: its next offset, and the state that its next reader needs.

    `last_position`: by table, the state that the source's reader keeps, in that reader's own format.
    `begun`: number and name of the files that were begun between the previous call of `progress_at` and this one.
    """

    offset: str
    last_position: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdentity:
    """The system, its timeline and the channel that is read. Offsets are only valid as long as all three stay."""

    system: str
    timeline: int
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A table of pipeline.yml as it is registered.

    `source_id`: the source's number of the table, which differs for a new table of the same name; 0 if the source has
    none. `published_as`: how the source published the table when it was registered, such as the identities of its
    streams; changes may be missing if it differs now. "" if it was never recorded, None for a stale table. `reason`:
    why the table is stale. `description`: the source's own documents, oldest first. `schema`: the schema of the newest
    slice. `columns`: every column that it ever had, oldest first. `horizon`: events below this version come too late.
    `excluded`: the columns that the lake does not have by pipeline.yml; None if it is not known.
    """

    name: TableName
    source_id: int
    key: tuple[str, ...]
    published_as: str | None
    reason: str = ""
    description: tuple[Document, ...] = ()
    schema: TableSchema | None = None
    columns: tuple[Column, ...] = ()
    horizon: str = ""
    excluded: tuple[str, ...] | None = None

    def check_not_stale(self) -> None:
        """Raises TableStale for a table that was stale before."""
        if self.published_as is None:
            raise TableStale(
                self.reason or f"{self.name} is stale", table=self.name, remedy=f"run cdc snapshot {self.name}"
            )

    def check_key(self, key: Sequence[str]) -> None:
        """Raises TableStale for a table whose id is `key` now, and was another one before."""
        if tuple(key) != self.key:
            now = f"the id of {self.name} is now ({', '.join(key)})" if key else f"{self.name} has no id any more"
            raise TableStale(
                now, table=self.name, expected=f"({', '.join(self.key)}), by which the lake knows its rows"
            )

    def check_excluded(self, excluded: Sequence[str]) -> None:
        """Raises TableStale if pipeline.yml keeps other columns out of the lake now."""
        if self.excluded is not None and set(excluded) != set(self.excluded):
            raise TableStale(
                f"exclude_columns of {self.name} is now ({', '.join(excluded)})",
                table=self.name,
                expected=f"({', '.join(self.excluded)}), as in the lake's rows",
            )

    def check_columns(self, now: TableSchema) -> None:
        """Raises TableStale unless the newest slice has these columns: names, types, and numbers if there are any.

        For a table of which the metadata store has no description that is recent enough.
        """
        if self.schema is None:
            return
        numbered = any(column.number is not None for column in self.schema.columns)
        before, after = (
            [(column.name, column.type, column.number if numbered else None) for column in schema.columns]
            for schema in (self.schema, now)
        )
        if before != after:
            raise TableStale(
                f"{self.name} changed: its columns are not those of its newest slice, and the store does not know more",
                table=self.name,
                expected="a change that its stream describes completely",
            )


class KnownStream(Protocol):
    """A stream as it is registered. Each call reads the metadata store, since a consumer may register meanwhile."""

    def identity(self) -> StreamIdentity | None:
        """Returns the registered identity, None for a stream that was never registered."""

    def next_offset(self) -> str | None:
        """Returns the lowest next offset of all stream partitions, None for a stream that was never read."""

    def progress(self, among: Collection[int] | None = None) -> Mapping[int, PartitionProgress]:
        """Returns where each registered stream partition continues. The offset is "" for one that was never read.

        `among`: those that are asked for; None for all, also those that were read to their ends long ago.
        """

    def tables(self) -> Mapping[TableName, KnownTable]:
        """Returns the registered tables of pipeline.yml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A table that the source can read. `schema` is None if only the table's events carry it.

    `source_id`, `published_as`, `description`: see `KnownTable`. `is_changing`: events with earlier columns may come.
    `before`: the registered description that `description` continues; None if it does not depend on that.
    """

    name: TableName
    source_id: int
    key: tuple[str, ...]
    schema: TableSchema | None
    published_as: str = ""
    description: tuple[Document, ...] = ()
    is_changing: bool = False
    before: tuple[Document, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCut:
    """The last registered cut. `requested`: a cut was requested right at this position, so no transaction need end."""

    position: str
    requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """The point from which a stream is read, with what its reader needs of the metadata store.

    `progress`: by stream partition. `begun`: names of the files that were begun before, by stream partition and number.
    `begin_file` registers one more file, durable on return, and returns its number. `commit_time`: start of the label
    of the last cut, EPOCH without one.
    """

    progress: Mapping[int, PartitionProgress]
    last_cut: LastCut | None
    tables: Mapping[TableName, KnownTable]
    begun: Mapping[int, Mapping[int, str]]
    begin_file: Callable[[int, str], int]
    commit_time: datetime = EPOCH

    @property
    def position(self) -> int:
        """The stream position of the last cut, 0 for a stream without one."""
        return 0 if self.last_cut is None else decode_position(self.last_cut.position)

    @property
    def schemas(self) -> dict[TableName, TableSchema]:
        """The known schemas of the tables."""
        return {name: table.schema for name, table in self.tables.items() if table.schema is not None}

    @property
    def columns(self) -> dict[TableName, tuple[Column, ...]]:
        """Every column that the tables ever had, oldest first."""
        return {name: table.columns for name, table in self.tables.items()}

    @property
    def horizons(self) -> dict[TableName, str]:
        return {name: table.horizon for name, table in self.tables.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLog:
    """How much log the source keeps for its reader: `retained_bytes` that the reader has not confirmed.

    `bytes_left`: the source drops unread log after this many more bytes are written; None means never. `most_bytes`:
    the source's own limit; None means no limit. `wal_status`: the state in the source's words. `warning`: why somebody
    has to act, None if nobody has to. `summary`: the whole record in one line.
    """

    wal_status: str | None
    retained_bytes: int | None
    most_bytes: int | None
    bytes_left: int | None
    warning: str | None
    summary: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBeginning:
    """A new beginning of a stream at `offset`. `gap`: the skipped range that was never read, in the source's words.

    `refused`: the tables that cannot be read, each with the reason.
    """

    identity: StreamIdentity
    offset: str
    gap: str
    refused: Mapping[TableName, SourceError] = field(default_factory=dict)


def shown_bytes(count: int) -> str:
    """Formats a number of bytes, such as `1.5 GB`; 1 KB is 1,024 bytes."""
    size, units = float(count), iter(_UNITS)
    unit = next(units)
    while size >= _STEP and unit != _UNITS[-1]:
        size, unit = size / _STEP, next(units)
    return f"{size:.1f} {unit}" if unit != _UNITS[0] else f"{count} {unit}"
