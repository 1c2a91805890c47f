"""Surveys files with events, and opens the stream of their lines."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import PARTITION_NAME, TableName, decode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.events_survey import EventsSurvey, warn_of_late_table
from cdc_pipeline.sources.debezium.memory import table_states
from cdc_pipeline.sources.debezium.partition import Content, LineSource, PartitionLines, SourceLine
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST
from cdc_pipeline.sources.files.row_stream import RowStream
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.known import FoundTable, KnownTable, PartitionProgress, StreamIdentity, StreamStart
from cdc_pipeline.sources.protocol import ChangeStream


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOrder:
    """What decides which of two events is newer. `name`: what registered versions were made by; it never changes.

    `sequence_by`: fields of the events; empty if the order of the files decides. `late_by`: how late an event may be.
    `begins_with_time`: the first field is a time in microseconds, which people write as a time.
    """

    name: str
    sequence_by: tuple[str, ...] = ()
    late_by: timedelta | None = None
    begins_with_time: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether the files have the events of an id in the order of their versions."""
        return not self.sequence_by


class FileTransport(Protocol):
    """Where files are, and what a line of them means. What it does by default suits files of events."""

    def check_found(self) -> None:
        """Raises SourceError if there is no file at all. Called before the first file is read."""

    def check_tables(self, tables: Collection[TableSettings]) -> Mapping[TableName, SourceError]:
        """Returns tables of which no row could be applied, as their first files show. Called before their first run."""
        del tables
        return {}

    def without(self, tables: Collection[TableName]) -> "FileTransport":
        """Returns the transport that does not read the files of these tables."""
        del tables
        return self

    def shares_files(self, table: TableName, registered: Collection[TableName]) -> bool:
        """Returns whether files that were read for `registered` tables may have events of a new one."""
        del table, registered
        return True

    def stream_partitions(self) -> Mapping[int, str]:
        """Returns the stream partitions that there are now, each with its name, "" if it is the only one that can be.

        Raises SourceError if the folders have another layout.
        """

    def reader(self, number: int, reached: PartitionProgress, start: StreamStart) -> LineSource:
        """Returns a reader of one stream partition from `reached` on."""

    def decode(self, raw: SourceLine) -> Content:
        """Returns the content of a line, or why it cannot be read. Raises nothing for a damaged line."""

    def rows_stream(self, decoder: DebeziumDecoder, start: StreamStart) -> RowStream | None:
        """Opens the stream of files whose records are rows; None if their records are events."""
        del decoder, start
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSurvey(EventsSurvey):
    """Implements `SourceSurvey`. `progress`: the registered stream partitions. `registered`: the registered tables.

    The files of `refused` tables are not read.
    """

    kind: str
    order: EventOrder
    progress: Mapping[int, PartitionProgress]
    registered: Mapping[TableName, KnownTable]
    stream_partitions: Mapping[int, str]
    transport: FileTransport
    refused: Mapping[TableName, SourceError]

    @property
    def identity(self) -> StreamIdentity:
        """The kind of source and the order of its events. Versions of another order cannot be compared."""
        return StreamIdentity(system=self.kind, timeline=0, channel=self.order.name)

    @property
    def tables(self) -> tuple[FoundTable, ...]:
        return self.found_tables(lambda name: name not in self.refused)

    @property
    def stale(self) -> Mapping[TableName, TableStale]:
        return {}

    def set_up(self) -> "FileSurvey":
        """Creates nothing: the files do not belong to the pipeline. Warns of a new table in a folder that was read."""
        numbers = [number for number, place in self.progress.items() if decode_position(place.offset or "0")]
        for table in self.listed if numbers else ():
            is_new = table.table not in self.registered and table.table not in self.refused
            if is_new and self.transport.shares_files(table.table, self.registered):
                name = self.stream_partitions.get(min(numbers)) or "the folder"
                warn_of_late_table(table, kind="folder", name=name, again="have the table's rows sent again")
        return self

    def open(self, start: StreamStart) -> ChangeStream:
        transport, decoder = self.transport.without(self.refused), self._decoder(start)
        rows = transport.rows_stream(decoder, start)
        if rows is not None:
            return rows
        others = self.stream_partitions.keys() - start.progress.keys()
        return DebeziumStream(
            partitions={
                number: PartitionLines(transport.reader(number, reached, start), transport.decode)
                for number, reached in start.progress.items()
            },
            progress={number: self._named(number, reached) for number, reached in start.progress.items()},
            decoder=decoder,
            position=start.position,
            commit_time=start.commit_time,
            folders=lambda: transport.stream_partitions().keys() - others,
        )

    def _named(self, number: int, reached: PartitionProgress) -> PartitionProgress:
        name = self.stream_partitions[number]
        own = {PARTITION_NAME: name} if name else {}
        return replace(reached, last_position={**reached.last_position, **own})

    def _decoder(self, start: StreamStart) -> DebeziumDecoder:
        return DebeziumDecoder(
            tables=DebeziumTables(self.listed, start.schemas, columns=start.columns),
            sequence_by=self.order.sequence_by,
            last_position=table_states({**self.progress, **start.progress}, (FILE_DIGEST, PARTITION_NAME)),
            horizons=start.horizons,
            late_by=self.order.late_by,
            alone=len(self.stream_partitions) == 1,
        )
