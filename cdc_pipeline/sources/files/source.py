"""A folder of Debezium's events as a source. It has no server to copy tables from, so its tables begin empty."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from cdc_pipeline.record import TableName, decode_position
from cdc_pipeline.settings import DebeziumFilesSource
from cdc_pipeline.sources.debezium.events_alone import EventsAlone
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.debezium.tables import refuse_changed_types
from cdc_pipeline.sources.debezium.versions import encode_place
from cdc_pipeline.sources.files.partition_files import partition_folders
from cdc_pipeline.sources.files.survey import FolderSurvey
from cdc_pipeline.sources.known import (
    KnownStream,
    PartitionProgress,
)
from cdc_pipeline.sources.protocol import SourceCapabilities
from cdc_pipeline.steps import OnStep


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumFolder(EventsAlone):
    """Implements `Source` for a folder of event files.

    `folder`: absolute path of the folder with the stream partitions.
    """

    folder: Path
    settings: DebeziumFilesSource
    on_step: OnStep

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(
            copies_tables=False,
            keeps_order=self.settings.ordered,
            keeps_ids_together=False,
            adds_partitions=True,
            proofs=frozenset(),
        )

    @property
    def sequence_by(self) -> tuple[str, ...]:
        return self.settings.sequence_by

    def survey(self, known: KnownStream, begin_again: Collection[TableName] = ()) -> FolderSurvey:
        """Surveys the folder. Raises SettingsError if pipeline.yml changed the type of a column."""
        del begin_again
        tables = known.tables()
        for table in self.tables:
            refuse_changed_types(table, tables.get(table.table))
        return FolderSurvey(
            folder=self.folder,
            settings=self.settings,
            listed=self.tables,
            folders=partition_folders(self.folder),
            on_step=self.on_step,
        )

    def oldest_version_to_come(self, table: TableName, progress: Mapping[int, PartitionProgress]) -> str:
        """Returns the lowest version that any stream partition can still have; "" if late events have no limit."""
        if (not self.settings.ordered and self.settings.late_by is None) or not progress:
            return ""
        memories = {
            number: PartitionMemory.decode(reached.last_position.get(str(table), "0"))
            for number, reached in progress.items()
        }
        if not self.settings.ordered:
            return min(memory.horizon.version for memory in memories.values())
        return min(
            encode_place(memory.position, decode_position(progress[number].offset))
            for number, memory in memories.items()
        )
