"""Decodes lines, in the order of their stream partitions, into change events per table, each with its version."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import MappingProxyType

import structlog

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import Operation, TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.changes import Change, changes_of, is_key_change
from cdc_pipeline.sources.debezium.connector_checks import ConnectorWatch
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Skipped
from cdc_pipeline.sources.debezium.memory import PartitionMemory, RowHorizon, RowsLike
from cdc_pipeline.sources.debezium.one_line import LineRefused, TableRefused, attempt
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.rows import PlacedChange, events_of_lines, only_unfit, unfit_line
from cdc_pipeline.sources.debezium.tables import DebeziumTables, Layout
from cdc_pipeline.sources.debezium.versions import (
    DELETE_RANK,
    UPSERT_RANK,
    encode_place,
    is_exact,
    sequence_version,
    source_position,
    truncate_version,
)
from cdc_pipeline.sources.protocol import TableEvents, UnfitEvent

log = structlog.get_logger()

_INT8 = 1 << 63
_MOST_NOTES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The results of `add` beside the events.

    `commit_time`: that of the last line that has one, in microseconds since 1970; None if no line has one.
    `last_position`: the encoded `PartitionMemory` of each table that had events. `skipped`: counts of lines without a
    row, by kind.
    """

    commit_time: int | None
    last_position: Mapping[TableName, str]
    skipped: Counter[str]


@dataclass(slots=True, kw_only=True)
class _Taken:
    runs: list[tuple[Layout, list[PlacedChange]]] = field(default_factory=list)
    unfit: list[tuple[TableName, UnfitEvent]] = field(default_factory=list)


class DebeziumDecoder:
    """Decodes the lines of all stream partitions.

    `sequence_by` is empty for ordered files. `last_position` has every registered stream partition. `horizons`: by
    table, the version below which no event is accepted. Horizons rise with the events if `late_by` is set. `alone`:
    whether the whole stream has one partition; by default, whether `last_position` has one.
    """

    def __init__(
        self,
        *,
        tables: DebeziumTables,
        sequence_by: Sequence[str],
        last_position: Mapping[int, Mapping[TableName, str]],
        horizons: Mapping[TableName, str] = MappingProxyType({}),
        late_by: timedelta | None = None,
        alone: bool | None = None,
    ) -> None:
        self._tables = tables
        self._sequence_by = tuple(sequence_by)
        self._alone = len(last_position) == 1 if alone is None else alone
        self._horizons = horizons
        self._late_by = late_by
        self._memory = {
            (number, table): PartitionMemory.decode(position)
            for number, positions in last_position.items()
            for table, position in positions.items()
        }
        for (_, table), memory in self._memory.items():
            memory.horizon.version = max(memory.horizon.version, horizons.get(table, ""))
        self._taken = _Taken()
        self._watch = ConnectorWatch()
        self._noted: set[tuple[TableName, str]] = set()

    def add(self, number: int, lines: Sequence[Line], commit_position: int) -> Decoded:
        """Adds whole lines of one transaction of stream partition `number`; `take` returns their events.

        A line that cannot be read, or whose table does not agree with pipeline.yml, becomes an unfit event.
        """
        skipped: Counter[str] = Counter()
        commit_time: int | None = None
        touched: set[TableName] = set()
        for line, following in _with_next_event(lines):
            commit_time = self._commit_time(line) or commit_time
            added = partial(self._add_line, number, line, following, commit_position, touched)
            kind = attempt(added)
            if isinstance(kind, LineRefused):
                self._keep_aside(number, line, commit_position, kind)
            elif kind is not None:
                skipped[kind] += 1
        last_position = {table: self._memory[number, table].encode() for table in touched}
        return Decoded(commit_time=commit_time, last_position=last_position, skipped=skipped)

    def rows_like(self, number: int, event: EnvelopeEvent, settings: TableSettings) -> RowsLike | None:
        """Returns what rows of a table have in common that name no place in their source's log, such as `event`.

        Raises LineRefused if the table's rows cannot be read.
        """
        layout = self._layout(event, settings)
        if layout is None:
            return None
        return RowsLike(
            layout=layout,
            memory=self._remembered(number, layout.table),
            sequence_by=self._sequence_by,
            late_by=self._late_by,
        )

    def memory(self, number: int, table: TableName) -> PartitionMemory:
        """Returns the state of a table in a stream partition."""
        return self._remembered(number, table)

    def inherit(self, number: int, parents: Collection[int]) -> None:
        """Lets stream partition `number` continue `parents`, so that its versions are above theirs.

        Call it after the last line of the parents and before the first one of `number`.
        """
        for (of, table), memory in list(self._memory.items()):
            if of in parents:
                own = self._remembered(number, table)
                own.position = own.settled = max(own.position, memory.position)

    def take(self, number: int) -> tuple[TableEvents, ...]:
        """Returns the events that were added since the last call: rows in the order of the lines, then unfit lines."""
        taken, self._taken = self._taken, _Taken()
        events = [found for layout, placed in taken.runs for found in events_of_lines(placed, layout, number)]
        tables = dict.fromkeys(table for table, _ in taken.unfit)
        aside = [only_unfit(table, [event for of, event in taken.unfit if of == table]) for table in tables]
        return (*events, *aside)

    def _add_line(
        self, number: int, line: Line, following: EnvelopeEvent | None, commit_position: int, touched: set[TableName]
    ) -> str | None:
        """Adds one line. Returns the kind under which it is counted as skipped, None if it was decoded.

        Raises LineRefused if the line has to be quarantined.
        """
        if isinstance(line.content, LineRefused):
            raise line.content
        if isinstance(line.content, Skipped):
            return line.content.kind
        event = line.content
        settings = self._tables.table_of(event)
        if settings is None:
            return "row of a table that is not listed"
        layout = self._layout(event, settings)
        if layout is None:
            return "truncate of a table without rows"
        memory = self._remembered(number, layout.table)
        memory.enter(commit_position)
        if layout.schema.is_keyless and self._is_repeated(event, memory):
            return "row that was sent twice"
        before_it, memory.event = memory.event, event
        position = max(memory.position, source_position(event))
        if not (layout.schema.is_keyless and event.is_of_snapshot and is_exact(event)):
            memory.position = position
        touched.add(layout.table)
        if following is not None and attempt(partial(self._is_key_change, event, following, layout)) is True:
            return None
        changes = changes_of(event, layout, before_it=before_it, alone=self._alone)
        version = self._version(event, changes, position, line.raw.place)
        memory.horizon.check(version)
        if self._late_by is not None:
            memory.horizon.move(version, event.commit_time or line.raw.written, self._late_by)
        self._place(layout, line, event, changes, version, commit_position)
        return None

    def _is_key_change(self, event: EnvelopeEvent, following: EnvelopeEvent, layout: Layout) -> bool:
        settings = self._tables.table_of(following)
        return settings is not None and settings.table == layout.table and is_key_change(event, following, layout)

    def _remembered(self, number: int, table: TableName) -> PartitionMemory:
        horizon = RowHorizon(version=self._horizons.get(table, ""))
        return self._memory.setdefault((number, table), PartitionMemory(horizon=horizon))

    def _layout(self, event: EnvelopeEvent, settings: TableSettings) -> Layout | None:
        layout = self._tables.layout(event, settings)
        if layout is None and not self._alone:
            raise SourceError(
                f"the first event of {settings.name} is a truncate, and its id is not known yet",
                expected="id in pipeline.yml, where rows may stand in other stream partitions",
                remedy=f"give id under {settings.name}",
            )
        if layout is not None:
            self._watch.look(event, layout)
        return layout

    def _place(
        self,
        layout: Layout,
        line: Line,
        event: EnvelopeEvent,
        changes: Sequence[Change],
        version: str,
        commit_position: int,
    ) -> None:
        runs, transaction = self._taken.runs, event.source.get("txId")
        if not runs or runs[-1][0] is not layout:
            runs.append((layout, []))
        runs[-1][1].extend(
            PlacedChange(
                change=change,
                version=version,
                commit_time=event.commit_time or line.raw.written,
                transaction=transaction if isinstance(transaction, int) and abs(transaction) < _INT8 else None,
                commit_position=commit_position,
                line=line.raw,
            )
            for change in changes
        )

    def _version(self, event: EnvelopeEvent, changes: Sequence[Change], position: int, place: int) -> str:
        if not self._sequence_by:
            return encode_place(position, place)
        if event.operation == "t":
            return truncate_version(event, self._sequence_by)
        is_delete = all(change.operation is Operation.DELETE for change in changes)
        content = [[change.values, sorted(change.absent), change.old_id] for change in changes]
        return sequence_version(
            event, self._sequence_by, rank=DELETE_RANK if is_delete else UPSERT_RANK, content=content
        )

    def _is_repeated(self, event: EnvelopeEvent, memory: PartitionMemory) -> bool:
        """Returns whether a line of a keyless table was delivered before, so that its row would count twice.

        Decides by the event's position in the source's log. Only rows of one transaction may share a position.
        """
        position = source_position(event)
        if position == 0:
            return False
        if not self._sequence_by and is_exact(event) and not event.is_of_snapshot and position <= memory.settled:
            return True
        return memory.event is not None and _identity(memory.event) == _identity(event)

    def _keep_aside(self, number: int, line: Line, commit_position: int, why: LineRefused) -> None:
        """Quarantines the line at its table, or at the first listed table if the line names none."""
        settings = None if line.event is None else attempt(partial(self._tables.table_of, line.event))
        table = settings.table if isinstance(settings, TableSettings) else self._tables.without_name(number)
        if isinstance(why, TableRefused) and (table, str(why)) not in self._noted and len(self._noted) < _MOST_NOTES:
            self._noted.add((table, str(why)))
            log.error("the table's lines are quarantined", table=str(table), file=line.raw.file, reason=str(why))
        event = unfit_line(
            line.raw,
            stream_partition=number,
            version=self._version_aside(number, table, line) if why.version is None else why.version,
            commit_position=commit_position,
            column="",
            reason=str(why),
        )
        self._taken.unfit.append((table, event))

    def _version_aside(self, number: int, table: TableName, line: Line) -> str:
        """Returns the version of a quarantined line, "" if only the line's content would give it."""
        if self._sequence_by:
            return ""
        own = 0 if line.event is None else attempt(partial(source_position, line.event))
        known = self._remembered(number, table).position
        return encode_place(known if isinstance(own, LineRefused) else max(known, own), line.raw.place)

    @staticmethod
    def _commit_time(line: Line) -> int | None:
        if isinstance(line.content, LineRefused):
            return None
        own = line.content.commit_time
        return line.raw.written if own is None and line.event is not None else own


def _with_next_event(lines: Sequence[Line]) -> Iterator[tuple[Line, EnvelopeEvent | None]]:
    """Yields each line with the first event after it, None if there is none in `lines`."""
    following: list[EnvelopeEvent | None] = [None] * len(lines)
    for number in range(len(lines) - 2, -1, -1):
        following[number] = lines[number + 1].event or following[number + 1]
    return zip(lines, following, strict=True)


def _identity(event: EnvelopeEvent) -> tuple[object, ...]:
    return tuple(event.value.get(name) for name in ("op", "before", "after", "source", "transaction"))
