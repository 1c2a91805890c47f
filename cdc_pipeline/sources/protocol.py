"""The protocol of a source: set-up, change streams, copies of tables, and its capabilities.

A source is one package with one class that implements `Source`; `wiring` chooses it. No other code asks for the kind of
a source: differences are in `SourceCapabilities`. A source does not know the metadata store. It gets what is registered
of its stream and tables as plain values, or asks `KnownStream`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.sources.copied_rows import CopiedRows, HeldPosition, WrittenPosition
from cdc_pipeline.sources.known import (
    Document,
    FoundTable,
    KeptLog,
    KnownStream,
    KnownTable,
    NewBeginning,
    PartitionProgress,
    StreamIdentity,
    StreamStart,
)
from cdc_pipeline.sources.quarantined import DecodedEvents, QuarantinedText

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitEvent:
    """A change event that cannot be applied, and why. The whole event is quarantined; no part of it is applied."""

    stream_partition: int
    version: str
    commit_position: int
    column: str
    payload: Mapping[str, str | None]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvents:
    """Change events of one table under one schema, in stream order.

    `rows` has the columns of a slice file (`slice_file.event_schema`); `commit_position` and `stream_partition`
    have one entry per row. An event of a transaction that is not complete yet has the highest commit position.
    `release` is set for rows read from a file, not in stream order: it frees the memory that reading them took.
    """

    table: TableName
    schema: TableSchema
    rows: pa.Table
    commit_position: Integers
    stream_partition: Integers
    unfit: tuple[UnfitEvent, ...] = ()
    release: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """Complete transactions in stream order, one entry each. Positions rise strictly.

    `end_position`: the position after the commit. `commit_time`: in microseconds since 1970-01-01T00:00:00Z.
    """

    commit_position: Integers
    end_position: Integers
    commit_time: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A marker message that was read from the stream: `text` as it was sent, and the position of its commit.

    `is_end`: the source takes no messages, and all that it held when this one was sent was read. It takes one position.
    `holds_back`: a last transaction was read and is not returned yet, since more of it may come.
    """

    text: str
    commit_position: int
    is_end: bool = False
    holds_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """The result of one read. A table whose columns changed has several entries in `events`."""

    events: tuple[TableEvents, ...]
    transactions: Transactions
    markers: tuple[Marker, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCapabilities:
    """The capabilities of a source, for code that works with every kind of source.

    `copies_tables`: a database, whose stream partitions are cut as one log and whose tables can be copied as of a
    position, so they begin with a snapshot. Else tables begin empty, and stream partitions may be added.
    `keeps_order`: a stream partition has the events of one id in the order of their versions.
    `follows_partitions`: a consumer registers added ones, and reads none of unregistered tables. Else it stops at them.
    `shares_partitions`: several consumers can read it, each a part of the stream partitions.
    """

    copies_tables: bool = False
    keeps_order: bool = True
    follows_partitions: bool = False
    shares_partitions: bool = False

    def orders_ids(self, stream_partitions: int) -> bool:
        """Returns whether the events of one id are registered in the order of their versions."""
        return self.keeps_order and (self.copies_tables or stream_partitions == 1)


class ChangeStream(Protocol):
    """Reads all stream partitions of one source. Not safe for use by several threads."""

    @property
    def position(self) -> int:
        """The position at which the first slices of this reader begin."""

    def read(self, wait: timedelta) -> EventBatch | None:
        """Returns the next events, None if none came within `wait`. Raises SourceAway if the connection broke.

        Transactions before `position` may be returned again; the slice cutter drops them.
        """

    def progress_at(self, position: int) -> Mapping[int, PartitionProgress]:
        """Returns where each stream partition continues after a cut at `position`. Positions must not fall."""

    def send_marker(self, text: str, *, is_heartbeat: bool = False) -> None:
        """Commits a marker message to the source. `read` returns it as a Marker, whose position can be cut at.

        A heartbeat may be returned before events that are still being written; its Marker is no `is_end`.
        """

    def check(self, registered: Mapping[TableName, str | None]) -> Mapping[TableName, Sequence[Document]]:
        """Checks that the source has and publishes every table as it did when the stream was opened.

        `registered`: `KnownTable.published_as` of every registered table, as it is now. Returns the new descriptions of
        tables that changed without effect on how rows are read. Raises StreamMoved for any other change.
        """

    def confirm(self, commit_position: int) -> None:
        """Lets the source drop its log before the transaction at `commit_position`, which must be registered.

        Raises StreamMoved if the stream has to be opened again for what comes next.
        """

    def close(self) -> None:
        """Closes the connections. Another owner can read the source afterwards."""


class SourceSurvey(Protocol):
    """The state of a source at one time, and what can be done from there. Surveying changes nothing.

    `identity`: the stream's identity now. `is_successor`: the server continues the registered one's log without a gap,
    as a promoted standby does. `stream_partitions`: their numbers; a mapping if the source has names for them, which
    `PartitionProgress.last_position` keeps under "partition". `first_offset`: the first offset of a stream partition
    that was never read. `stale`: registered tables that cannot be read further, each with the reason; a new snapshot
    repairs the `mendable` ones. `refused`: tables that were never read and cannot be read. `resting`: registered stream
    partitions that cannot be read now, each with the reason. `statements`: what `set_up` runs on the source.
    """

    @property
    def identity(self) -> StreamIdentity: ...
    @property
    def is_successor(self) -> bool: ...
    @property
    def stream_partitions(self) -> Collection[int]: ...
    @property
    def first_offset(self) -> str: ...
    @property
    def tables(self) -> tuple[FoundTable, ...]: ...
    @property
    def stale(self) -> Mapping[TableName, TableStale]: ...
    @property
    def mendable(self) -> Collection[TableName]: ...
    @property
    def refused(self) -> Mapping[TableName, SourceError]: ...
    @property
    def resting(self) -> Mapping[int, SourceError]: ...
    @property
    def statements(self) -> tuple[str, ...]: ...

    def set_up(self) -> "SourceSurvey":
        """Creates on the source what is missing, and returns the survey after that. Durable on return, idempotent."""

    def check_ready(self) -> None:
        """Raises SourceError, with the remedy `cdc setup-source`, if the source lacks what reading the stream needs."""

    def open(self, start: StreamStart) -> ChangeStream:
        """Opens the stream at `start`. Creates nothing. Raises SourceBusy while another process reads the stream."""


class TableCopy(Protocol):
    """The tables of a source as they were at a held position. Usable while the position is held."""

    def columns(self, table: KnownTable) -> tuple[Column, ...]:
        """Returns every column at the position, none for a table that does not exist.

        Nobody can change them until the copy is closed. Raises SourceError if rows as of the position are gone.
        """

    def description(self, table: KnownTable) -> FoundTable | None:
        """Returns the table as of the position, None for a table whose registration has no description.

        Raises SnapshotError if the table's columns are none that its stream knows, since they changed just before.
        """

    def parts(self, table: TableName, file_bytes: int) -> Sequence[Document]:
        """Splits the table into parts of about `file_bytes` for `rows`. Each row is in exactly one part."""

    def rows(self, table: TableName, schema: TableSchema, part: Document | None = None) -> Iterator[CopiedRows]:
        """Yields the rows of the table, or of one part, in blocks with the schema's columns. Holds a few blocks."""


class Source(Protocol):
    """The source of one pipeline. Safe to share between threads. Methods beyond its capabilities raise UsageError."""

    @property
    def capabilities(self) -> SourceCapabilities: ...

    def list_tables(self) -> tuple[str, ...]:
        """Returns the names of all tables, as `database.schema.table`. Raises SettingsError if it cannot list them."""

    def missing_statements(self, known: KnownStream) -> tuple[str, ...]:
        """Returns the statements that an administrator has to run before the source can be read. Changes nothing.

        If none is missing, raises SourceError for problems that no statement solves.
        """

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> SourceSurvey:
        """Surveys the source. Changes nothing. Treats the stale tables in `begin_again` as new ones.

        Raises SourceError, SourceGap or SourceChanged for a problem that stops the whole stream.
        """

    def begin_again(self, registered: str, channel: str) -> NewBeginning:
        """Gives a stream that cannot be read from the offset `registered` a new beginning. Durable on return.

        `channel`: the registered one. A warning names what it leaves on the source, if it is another one now.
        """

    def oldest_version_to_come(self, table: TableName, progress: Mapping[int, PartitionProgress]) -> str:
        """Returns a version that no event after `progress` is below, "" if that is not known.

        `progress` has every stream partition.
        """

    def position_of(self, text: str) -> WrittenPosition:
        """Reads a position in the source's own notation. Raises UsageError for any other text."""

    def hold_position(self, purpose: str, *, name: str) -> AbstractContextManager[HeldPosition]:
        """Holds a position, at which tables can be copied while the block runs. `name` must be unique."""

    def is_held(self, purpose: str, *, name: str) -> bool:
        """Returns whether any process holds a position under this name."""

    def send_marker(self, text: str) -> bool:
        """Commits a marker message without an open stream. Returns whether a process reads the stream now."""

    def copy_at(self, exported: str) -> AbstractContextManager[TableCopy]:
        """Opens a copy at a held position. Raises SnapshotError if the position is no longer held."""

    def check_copied(self, table: FoundTable, parts: int) -> None:
        """Raises SnapshotError if the table changed after its `description` was read, so that its copy may be wrong.

        `parts`: how many parts it was copied in, each by a query of its own.
        """

    def kept_log(self) -> KeptLog | None:
        """Returns how much log the source keeps for its reader now, None for a source that keeps none."""

    def decode_quarantined(
        self,
        table: KnownTable,
        events: Sequence[QuarantinedText],
        *,
        columns: Sequence[Column],
        stream_partitions: Collection[int],
    ) -> Sequence[DecodedEvents]:
        """Decodes quarantined events into rows of the table as it is now. `columns`: all that it ever had.

        `stream_partitions`: all partitions of the stream, since versions may depend on their number.
        """

    def leave(self, tables: Collection[TableName], *, whole: bool) -> tuple[str, ...]:
        """Removes what set-up created for these tables; with `whole`, everything for the stream. Idempotent.

        Returns the statements that the pipeline's role may not run. Raises LeaseBusy while a process reads the stream.
        """
