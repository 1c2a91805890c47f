"""Adds events that are like those before them by the shortest way, many at once: they are most events of a stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import accumulate
from operator import itemgetter
from typing import Any

from cdc_pipeline.record import Operation
from cdc_pipeline.sources.debezium.changes import PLACEHOLDERS, is_plain
from cdc_pipeline.sources.debezium.connector_checks import TableWatch
from cdc_pipeline.sources.debezium.envelope import OLD_KEY, EnvelopeEvent, Fields, Skipped
from cdc_pipeline.sources.debezium.memory import PartitionMemory
from cdc_pipeline.sources.debezium.one_line import is_spelled_alike
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.rows import TakenLines
from cdc_pipeline.sources.debezium.sent_again import begin_places
from cdc_pipeline.sources.debezium.tables import Layout
from cdc_pipeline.sources.debezium.versions import encode_place, is_exact, source_position

_MOST_AT_ONCE, _GROWTH = 4_096, 4
_FEW = 4
"""So few events are sooner looked at one by one."""
_WITH_ROWS = frozenset("cru")
_SIMPLE = frozenset({type(None), bool, str, int, Decimal})
_INSERT, _UPDATE = Operation.INSERT, Operation.UPDATE
Part = tuple[Sequence[Line], int]
"""Lines of one transaction or of a part of it, and the stream position of the transaction."""


class Adding:
    """Lines that are being added. `place`: the number of the next line.

    `commit_positions`: of each line. `times`: the commit time of each line that was added, None or 0 if it has none.
    `touched`: by part, the encoded state of each table that had events, by the table's name. `skipped`: by part.
    `touches`: the state of the next line's table, and the table's name.
    """

    def __init__(self, number: int, parts: Sequence[Part]) -> None:
        self.number = number
        self.place = 0
        self.lines = [line for lines, _ in parts for line in lines]
        self.commit_positions = [position for lines, position in parts for _ in lines]
        self.times: list[int | None] = []
        self.touched: list[dict[str, str]] = [{} for _ in parts]
        self.touches: tuple[str, PartitionMemory] | None = None
        self.skipped: list[list[str]] = [[] for _ in parts]
        self.ends = list(accumulate(len(lines) for lines, _ in parts))
        self._parts = [part for part, (lines, _) in enumerate(parts) for _ in lines]

    def go_on(self, *, skipped: str | None = None) -> None:
        """Records the outcome of the next line, whether it was added or refused, and goes on to the one after it."""
        part = self._parts[self.place]
        self.times.append(_time(self.lines[self.place]))
        if skipped is not None:
            self.skipped[part].append(skipped)
        if self.touches is not None:
            name, memory = self.touches
            self.touched[part][name], self.touches = memory.encode(), None
        self.place += 1

    def go_on_by(self, name: str, memory: PartitionMemory, positions: Sequence[int]) -> None:
        """Does the same for the next events, all of the table `name`, with the source position after each."""
        first, end = self.place, self.place + len(positions)
        self.times += map(_time, self.lines[first:end])
        for part in range(self._parts[first], self._parts[end - 1] + 1):
            self.touched[part][name] = memory.encode_at(positions[min(self.ends[part], end) - 1 - first])
        self.place = end

    def following(self) -> EnvelopeEvent | None:
        """Returns the event after the next line, up to the end of that line's part."""
        rest = range(self.place + 1, self.ends[self._parts[self.place]])
        return next((found for line in rest if (found := self.lines[line].event) is not None), None)

    def preceding(self) -> EnvelopeEvent | None:
        """Returns the event before the next line, None if no line before it has one."""
        before = range(self.place - 1, -1, -1)
        return next((found for line in before if (found := self.lines[line].event) is not None), None)

    def last_time(self, part: int) -> int | None:
        """Returns the commit time of a part's last line that has one."""
        first = self.ends[part - 1] if part else 0
        for line in range(self.ends[part] - 1, first - 1, -1):
            if self.times[line]:
                return self.times[line]
        return None


@dataclass(slots=True, kw_only=True)
class PlainTable:
    """A table with an id, whose events are ordered by their places, as its last event in a stream partition left it.

    `watch`: of the connector's settings. `alone`: as for the decoder.
    """

    layout: Layout
    memory: PartitionMemory
    watch: TableWatch
    alone: bool
    most: int = 1
    """How many events are looked at next: some times as many as were added last, so that few are looked at in vain."""
    cells: Callable[[Fields], tuple[Any, ...]] = field(init=False)

    def __post_init__(self) -> None:
        names = self.layout.names
        self.cells = itemgetter(*names, names[0])  # with a name twice: of one name it would return no tuple

    def add(self, event: EnvelopeEvent, adding: Adding, taken: TakenLines) -> bool:
        """Adds `event`, which is the next one and has this layout, and those after it that surely have it too.

        Each shows its whole row and keeps its id. Returns False, and changes nothing, if `event` may not.
        """
        first = adding.place
        while adding.place < len(adding.lines):
            events = _alike(adding.lines[adding.place : adding.place + self.most], event)
            added = self._add(events, adding, taken)
            if not added or added < len(events):
                self.most = 1
                break
            self.most = min(_MOST_AT_ONCE, _GROWTH * added)
        return adding.place > first

    def _add(self, events: Sequence[EnvelopeEvent], adding: Adding, taken: TakenLines) -> int:
        """Adds the next events up to one that may hide a value or change its id. Returns how many it added."""
        rows = self._rows(events)
        events = events[: len(rows)]
        if not rows or not self._are_of_known_servers(events):
            return 0
        first, end = adding.place, adding.place + len(events)
        memory, raws = self.memory, [line.raw for line in adding.lines[first:end]]
        own = list(map(source_position, events))
        positions = list(accumulate(own, max, initial=memory.position))[1:]
        if not self.alone and own != positions and is_exact(events[0]):
            return 0  # some are sent again: their ids are recorded one by one
        versions = list(map(encode_place, positions, [raw.place for raw in raws]))
        if versions[0] < memory.horizon.version:
            return 0
        if not self.alone:
            begin_places(events, rows, positions, self.layout, memory)
        memory.event, memory.position = events[-1], positions[-1]
        memory.has_updates = memory.has_updates or any(event.operation == "u" for event in events)
        adding.go_on_by(self.layout.name, memory, positions)
        operations = [_UPDATE if event.operation == "u" else _INSERT for event in events]
        taken.run_of(self.layout).add_rows(operations, rows, events, raws, versions, adding.commit_positions[first:end])
        return len(rows)

    def _are_of_known_servers(self, events: Sequence[EnvelopeEvent]) -> bool:
        if "server_id" not in events[0].source:
            return True
        known = {*self.memory.servers, 0, None}
        if self.alone and source_position(events[-1]) < self.memory.position:
            known.update(-server for server in self.memory.servers)
        return all(event.source.get("server_id") in known for event in events)

    def _rows(self, events: Sequence[EnvelopeEvent]) -> Sequence[Fields]:
        """Returns the rows of the events up to one that may be no whole row with the id that it had before."""
        rows: list[Any] = [event.value.get("after") for event in events]
        if len(rows) > _FEW and self._are_plain(events, rows):
            return rows
        before_it = self.memory.event
        for count, (event, row) in enumerate(zip(events, rows, strict=True)):
            if not self._is_plain(event, row, before_it):
                return rows[:count]
            before_it = event
        return rows

    def _are_plain(self, events: Sequence[EnvelopeEvent], rows: Sequence[Any]) -> bool:
        """Returns whether all are surely plain, by looking at many of their values at once."""
        operations = {event.operation for event in events}
        before_it = self.memory.event
        if not operations <= _WITH_ROWS or any(event.headers and OLD_KEY in event.headers for event in events):
            return False
        if before_it is not None and before_it.operation == "d" and events[0].operation != "u":
            return False
        keys = [event.key for event in events if event.key is not None]
        if (
            not self.layout.allows(keys)
            or {*map(type, rows)} != {dict}
            or {*map(len, rows)} != {len(self.layout.names)}
        ):
            return False
        try:
            cells = list(map(self.cells, rows))
        except KeyError:
            return False
        return all(map(self._shows, self.layout.names, zip(*cells, strict=True))) and (
            "u" not in operations or self._keep_ids(events, rows, keys)
        )

    def _is_plain(self, event: EnvelopeEvent, row: object, before_it: EnvelopeEvent | None) -> bool:
        if event.operation not in _WITH_ROWS or not isinstance(row, dict) or row.keys() != self.layout.known_names:
            return False
        if any(self.watch.may_show(name, (row[name],), (type(row[name]),)) for name in self.watch.texts):
            return False
        if event.key is not None and not self.layout.allows((event.key,)):
            return False
        return is_plain(event, row, self.layout, before_it=before_it)

    def _keep_ids(self, events: Sequence[EnvelopeEvent], rows: Sequence[Fields], keys: Sequence[Fields]) -> bool:
        if keys and not all(map(self.layout.key_names.issubset, keys)):
            return False
        befores = [event.value.get("before") for event in events]
        names = self.layout.schema.key
        return all(
            is_spelled_alike(before.get(name), row[name])
            for before, row in zip(befores, rows, strict=True)
            if isinstance(before, dict)
            for name in names
        )

    def _shows(self, name: str, values: Sequence[Any]) -> bool:
        """Returns whether none of a column's values may stand for another one, or show how the connector is set."""
        kinds = {*map(type, values)}
        return (
            kinds <= _SIMPLE
            and (str not in kinds or PLACEHOLDERS.isdisjoint(values))
            and not self.watch.may_show(name, values, kinds)
        )


def _alike(lines: Sequence[Line], first: EnvelopeEvent) -> list[EnvelopeEvent]:
    """Returns the events up to a line that is none, or one of another table or schema than the event `first`."""
    events: list[EnvelopeEvent] = []
    fields, source = first.fields, first.source
    names = source.get("table"), source.get("schema"), source.get("db")
    for line in lines:
        event = line.content
        if not isinstance(event, EnvelopeEvent) or event.fields != fields:
            break
        source = event.source
        if (source.get("table"), source.get("schema"), source.get("db")) != names:
            break
        events.append(event)
    return events


def _time(line: Line) -> int | None:
    """Returns the commit time that a line has, None or 0 if it has none."""
    content = line.content
    if isinstance(content, EnvelopeEvent):
        return line.raw.written if content.commit_time is None else content.commit_time
    return content.commit_time if isinstance(content, Skipped) else None
