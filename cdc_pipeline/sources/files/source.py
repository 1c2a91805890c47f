"""A folder of Debezium's events as a source. It has no server to copy tables from, so its tables begin empty."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from cdc_pipeline.errors import SettingsError, UsageError
from cdc_pipeline.record import Column, TableName, decode_position
from cdc_pipeline.settings import DebeziumFilesSource, TableSettings
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.debezium.kept_lines import LineDecoder
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.debezium.tables import DebeziumTables, refuse_changed_types
from cdc_pipeline.sources.debezium.versions import encode_place
from cdc_pipeline.sources.files.partition_files import partition_folders
from cdc_pipeline.sources.files.survey import FolderSurvey
from cdc_pipeline.sources.known import (
    FoundTable,
    KeptLog,
    KnownStream,
    KnownTable,
    NewBeginning,
    PartitionProgress,
)
from cdc_pipeline.sources.protocol import SourceCapabilities, TableCopy
from cdc_pipeline.sources.quarantined import DecodedEvents, QuarantinedText
from cdc_pipeline.steps import OnStep


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumFolder:
    """Implements `Source` for a folder of event files.

    `stream`: the pipeline's name. `folder`: absolute path of the folder with the stream partitions. `tables`: those of
    pipeline.yml.
    """

    stream: str
    folder: Path
    settings: DebeziumFilesSource
    tables: tuple[TableSettings, ...]
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

    def list_tables(self) -> tuple[str, ...]:
        raise SettingsError(
            "include names tables by pattern, and the source is no database that could be asked for them",
            expected="tables, each by its name",
            remedy="list them under tables in pipeline.yml",
        )

    def missing_statements(self, known: KnownStream) -> tuple[str, ...]:
        """Returns nothing: the writer of the files creates the folders."""
        del known
        return ()

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

    def begin_again(self, registered: str) -> NewBeginning:
        del registered
        self._is_no_database()

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

    def hold_position(self, purpose: str, *, name: str) -> AbstractContextManager[HeldPosition]:
        del purpose, name
        self._is_no_database()

    def is_held(self, purpose: str, *, name: str) -> bool:
        del purpose, name
        return False

    def send_marker(self, text: str) -> bool:
        del text
        self._is_no_database()

    def copy_at(self, exported: str) -> AbstractContextManager[TableCopy]:
        del exported
        self._is_no_database()

    def check_copied(self, table: FoundTable) -> None:
        del table
        self._is_no_database()

    def kept_log(self) -> KeptLog | None:
        """Returns None: the pipeline does not decide how long files are kept."""
        return None

    def decode_quarantined(
        self,
        table: KnownTable,
        events: Sequence[QuarantinedText],
        *,
        columns: Mapping[str, Column],
        stream_partitions: Collection[int],
    ) -> Sequence[DecodedEvents]:
        """Decodes quarantined lines with the present pipeline.yml."""
        del columns
        decoder = LineDecoder(
            table=table.name,
            horizon=table.horizon,
            settings=next(listed for listed in self.tables if listed.table == table.name),
            sequence_by=self.settings.sequence_by,
            tables=DebeziumTables(self.tables, {} if table.schema is None else {table.name: table.schema}),
            stream_partitions=stream_partitions,
        )
        return decoder.decode(events)

    def leave(self, tables: Collection[TableName], *, whole: bool) -> tuple[str, ...]:
        """Removes nothing: the files do not belong to the pipeline."""
        del tables, whole
        return ()

    def _is_no_database(self) -> Never:
        raise UsageError(
            f"the source of {self.stream} is of the kind {self.settings.kind}",
            expected="a PostgreSQL server, to take a snapshot of it or to compare the lake with it",
            remedy="its tables begin empty and need no snapshot: run cdc consume and cdc apply",
        )
