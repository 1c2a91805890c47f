"""Files with change events as a source. It has no server to copy tables from, so its tables begin empty."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cdc_pipeline.record import TableName
from cdc_pipeline.sources.copied_rows import WrittenPosition
from cdc_pipeline.sources.debezium.events_alone import EventsAlone
from cdc_pipeline.sources.debezium.memory import memory_of, version_to_come
from cdc_pipeline.sources.debezium.partition import Content, SourceLine
from cdc_pipeline.sources.debezium.written_position import position_in_order
from cdc_pipeline.sources.files.survey import EventOrder, FileSurvey, FileTransport
from cdc_pipeline.sources.known import KnownStream, PartitionProgress
from cdc_pipeline.sources.protocol import SourceCapabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(EventsAlone):
    """Implements `Source` for files that `transport` finds and reads."""

    order: EventOrder
    transport: FileTransport

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(keeps_order=self.order.is_kept, shares_partitions=True)

    @property
    def sequence_by(self) -> tuple[str, ...]:
        return self.order.sequence_by

    def position_of(self, text: str) -> WrittenPosition:
        return position_in_order(text, self.sequence_by, begins_with_time=self.order.begins_with_time)

    def decode(self, raw: SourceLine) -> Content:
        return self.transport.decode(raw)

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> FileSurvey:
        """Surveys the files. Raises SettingsError if pipeline.yml changed the type of a column."""
        del begin_again
        if known.next_offset() is None:
            self.transport.check_found()
        registered = self.registered_tables(known)
        return FileSurvey(
            kind=self.kind,
            order=self.order,
            listed=self.tables,
            progress=known.progress(),
            registered=registered,
            stream_partitions=self.transport.stream_partitions(),
            transport=self.transport,
            refused=self.transport.check_tables([table for table in self.tables if table.table not in registered]),
        )

    def oldest_version_to_come(self, table: TableName, progress: Mapping[int, PartitionProgress]) -> str:
        """Returns the lowest version that any stream partition can still have; "" if late events have no limit."""
        if (not self.order.is_kept and self.order.late_by is None) or not progress:
            return ""
        if not self.order.is_kept:
            return min(memory_of(table, reached).horizon.version for reached in progress.values())
        return min(version_to_come(table, reached) for reached in progress.values())
