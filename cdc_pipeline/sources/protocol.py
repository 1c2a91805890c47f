"""What every source offers: set-up, change streams, copies of tables, and what it can prove.

A source is one package with one class that follows `Source`; `wiring` picks it. Nobody else asks for its kind: what
differs between sources is in `SourceCapabilities`. A source does not know the metadata store: it gets what is known of
stream and tables as plain values, or asks `KnownStream`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.sources.copied_rows import CopiedRows, HeldPosition
from cdc_pipeline.sources.known import (
    Document,
    FoundTable,
    KeptLog,
    KnownStream,
    KnownTable,
    NewBeginning,
    PartitionPlace,
    StreamIdentity,
    StreamStart,
)
from cdc_pipeline.sources.quarantined import DecodedEvents, QuarantinedText

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitEvent:
    """A change event that cannot be applied, and why. It is quarantined whole, never applied in part."""

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
    `release` is set for rows that lie in a file and are no longer in stream order: it frees the memory that reading
    them took.
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
    """Complete transactions in stream order, one entry each: commit position, the position behind it, commit time.

    `commit_time` counts microseconds since 1970-01-01T00:00:00Z. Positions rise strictly.
    """

    commit_position: Integers
    end_position: Integers
    commit_time: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A marker message that came back through the stream: `text` as it was sent, and where it was committed."""

    text: str
    commit_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """What one read brought. A table is in it more than once when its columns changed."""

    events: tuple[TableEvents, ...]
    transactions: Transactions
    markers: tuple[Marker, ...] = ()


class Proof(StrEnum):
    """A way in which a source can prove that the lake equals it."""

    ROWS_AT_A_POSITION = "rows at a position"
    """Every row of a table as of a position at which the stream is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCapabilities:
    """What a source can do, for everybody who works with sources of more than one kind.

    `copies_tables`: its tables can be copied as of a position, so they begin with a snapshot; other tables begin empty.
    `keeps_order`: a stream partition brings the events of one id in the order of their versions.
    `keeps_ids_together`: all events of one id come in one stream partition, or the partitions are cut as one log.
    `adds_partitions`: new stream partitions may appear while the stream goes on.
    """

    copies_tables: bool
    keeps_order: bool
    keeps_ids_together: bool
    adds_partitions: bool
    proofs: frozenset[Proof]

    def orders_ids(self, stream_partitions: int) -> bool:
        """Whether events of one id are registered in the order of their versions."""
        return self.keeps_order and (self.keeps_ids_together or stream_partitions == 1)


class ChangeStream(Protocol):
    """All stream partitions of one source, read from one place on. Not safe for two threads."""

    @property
    def position(self) -> int:
        """Where the first cut of this reader begins."""

    def read(self, wait: timedelta) -> EventBatch | None:
        """The next events, or None when none came within `wait`. Raises SourceAway when the connection broke.

        Transactions before `position` may come again: the slice cutter drops them.
        """

    def places_at(self, position: int) -> Mapping[int, PartitionPlace]:
        """Every stream partition's place at a cut's position. The positions that are asked for must not fall."""

    def send_marker(self, text: str, *, is_heartbeat: bool = False) -> None:
        """Commits a marker message to the source, which comes back as a Marker: a heartbeat, or a position to cut at.

        A heartbeat may come back before events that are still being written.
        """

    def check(self, registered: Mapping[TableName, str | None]) -> Mapping[TableName, Sequence[Document]]:
        """Raises StreamMoved unless the source has and publishes every table as when the stream was opened.

        `registered`: `KnownTable.published_as` of every registered table, as it is now. Returns new descriptions of
        tables whose rows are read as before.
        """

    def confirm(self, commit_position: int) -> None:
        """Lets the source forget what lies before the transaction at `commit_position`, which is registered."""

    def close(self) -> None:
        """The source may be read by another owner afterwards."""


class SourceSurvey(Protocol):
    """One look at the source: what was found, and what can be done from there. Looking changes nothing.

    `identity`: of the stream now. `is_successor`: it takes the place of the registered one without a gap, as a promoted
    standby does. `first_offset`: where a stream partition begins that was never read. `stale`: registered tables that
    cannot be read on, each with the reason; a new snapshot mends the `mendable` ones. `refused`: tables that were never
    read and cannot be. `statements`: what `set_up` runs on the source.
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
    def statements(self) -> tuple[str, ...]: ...

    def set_up(self) -> "SourceSurvey":
        """Makes on the source what is missing. Durable on return, idempotent. Returns what is there then."""

    def check_ready(self) -> None:
        """Raises SourceError with the remedy `cdc setup-source` where something is missing to read the stream."""

    def open(self, start: StreamStart) -> ChangeStream:
        """Reads on from `start`; creates nothing. Raises SourceBusy while somebody else reads."""


class TableCopy(Protocol):
    """The tables of a source as they were at a held position. Usable while the position is held."""

    def columns(self, table: TableName) -> tuple[Column, ...]:
        """Every column at the position; nothing for a table that is not there. Raises SourceError once rows are gone.

        Nobody changes the table's columns until the copy is closed.
        """

    def description(self, table: KnownTable) -> FoundTable | None:
        """The table as of the position, whose columns its stream must know; None where nothing of it was noted.

        Raises SnapshotError for a table that changed right before the position.
        """

    def parts(self, table: TableName, file_bytes: int) -> Sequence[Document]:
        """Parts of about `file_bytes` that hold every row of the table once, for `rows`."""

    def rows(self, table: TableName, schema: TableSchema, part: Document | None = None) -> Iterator[CopiedRows]:
        """The rows of the table or of one part, with the schema's columns, in blocks. Memory holds a few blocks."""


class Source(Protocol):
    """The source of one pipeline. Safe to share between threads. What a source is not capable of raises UsageError."""

    @property
    def capabilities(self) -> SourceCapabilities: ...

    def list_tables(self) -> tuple[str, ...]:
        """Names of all tables, as `database.schema.table`. Raises SettingsError where nothing lists them."""

    def missing_statements(self, known: KnownStream) -> tuple[str, ...]:
        """What an administrator has to run before the source can be read; changes nothing.

        Raises SourceError for what no statement mends, once nothing else is in the way.
        """

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> SourceSurvey:
        """Looks at the source; changes nothing. Stale tables that are to `begin_again` are looked at as new ones.

        Raises SourceError, SourceGap or SourceChanged for what stops the whole stream.
        """

    def begin_again(self, registered: str) -> NewBeginning:
        """A new beginning of a stream that cannot be read on from the offset `registered`. Durable on return."""

    def oldest_version_to_come(self, table: TableName, places: Mapping[int, PartitionPlace]) -> str:
        """No event behind these places is older; "" where nothing says so. `places`: of all stream partitions."""

    def hold_position(self, purpose: str, *, name: str) -> AbstractContextManager[HeldPosition]:
        """A position that can be copied while the block runs. `name` is unique; `is_held` asks for it."""

    def is_held(self, purpose: str, *, name: str) -> bool:
        """Whether some process holds a position under this name."""

    def send_marker(self, text: str) -> bool:
        """Commits a marker message from outside of the stream. Returns whether somebody reads the stream now."""

    def copy_at(self, exported: str) -> AbstractContextManager[TableCopy]:
        """The tables as of a held position. Raises SnapshotError when it is not held any more."""

    def check_copied(self, table: FoundTable) -> None:
        """Raises SnapshotError if the table changed since its `description`, so that a copy lacks rows."""

    def kept_log(self) -> KeptLog | None:
        """What the source keeps for the reader now; None for a source that keeps nothing."""

    def decode_quarantined(
        self,
        table: KnownTable,
        events: Sequence[QuarantinedText],
        *,
        columns: Mapping[str, Column],
        stream_partitions: Collection[int],
    ) -> Sequence[DecodedEvents]:
        """Quarantined events as rows, as the table is now. `columns`: every column that the table ever had.

        `stream_partitions`: all of the stream, since versions may depend on their number.
        """

    def leave(self, tables: Collection[TableName], *, whole: bool) -> tuple[str, ...]:
        """Removes what set-up made for these tables; with `whole`, all that it made for the stream. Idempotent.

        Returns the statements that the pipeline's role may not run. Raises LeaseBusy while somebody reads the stream.
        """
