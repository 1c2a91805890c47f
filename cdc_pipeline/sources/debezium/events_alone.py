"""What all sources of Debezium's events without a database of their own have in common."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Never

from cdc_pipeline.errors import SettingsError, UsageError
from cdc_pipeline.record import Column, TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.copied_rows import HeldPosition, WrittenPosition
from cdc_pipeline.sources.debezium.declared_tables import refuse_changed_types
from cdc_pipeline.sources.debezium.kept_lines import LineDecoder
from cdc_pipeline.sources.debezium.partition import Content, SourceLine, debezium_content
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.debezium.written_position import START, position_in_order
from cdc_pipeline.sources.known import FoundTable, KeptLog, KnownStream, KnownTable, NewBeginning
from cdc_pipeline.sources.protocol import TableCopy
from cdc_pipeline.sources.quarantined import DecodedEvents, QuarantinedText, decode_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsAlone:
    """The part of `Source` that needs no stream: there is no server that could copy or list tables.

    `stream`: the pipeline's name. `kind`: the kind of source. `tables`: those of pipeline.yml.
    """

    stream: str
    kind: str
    tables: tuple[TableSettings, ...]

    @property
    def sequence_by(self) -> tuple[str, ...]:
        """Fields of an event that show which of two events is newer."""
        return ()

    def decode(self, raw: SourceLine) -> Content:
        """Returns the content of a line, or why it cannot be read. Raises nothing for a damaged line."""
        return debezium_content(raw)

    def registered_tables(self, known: KnownStream) -> Mapping[TableName, KnownTable]:
        """Returns the registered tables of pipeline.yml. Raises SettingsError if it changed the type of a column."""
        registered = known.tables()
        for table in self.tables:
            refuse_changed_types(table, registered.get(table.table))
        return registered

    def list_tables(self) -> tuple[str, ...]:
        raise SettingsError(
            "include names tables by pattern, and the source is no database that could be asked for them",
            expected="tables, each by its name",
            remedy="list them under tables in pipeline.yml",
        )

    def missing_statements(self, known: KnownStream) -> tuple[str, ...]:
        """Returns nothing: the program that writes the events creates what they are in."""
        del known
        return ()

    def begin_again(self, registered: str, channel: str) -> NewBeginning:
        del registered, channel
        self._is_no_database()

    def position_of(self, text: str) -> WrittenPosition:
        """Reads the values of the fields that order events; `start` is before every event."""
        return position_in_order(text, self.sequence_by)

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

    def check_copied(self, table: FoundTable, parts: int) -> None:
        del table, parts
        self._is_no_database()

    def kept_log(self) -> KeptLog | None:
        """Returns None: the pipeline does not decide how long the events are kept."""
        return None

    def decode_quarantined(
        self,
        table: KnownTable,
        events: Sequence[QuarantinedText],
        *,
        columns: Sequence[Column],
        stream_partitions: Collection[int],
    ) -> Sequence[DecodedEvents]:
        """Decodes quarantined lines or records with the present pipeline.yml, and quarantined rows of a snapshot."""
        lines = [event for event in events if event.snapshot_id is None]
        rows = [event for event in events if event.snapshot_id is not None]
        decoded = [] if table.schema is None else decode_texts(rows, table.schema, columns)
        decoder = LineDecoder(
            table=table.name,
            horizon=table.horizon,
            settings=next(listed for listed in self.tables if listed.table == table.name),
            sequence_by=self.sequence_by,
            tables=DebeziumTables(
                self.tables,
                {} if table.schema is None else {table.name: table.schema},
                columns={table.name: columns},
            ),
            stream_partitions=stream_partitions,
            decode_line=self.decode,
        )
        return [*decoded, *decoder.decode(lines)]

    def leave(self, tables: Collection[TableName], *, whole: bool) -> tuple[str, ...]:
        """Removes nothing: the events do not belong to the pipeline."""
        del tables, whole
        return ()

    def _is_no_database(self) -> Never:
        raise UsageError(
            f"the source of {self.stream} is of the kind {self.kind}",
            expected="PostgreSQL, MariaDB or MySQL, to take a snapshot of it or to compare the lake with it",
            remedy="its tables begin empty, or with exported files: cdc snapshot --from PREFIX --as-of"
            f" {START}; then run cdc consume and cdc apply. To compare them, name the database behind the events:"
            " cdc verify --against URL",
        )
