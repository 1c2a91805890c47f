"""Decodes a quarantined line again, with the tables and settings as they are now."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.record import OPERATION, VERSION, Operation, TableName, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.debezium.connector_checks import ConnectorWatch
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.partition import Decode, Line, debezium_content
from cdc_pipeline.sources.debezium.rows import FILE, LINE_NUMBER, line_in
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.partition_files import RawLine
from cdc_pipeline.sources.protocol import TableEvents
from cdc_pipeline.sources.quarantined import DecodedEvents, QuarantinedText
from cdc_pipeline.time_slice import EPOCH

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDecoder:
    """Decodes quarantined lines of one table with the present `settings`.

    `horizon`: events below this version come too late. `sequence_by`: fields that order events, empty where the stream
    is ordered. A line without a commit time gets the time at which it was quarantined.
    """

    table: TableName
    horizon: str
    settings: TableSettings
    sequence_by: tuple[str, ...]
    tables: DebeziumTables
    stream_partitions: Collection[int]
    decode_line: Decode = debezium_content

    def decode(self, entries: Iterable[QuarantinedText]) -> list[DecodedEvents]:
        """Decodes each line. An event keeps the version that it had when it was quarantined."""
        parts: dict[TableSchema, DecodedEvents] = {}
        watch = ConnectorWatch()
        for entry in entries:
            schema, rows, why = self._rows(entry, watch)
            rows = _with_version(rows, entry.version)
            if not why and rows.num_rows and pc.min(rows[VERSION]).as_py() < self.horizon:
                why = f"it is too late: older than {self.horizon}, below which tombstones may be gone"
            part = parts.setdefault(schema, DecodedEvents(schema=schema, rows=rows.slice(0, 0)))
            if why:
                part.refused[entry.quarantine_id] = why
            else:
                part.rows = pa.concat_tables([part.rows, rows])
                part.fitting.append(entry.quarantine_id)
        return list(parts.values())

    def _rows(self, entry: QuarantinedText, watch: ConnectorWatch) -> tuple[TableSchema, pa.Table, str]:
        """Returns the line's schema and rows, and why they cannot be applied ("" if they can)."""
        found = self._events(entry, watch)
        nothing = TableSchema(columns=(), key=())
        if not found:
            return nothing, event_schema(nothing).empty_table(), "it is no event of a listed table"
        (events,) = found
        why = next((unfit.reason for unfit in events.unfit), "")
        if not why and events.table != self.table:
            why = f"it is an event of {events.table}"
        operations = events.rows[OPERATION].to_pylist()
        if not why and self.settings.truncate == "ignore" and Operation.TRUNCATE in operations:
            why = "pipeline.yml ignores truncates of the table: drop it"
        return events.schema, events.rows, why

    def _events(self, entry: QuarantinedText, watch: ConnectorWatch) -> tuple[TableEvents, ...]:
        """Returns the line's events, or the line as an unfit event; nothing if the line is no event of a listed table.

        Versions do not contain the line's position in its file, since here the whole file is this line.
        """
        decoder = DebeziumDecoder(
            tables=self.tables,
            sequence_by=self.sequence_by,
            last_position={number: {} for number in self.stream_partitions},
            watch=watch,
        )
        number = int(entry.payload[LINE_NUMBER] or 0)
        raw = RawLine(
            place=number,
            file=entry.payload[FILE] or "",
            number=number,
            text=line_in(entry.payload),
            written=int((entry.created_at - EPOCH).total_seconds() * _MICROSECONDS),
        )
        decoder.add(entry.stream_partition, [Line(raw=raw, content=self.decode_line(raw))], 0)
        return decoder.take(entry.stream_partition)


def _with_version(rows: pa.Table, version: str) -> pa.Table:
    if not version:
        return rows
    column = rows.schema.get_field_index(VERSION)
    return rows.set_column(column, rows.schema.field(VERSION), pa.array([version] * rows.num_rows, pa.string()))
