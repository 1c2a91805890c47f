"""A source that is a list of transactions in memory: the least that follows `Source`, in one module."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Never

import numpy as np
import pyarrow as pa

from cdc_pipeline.errors import SettingsError, SourceError, TableStale, UsageError
from cdc_pipeline.record import (
    COMMIT_TIME,
    OPERATION,
    TRANSACTION,
    VERSION,
    Column,
    TableName,
    TableSchema,
    decode_position,
    encode_position,
    encode_version,
)
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.copied_rows import HeldPosition, WrittenPosition
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
from cdc_pipeline.sources.protocol import (
    ChangeStream,
    EventBatch,
    Marker,
    SourceCapabilities,
    SourceSurvey,
    TableCopy,
    TableEvents,
    Transactions,
)
from cdc_pipeline.sources.quarantined import DecodedEvents, QuarantinedText, decode_texts

SCHEMA = TableSchema(columns=(Column(name="id", type="int4"), Column(name="note", type="text")), key=("id",))
_TIME = datetime(2024, 1, 1, tzinfo=UTC)
_MICROSECONDS = int(_TIME.timestamp()) * 1_000_000
Change = tuple[str, int, str | None]
"""Operation, id and note."""


@dataclass(slots=True, kw_only=True)
class MemoryLog:
    """What outlives a process: transactions, or the texts of marker messages, by their positions from 1 on."""

    entries: list[Sequence[Change] | str] = field(default_factory=list)
    is_set_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """One table, one stream partition. A position is the number of an entry, the position behind it one more."""

    table: TableName
    log: MemoryLog

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities()

    def list_tables(self) -> tuple[str, ...]:
        raise SettingsError("a log in memory lists no tables")

    def missing_statements(self, known: KnownStream) -> tuple[str, ...]:
        del known
        return () if self.log.is_set_up else ("set up the log",)

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> SourceSurvey:
        del known, begin_again
        return MemorySurvey(source=self)

    def begin_again(self, registered: str, channel: str) -> NewBeginning:
        del registered, channel
        self._cannot()

    def oldest_version_to_come(self, table: TableName, progress: Mapping[int, PartitionProgress]) -> str:
        del table
        return min((encode_version(decode_position(reached.offset), 0) for reached in progress.values()), default="")

    def position_of(self, text: str) -> WrittenPosition:
        return WrittenPosition(position=int(text))

    def hold_position(self, purpose: str, *, name: str) -> AbstractContextManager[HeldPosition]:
        del purpose, name
        self._cannot()

    def is_held(self, purpose: str, *, name: str) -> bool:
        del purpose, name
        return False

    def send_marker(self, text: str) -> bool:
        del text
        self._cannot()

    def copy_at(self, exported: str) -> AbstractContextManager[TableCopy]:
        del exported
        self._cannot()

    def check_copied(self, table: FoundTable, parts: int) -> None:
        del table, parts
        self._cannot()

    def kept_log(self) -> KeptLog | None:
        return None

    def decode_quarantined(
        self,
        table: KnownTable,
        events: Sequence[QuarantinedText],
        *,
        columns: Sequence[Column],
        stream_partitions: Collection[int],
    ) -> Sequence[DecodedEvents]:
        del stream_partitions
        return decode_texts(events, table.schema or SCHEMA, columns)

    def leave(self, tables: Collection[TableName], *, whole: bool) -> tuple[str, ...]:
        del tables
        self.log.is_set_up = self.log.is_set_up and not whole
        return ()

    def _cannot(self) -> Never:
        raise UsageError("a log in memory cannot be copied")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySurvey:
    source: MemorySource
    is_successor: bool = False
    stream_partitions: Collection[int] = (0,)
    first_offset: str = encode_position(1)
    stale: Mapping[TableName, TableStale] = field(default_factory=dict)
    mendable: Collection[TableName] = ()
    refused: Mapping[TableName, SourceError] = field(default_factory=dict)
    resting: Mapping[int, SourceError] = field(default_factory=dict)

    @property
    def identity(self) -> StreamIdentity:
        return StreamIdentity(system="memory", timeline=0, channel="")

    @property
    def tables(self) -> tuple[FoundTable, ...]:
        return (FoundTable(name=self.source.table, source_id=0, key=("id",), schema=SCHEMA),)

    @property
    def statements(self) -> tuple[str, ...]:
        return () if self.source.log.is_set_up else ("set up the log",)

    def set_up(self) -> SourceSurvey:
        self.source.log.is_set_up = True
        return self

    def check_ready(self) -> None:
        if not self.source.log.is_set_up:
            raise SourceError("the log is not set up", remedy="run cdc setup-source")

    def open(self, start: StreamStart) -> ChangeStream:
        (reached,) = start.progress.values()
        return MemoryStream(source=self.source, position=decode_position(reached.offset))


class MemoryStream:
    def __init__(self, *, source: MemorySource, position: int) -> None:
        self.position = self._next = position
        self._source = source

    def read(self, wait: timedelta) -> EventBatch | None:
        """One entry at a time."""
        del wait
        entries, number = self._source.log.entries, self._next
        if number > len(entries):
            return None
        self._next, found = number + 1, entries[number - 1]
        return EventBatch(
            events=() if isinstance(found, str) else (self._events(found, number),),
            transactions=Transactions(
                commit_position=np.array([number]),
                end_position=np.array([number + 1]),
                commit_time=np.array([_MICROSECONDS + number]),
            ),
            markers=(Marker(text=found, commit_position=number),) if isinstance(found, str) else (),
        )

    def progress_at(self, position: int) -> Mapping[int, PartitionProgress]:
        return {0: PartitionProgress(offset=encode_position(position))}

    def send_marker(self, text: str, *, is_heartbeat: bool = False) -> None:
        del is_heartbeat
        self._source.log.entries.append(text)

    def check(self, registered: Mapping[TableName, str | None]) -> Mapping[TableName, Sequence[Document]]:
        del registered
        return {}

    def confirm(self, commit_position: int) -> None:
        """A log in memory keeps everything."""

    def close(self) -> None:
        """Nothing is open."""

    def _events(self, changes: Sequence[Change], number: int) -> TableEvents:
        fields, count = event_schema(SCHEMA), len(changes)
        values = {
            OPERATION: [operation for operation, _, _ in changes],
            VERSION: [encode_version(number, ordinal) for ordinal in range(1, count + 1)],
            COMMIT_TIME: [_TIME + timedelta(microseconds=number)] * count,
            TRANSACTION: [number] * count,
            "id": [id_ for _, id_, _ in changes],
            "note": [note for _, _, note in changes],
        }
        columns = [pa.array(values.get(field.name, [None] * count), field.type) for field in fields]
        return TableEvents(
            table=self._source.table,
            schema=SCHEMA,
            rows=pa.table(columns, fields),
            commit_position=np.full(count, number),
            stream_partition=np.zeros(count, dtype=np.int64),
        )
