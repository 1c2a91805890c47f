"""Turns changes of one table under one layout into rows of a slice file. Quarantines lines with unfit values."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_pipeline.record import OLD_ID_PREFIX, Operation, TableName, TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.debezium.changes import Change
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Fields
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt, printable
from cdc_pipeline.sources.debezium.partition import SourceLine
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.protocol import TableEvents, UnfitEvent
from cdc_pipeline.types import parse_debezium

LINE, FILE, LINE_NUMBER = "_cdc_line", "_cdc_file", "_cdc_line_number"
"""Keys of a quarantined line's payload: the whole line, its file and its line number."""
DELETES_AT, ALONE = "_cdc_deletes_at", "_cdc_alone"
"""Keys for the older version of what it deletes, and for the columns of a table without an id. There are no others."""
LINE_ESCAPED = "_cdc_line_escaped"
"""Key in place of LINE for a line with NUL or invalid UTF-8, which PostgreSQL does not accept: Python's escapes."""
DELETING = (Operation.DELETE, Operation.TRUNCATE)
Versions = tuple[str, str]
"""Of a quarantined line, and of what it deletes; "" if that is not older."""
_INT8 = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class _Misfit:
    column: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedChanges:
    """Changes of one table under one layout, with their lines and versions: a list per field, an item per change.

    `values`, `absent`, `old_ids`: as in `Change`. `commit_times`: in microseconds since 1970. If a line gives two
    changes, both have the same version. `deletes_at`: by the place of a line that is sent again, the older version that
    its delete or truncate gets.
    """

    operations: list[Operation] = field(default_factory=list)
    values: list[Fields] = field(default_factory=list)
    absent: list[tuple[str, ...]] = field(default_factory=list)
    old_ids: list[Fields] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    commit_times: list[int] = field(default_factory=list)
    transactions: list[int | None] = field(default_factory=list)
    commit_positions: list[int] = field(default_factory=list)
    lines: list[SourceLine] = field(default_factory=list)
    deletes_at: dict[int, str] = field(default_factory=dict)

    def row_versions(self) -> list[str]:
        """Returns the version of each change's row."""
        early, found = self.deletes_at, zip(self.operations, self.lines, self.versions, strict=True)
        if not early:
            return self.versions
        return [early.get(line.place, version) if of in DELETING else version for of, line, version in found]

    def add(self, change: Change, event: EnvelopeEvent, line: SourceLine, version: str, commit_position: int) -> None:
        self.operations.append(change.operation)
        self.values.append(change.values)
        self.absent.append(change.absent)
        self.old_ids.append(change.old_id)
        self.versions.append(version)
        self.commit_times.append(event.commit_time or line.written)
        self.transactions.append(_transaction(event))
        self.commit_positions.append(commit_position)
        self.lines.append(line)

    def add_rows(
        self,
        operations: Iterable[Operation],
        rows: Sequence[Fields],
        events: Sequence[EnvelopeEvent],
        lines: Sequence[SourceLine],
        versions: Iterable[str],
        commit_positions: Iterable[int],
    ) -> None:
        """Adds a change for each event, each with its whole row and the id that the row had before."""
        count = len(rows)
        self.operations.extend(operations)
        self.values.extend(rows)
        self.absent.extend([()] * count)
        self.old_ids.extend([{}] * count)
        self.versions.extend(versions)
        self.commit_times.extend([event.commit_time or line.written for event, line in zip(events, lines, strict=True)])
        self.transactions.extend(map(_transaction, events))
        self.commit_positions.extend(commit_positions)
        self.lines.extend(lines)

    def of_lines(self, places: Collection[int]) -> Self:
        """Returns the changes of the lines at these places."""
        chosen = [line.place in places for line in self.lines]
        lists = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "deletes_at"}
        of_lines = {name: list(compress(items, chosen)) for name, items in lists.items()}
        return type(self)(**of_lines, deletes_at=self.deletes_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenLines:
    """What became of lines: changes by runs of one layout, and unfit events with their tables.

    `latest`: the last run of each table, by the table's name.
    """

    runs: list[tuple[Layout, PlacedChanges]] = field(default_factory=list)
    latest: dict[str, tuple[Layout, PlacedChanges]] = field(default_factory=dict)
    unfit: list[tuple[TableName, UnfitEvent]] = field(default_factory=list)

    def run_of(self, layout: Layout) -> PlacedChanges:
        """Returns the changes to which the next one of this layout is added."""
        run = self.latest.get(layout.name)
        if run is None or run[0] is not layout:
            run = self.latest[layout.name] = layout, PlacedChanges()
            self.runs.append(run)
        return run[1]

    def events(self, stream_partition: int) -> tuple[TableEvents, ...]:
        """Returns rows, of each table in the order of the lines, then unfit lines."""
        rows = [found for layout, placed in self.runs for found in events_of_lines(placed, layout, stream_partition)]
        tables = dict.fromkeys(table for table, _ in self.unfit)
        aside = [only_unfit(table, [event for of, event in self.unfit if of == table]) for table in tables]
        return (*rows, *aside)


def _transaction(event: EnvelopeEvent) -> int | None:
    number = event.source.get("txId")
    return number if isinstance(number, int) and abs(number) < _INT8 else None


def events_of_lines(placed: PlacedChanges, layout: Layout, stream_partition: int) -> list[TableEvents]:
    """Returns rows in the order of `placed`. Finds lines that cannot be typed by bisection, and quarantines each."""
    found = attempt(lambda: table_events(placed, layout, stream_partition))
    if not isinstance(found, LineRefused):
        return [found]
    places = sorted({line.place for line in placed.lines})
    if len(places) == 1:
        return [only_unfit(layout.table, [_unfit(placed, 0, stream_partition, _Misfit(column="", reason=str(found)))])]
    middle = len(places) // 2
    halves = [placed.of_lines(frozenset(half)) for half in (places[:middle], places[middle:])]
    return [events for half in halves for events in events_of_lines(half, layout, stream_partition)]


def table_events(placed: PlacedChanges, layout: Layout, stream_partition: int) -> TableEvents:
    """Returns rows in the order of `placed`. If one change of a line does not fit, the whole line is quarantined.

    If that is the new half of a key change, the old row is deleted all the same: what corrects the new row later names
    the new id alone. The replayed line deletes it again, and finds its values in the tombstone.
    """
    rows, misfits = _typed(placed, layout)
    positions = np.array(placed.commit_positions, dtype=np.int64)
    refused: dict[int, tuple[int, _Misfit]] = {}
    if misfits:
        refused = {placed.lines[row].place: (row, misfit) for row, misfit in reversed(misfits.items())}
        changes = list(zip(placed.operations, placed.lines, strict=True))
        moving = {line.place for operation, line in changes if operation is Operation.MOVE}
        fits = np.array(
            [
                line.place not in refused
                or (operation is Operation.DELETE and line.place in moving and row not in misfits)
                for row, (operation, line) in enumerate(changes)
            ],
            dtype=np.bool_,
        )
        rows, positions = rows.filter(pa.array(fits)), positions[fits]
    return TableEvents(
        table=layout.table,
        schema=layout.schema,
        rows=rows,
        commit_position=positions,
        stream_partition=np.full(len(positions), stream_partition, dtype=np.int64),
        unfit=tuple(_unfit(placed, row, stream_partition, misfit) for _, (row, misfit) in sorted(refused.items())),
    )


def _unfit(placed: PlacedChanges, row: int, stream_partition: int, misfit: _Misfit) -> UnfitEvent:
    return unfit_line(
        placed.lines[row],
        stream_partition=stream_partition,
        versions=(placed.versions[row], placed.deletes_at.get(placed.lines[row].place, "")),
        commit_position=placed.commit_positions[row],
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
    line: SourceLine, *, stream_partition: int, versions: Versions, commit_position: int, column: str, reason: str
) -> UnfitEvent:
    """Returns the whole line as an unfit event, with texts that every store can hold."""
    version, deletes_at = versions
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
            **({DELETES_AT: deletes_at} if deletes_at else {}),
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


def _typed(placed: PlacedChanges, layout: Layout) -> tuple[pa.Table, dict[int, _Misfit]]:
    """Returns every change as a row, and by row number why a change cannot become one."""
    schema, misfits = layout.schema, dict[int, _Misfit]()
    operations = placed.operations
    has_row = np.array([operation is not Operation.TRUNCATE for operation in operations], dtype=np.bool_)
    columns: dict[str, pa.Array] = {}
    for column in schema.columns:
        values = _values(placed.values, column.name)
        required = has_row if column.name in schema.key else None
        columns[column.name] = _column(column.name, column.name, values, layout, misfits, required)
    moved = np.array([operation is Operation.MOVE for operation in operations], dtype=np.bool_)
    for column in schema.key_columns:
        name = OLD_ID_PREFIX + column.name
        old = [old_id.get(column.name) for old_id in placed.old_ids] if moved.any() else [None] * len(operations)
        columns[name] = _column(name, column.name, old, layout, misfits, moved)
    own = (
        pa.array(operations, pa.string()),
        pa.array(placed.row_versions(), pa.string()),
        pa.array(placed.commit_times, pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array(placed.transactions, pa.int64()),
        pa.array([absent or None for absent in placed.absent], pa.list_(pa.string())),
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
