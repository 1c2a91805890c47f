"""What all sources of Debezium's events without a database of their own have in common."""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Never

import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.errors import SettingsError, UsageError
from cdc_pipeline.record import OPERATION, VERSION, Column, Operation, TableName, TableSchema
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.copied_rows import WrittenPosition
from cdc_pipeline.sources.debezium.changes import is_key_change
from cdc_pipeline.sources.debezium.connector_checks import TableWatch
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.events_survey import refuse_changed_types
from cdc_pipeline.sources.debezium.one_line import fast_json
from cdc_pipeline.sources.debezium.partition import Content, Line, SourceLine, debezium_content
from cdc_pipeline.sources.debezium.rows import ALONE, DELETES_AT, DELETING, FILE, LINE_NUMBER, line_in
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.debezium.written_position import START, position_in_order
from cdc_pipeline.sources.files.partition_files import RawLine
from cdc_pipeline.sources.known import KeptLog, KnownStream, KnownTable
from cdc_pipeline.sources.protocol import TableEvents
from cdc_pipeline.sources.quarantined import DecodedEvents, QuarantinedText, decode_texts
from cdc_pipeline.time_slice import EPOCH

_MICROSECONDS = 1_000_000
_Group = list[tuple[QuarantinedText, Line]]
"""Quarantined lines that are decoded together."""


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

    def position_of(self, text: str) -> WrittenPosition:
        """Reads the values of the fields that order events; `start` is before every event."""
        return position_in_order(text, self.sequence_by)

    def is_held(self, purpose: str, *, name: str) -> bool:
        del purpose, name
        return False

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
        return [*decoded, *_decode_lines(self, table, lines, columns, stream_partitions)]

    def leave(self, tables: Collection[TableName], *, whole: bool) -> tuple[str, ...]:
        """Removes nothing: the events do not belong to the pipeline."""
        del tables, whole
        return ()

    def _is_no_database(self, *_: object, **__: object) -> Never:
        raise UsageError(
            f"the source of {self.stream} is of the kind {self.kind}",
            expected="PostgreSQL, MariaDB or MySQL, to take a snapshot of it or to compare the lake with it",
            remedy="its tables begin empty, or with exported files: cdc snapshot --from PREFIX --as-of"
            f" {START}; then run cdc consume and cdc apply. To compare them, name the database behind the events:"
            " cdc verify --against URL",
        )

    begin_again = hold_position = send_marker = copy_at = check_copied = _is_no_database


def _decode_lines(
    source: EventsAlone,
    table: KnownTable,
    entries: Iterable[QuarantinedText],
    columns: Sequence[Column],
    stream_partitions: Collection[int],
) -> list[DecodedEvents]:
    """Decodes each line. An event keeps the version that it had when it was quarantined.

    A refused event may have a row: the delete of the old row of a key change whose new row does not fit.
    """
    settings = next(listed for listed in source.tables if listed.table == table.name)
    schemas = {} if table.schema is None else {table.name: table.schema}
    tables = DebeziumTables(source.tables, schemas, columns={table.name: columns})
    parts: dict[TableSchema, DecodedEvents] = {}
    applicable = defaultdict[TableSchema, list[pa.Table]](list)
    for group, found in _taken(source, tables, entries, stream_partitions):
        schema, rows, why = _found_rows(found, settings)
        in_several = len(stream_partitions) > 1 and not source.sequence_by
        if why and in_several and _was_sent_again(rows, group[-1]):
            rows = rows.slice(0, 0)
        rows = _with_version(rows, group[-1], table.horizon)
        is_late = bool(rows.num_rows) and pc.min(rows[VERSION]).as_py() < table.horizon
        if is_late and not why:
            why = f"it is too late: older than {table.horizon}, below which tombstones may be gone"
        part = parts.setdefault(schema, DecodedEvents(schema=schema, rows=rows.slice(0, 0)))
        quarantine_ids = [entry.quarantine_id for entry in group]
        if rows.num_rows and not is_late:
            applicable[schema].append(rows)
        if why:
            part.refused |= dict.fromkeys(quarantine_ids, why)
        else:
            part.fitting += quarantine_ids
    for schema, of_schema in applicable.items():
        parts[schema].rows = pa.concat_tables(of_schema)
    return list(parts.values())


def _taken(
    source: EventsAlone, tables: DebeziumTables, entries: Iterable[QuarantinedText], stream_partitions: Collection[int]
) -> Iterator[tuple[list[QuarantinedText], Sequence[TableEvents]]]:
    """Yields quarantined lines with their events: each line alone, but those of a key change together if they fit.

    A line of a table without an id, in a stream of one partition, is judged by the columns that the table had then. It
    is older than those that were added later.
    """
    watches = defaultdict[str, TableWatch](TableWatch)
    waiting = deque(_groups(source, entries))
    while waiting:
        group = waiting.popleft()
        number = group[0][0].stream_partition
        decoder = DebeziumDecoder(
            tables=tables,
            sequence_by=source.sequence_by,
            last_position={number: {} for number in stream_partitions},
            alone=len(stream_partitions) == 1 or ALONE in group[0][0].payload,
            columns=_columns_then(group[0][0].payload.get(ALONE)),
            watches=watches,
            replayed=True,
        )
        decoder.add(number, [line for _, line in group], 0)
        found = decoder.take(number)
        if len(group) > 1 and (len(found) != 1 or found[0].unfit or found[0].schema.is_keyless):
            waiting.extendleft([each] for each in reversed(group))
        else:
            yield [entry for entry, _ in group], found


def _columns_then(noted: str | None) -> frozenset[str] | None:
    """Returns the columns that the table had when its line was quarantined, None if the line has no list of them."""
    names = fast_json(noted or "")
    return frozenset(map(str, names)) if isinstance(names, list) else None


def _groups(source: EventsAlone, entries: Iterable[QuarantinedText]) -> list[_Group]:
    """Returns the lines in their order: the create of a key change with the delete before it, the others alone."""
    groups: list[_Group] = []
    for entry in sorted(entries, key=lambda entry: (entry.stream_partition, entry.version, entry.quarantine_id)):
        raw = _raw_line(entry)
        line = Line(raw=raw, content=source.decode(raw))
        if groups and groups[-1][-1][0].stream_partition == entry.stream_partition and _goes_on(groups[-1], line):
            groups[-1].append((entry, line))
        else:
            groups.append([(entry, line)])
    return groups


def _goes_on(group: _Group, line: Line) -> bool:
    """Returns whether the line belongs to the key change of the line before it, or is the same delete, sent twice."""
    first, second = group[-1][1].event, line.event
    if first is None or second is None:
        return False
    is_again = first.operation == "d" and (first.value, first.key) == (second.value, second.key)
    return is_again or is_key_change(first, second)


def _raw_line(entry: QuarantinedText) -> RawLine:
    """Returns the line with its quarantining's time, and without its place in the file: the whole file is this line."""
    number = int(entry.payload[LINE_NUMBER] or 0)
    return RawLine(
        place=number,
        file=entry.payload[FILE] or "",
        number=number,
        text=line_in(entry.payload),
        written=int((entry.created_at - EPOCH).total_seconds() * _MICROSECONDS),
    )


def _found_rows(found: Sequence[TableEvents], settings: TableSettings) -> tuple[TableSchema, pa.Table, str]:
    """Returns a line's schema, the rows that can be applied, and why it cannot be applied as a whole ("" if it can)."""
    nothing = TableSchema(columns=(), key=())
    if not found:
        return nothing, event_schema(nothing).empty_table(), "it is no event of a listed table"
    (events,) = found
    why = next((unfit.reason for unfit in events.unfit), "")
    if events.table != settings.table:
        return events.schema, events.rows.slice(0, 0), why or f"it is an event of {events.table}"
    if settings.truncate == "ignore" and Operation.TRUNCATE in events.rows[OPERATION].to_pylist():
        why = "pipeline.yml ignores truncates of the table: drop it"
        return events.schema, events.rows.slice(0, 0), why
    return events.schema, events.rows, why


def _was_sent_again(rows: pa.Table, entry: QuarantinedText) -> bool:
    """Returns whether a line of several stream partitions was sent again, and its entry lacks a version for its delete.

    The stream had deleted the old row. At the version that its stream partition had reached, a delete would end a newer
    row of another one.
    """
    if DELETES_AT in entry.payload or not rows.num_rows:
        return False
    own, reached = (version.partition("-")[0] for version in (pc.min(rows[VERSION]).as_py(), entry.version))
    return bool(own < reached)


def _with_version(rows: pa.Table, entry: QuarantinedText, horizon: str) -> pa.Table:
    """Returns the rows with the version of their line. What a line that was sent again deletes has an older one.

    Below the horizon that was deleted before, so it is left out.
    """
    if not entry.version:
        return rows
    deletes_at = entry.payload.get(DELETES_AT) or entry.version
    deletes = pc.is_in(rows[OPERATION], pa.array(DELETING, pa.string()))
    versions = pc.if_else(deletes, pa.scalar(deletes_at), pa.scalar(entry.version))
    column = rows.schema.get_field_index(VERSION)
    rows = rows.set_column(column, rows.schema.field(VERSION), versions)
    return rows.filter(pc.invert(deletes)) if deletes_at < min(horizon, entry.version) else rows
