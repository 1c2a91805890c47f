"""Turns changes of one table under one layout into rows of a slice file. Quarantines lines with unfit values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.record import OLD_ID_PREFIX, Operation, TableName, TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.debezium.changes import Change
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt, printable
from cdc_pipeline.sources.debezium.partition import SourceLine
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.protocol import TableEvents, UnfitEvent
from cdc_pipeline.types import parse_debezium

LINE, FILE, LINE_NUMBER = "_cdc_line", "_cdc_file", "_cdc_line_number"
"""Keys of a quarantined line's payload: the whole line, its file and its line number. There are no other keys."""
LINE_ESCAPED = "_cdc_line_escaped"
"""Key in place of LINE for a line with NUL or invalid UTF-8, which PostgreSQL does not accept: Python's escapes."""
_INT8 = 1 << 63


class PlacedChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A change with its line and version. `commit_time`: in microseconds since 1970.

    If a line gives two changes, both have the same version.
    """

    change: Change
    version: str
    commit_time: int
    transaction: int | None
    commit_position: int
    line: SourceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class _Misfit:
    column: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenLines:
    """What became of lines: changes by runs of one layout, and unfit events with their tables."""

    runs: list[tuple[Layout, list[PlacedChange]]] = field(default_factory=list)
    unfit: list[tuple[TableName, UnfitEvent]] = field(default_factory=list)

    def add(
        self,
        changes: Sequence[Change],
        layout: Layout,
        event: EnvelopeEvent,
        line: SourceLine,
        *,
        version: str,
        commit_position: int,
    ) -> None:
        """Adds the changes of one event."""
        if not self.runs or self.runs[-1][0] is not layout:
            self.runs.append((layout, []))
        placed, transaction = self.runs[-1][1], event.source.get("txId")
        for change in changes:
            placed.append(
                PlacedChange(
                    change=change,
                    version=version,
                    commit_time=event.commit_time or line.written,
                    transaction=transaction if isinstance(transaction, int) and abs(transaction) < _INT8 else None,
                    commit_position=commit_position,
                    line=line,
                )
            )

    def events(self, stream_partition: int) -> tuple[TableEvents, ...]:
        """Returns rows in the order of the lines, then unfit lines."""
        rows = [found for layout, placed in self.runs for found in events_of_lines(placed, layout, stream_partition)]
        tables = dict.fromkeys(table for table, _ in self.unfit)
        aside = [only_unfit(table, [event for of, event in self.unfit if of == table]) for table in tables]
        return (*rows, *aside)


def events_of_lines(placed: Sequence[PlacedChange], layout: Layout, stream_partition: int) -> list[TableEvents]:
    """Returns rows in the order of `placed`. Finds lines that cannot be typed by bisection, and quarantines each."""
    found = attempt(lambda: table_events(placed, layout, stream_partition))
    if not isinstance(found, LineRefused):
        return [found]
    places = sorted({each.line.place for each in placed})
    if len(places) == 1:
        return [only_unfit(layout.table, [_unfit(placed[0], stream_partition, _Misfit(column="", reason=str(found)))])]
    middle = places[len(places) // 2]
    first = [each for each in placed if each.line.place < middle]
    second = [each for each in placed if each.line.place >= middle]
    return [events for half in (first, second) for events in events_of_lines(half, layout, stream_partition)]


def table_events(placed: Sequence[PlacedChange], layout: Layout, stream_partition: int) -> TableEvents:
    """Returns rows in the order of `placed`. If one change of a line does not fit, the whole line is quarantined."""
    rows, misfits = _typed(placed, layout)
    positions = np.array([each.commit_position for each in placed], dtype=np.int64)
    refused: dict[int, _Misfit] = {}
    if misfits:
        refused = {placed[row].line.place: misfit for row, misfit in reversed(misfits.items())}
        fits = np.array([each.line.place not in refused for each in placed], dtype=np.bool_)
        rows, positions = rows.filter(pa.array(fits)), positions[fits]
    lines = {each.line.place: each for each in placed if each.line.place in refused} if refused else {}
    return TableEvents(
        table=layout.table,
        schema=layout.schema,
        rows=rows,
        commit_position=positions,
        stream_partition=np.full(len(positions), stream_partition, dtype=np.int64),
        unfit=tuple(_unfit(lines[place], stream_partition, refused[place]) for place in sorted(refused)),
    )


def _unfit(placed: PlacedChange, stream_partition: int, misfit: _Misfit) -> UnfitEvent:
    return unfit_line(
        placed.line,
        stream_partition=stream_partition,
        version=placed.version,
        commit_position=placed.commit_position,
        column=misfit.column,
        reason=misfit.reason,
    )


def only_unfit(table: TableName, events: Sequence[UnfitEvent]) -> TableEvents:
    """Returns unfit lines as events of `table`, without rows."""
    schema, nothing = TableSchema(columns=(), key=()), np.zeros(0, dtype=np.int64)
    return TableEvents(
        table=table,
        schema=schema,
        rows=event_schema(schema).empty_table(),
        commit_position=nothing,
        stream_partition=nothing,
        unfit=tuple(events),
    )


def unfit_line(
    line: SourceLine, *, stream_partition: int, version: str, commit_position: int, column: str, reason: str
) -> UnfitEvent:
    """Returns the whole line as an unfit event, with texts that every store can hold."""
    return UnfitEvent(
        stream_partition=stream_partition,
        version=version,
        commit_position=commit_position,
        column=printable(column),
        reason=f"{line.file} line {line.number}: {printable(reason)}",
        payload={
            **_line_payload(line.text),
            FILE: line.file,
            LINE_NUMBER: str(line.number),
        },
    )


def _line_payload(line: bytes) -> dict[str, str]:
    text = line.decode(errors="surrogateescape")
    if printable(text, most=len(text)) == text:
        return {LINE: text}
    return {LINE_ESCAPED: text.encode("unicode_escape").decode()}


def line_in(payload: Mapping[str, str | None]) -> bytes:
    """Returns the line's bytes from the payload of an unfit event: as the file has them, or as a person edited them."""
    escaped = payload.get(LINE_ESCAPED)
    if escaped is None:
        return (payload.get(LINE) or "").encode(errors="surrogateescape")
    try:
        return escaped.encode().decode("unicode_escape").encode(errors="surrogateescape")
    except UnicodeError:  # A person edited it and broke an escape: decoding the line will say what is wrong.
        return escaped.encode()


def _typed(placed: Sequence[PlacedChange], layout: Layout) -> tuple[pa.Table, dict[int, _Misfit]]:
    """Returns every change as a row, and by row number why a change cannot become one."""
    schema, misfits = layout.schema, dict[int, _Misfit]()
    changes = [each.change for each in placed]
    operations = [change.operation for change in changes]
    has_row = np.array([operation is not Operation.TRUNCATE for operation in operations], dtype=np.bool_)
    rows = [change.values for change in changes]
    columns: dict[str, pa.Array] = {}
    for column in schema.columns:
        values = _values(rows, column.name)
        required = has_row if column.name in schema.key else None
        columns[column.name] = _column(column.name, column.name, values, layout, misfits, required)
    moved = np.array([operation is Operation.MOVE for operation in operations], dtype=np.bool_)
    for column in schema.key_columns:
        name = OLD_ID_PREFIX + column.name
        old = [change.old_id.get(column.name) for change in changes] if moved.any() else [None] * len(changes)
        columns[name] = _column(name, column.name, old, layout, misfits, moved)
    own = (
        pa.array(operations, pa.string()),
        pa.array([each.version for each in placed], pa.string()),
        pa.array([each.commit_time for each in placed], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([each.transaction for each in placed], pa.int64()),
        pa.array([change.absent or None for change in changes], pa.list_(pa.string())),
    )
    fields = event_schema(schema)
    return pa.table([*own, *(columns[name] for name in fields.names[len(own) :])], fields), misfits


def _values(rows: Sequence[Mapping[str, object]], name: str) -> list[object]:
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def _column(
    name: str,
    of: str,
    values: Sequence[object],
    layout: Layout,
    misfits: dict[int, _Misfit],
    required: npt.NDArray[np.bool_] | None,
) -> pa.Array:
    column_type = layout.schema.column(of).type
    parsed = parse_debezium(values, column_type, layout.fields.get(of))
    if parsed.unfit is not None:
        shown = f"the value of {name} does not fit the lake's {column_type}"
        for row in np.flatnonzero(np.asarray(pc.fill_null(parsed.unfit, fill_value=False))):
            misfits.setdefault(int(row), _Misfit(column=name, reason=shown))
    if required is not None:
        for row in np.flatnonzero(required & np.asarray(parsed.values.is_null())):
            misfits.setdefault(int(row), _Misfit(column=name, reason=f"the id column {name} is NULL"))
    return parsed.values
