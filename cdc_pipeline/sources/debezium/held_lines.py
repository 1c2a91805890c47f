"""Lines of one stream partition that wait until their transactions are whole, and what is released of them."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from cdc_pipeline.sources.debezium.partition import Line, before_last_delete
from cdc_pipeline.sources.debezium.transaction_records import exact_position, transaction_of


@dataclass(slots=True, kw_only=True)
class Seen:
    """The events of a transaction that were read of one stream partition: how many, and the number of the last one.

    An event that was sent again has no higher number than the last one, and is not counted again. `reach`: how many
    lines of the stream partition were read up to the last event that was counted.
    """

    last: int = 0
    count: int = 0
    reach: int = 0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was read of one transaction. `begins`: how often its BEGIN was read. `position`: its place in the log.

    The place is the highest of the first events of its stream partitions; 0 if the events do not show it.
    """

    seen: dict[int, Seen] = field(default_factory=dict)
    begins: int = 0
    position: int = 0

    def found(self, partitions: Iterable[int]) -> int:
        """Returns how many events were read of these stream partitions."""
        return sum(self.seen[number].count for number in partitions if number in self.seen)


class HeldRun(msgspec.Struct, kw_only=True):
    """Consecutive lines of one transaction in one stream partition, each event once.

    `name`: None for lines that belong to none. `source`: what the lines' own source calls it. `position`: that of the
    first event, 0 if it is not known. `first`: how many lines were read before the first one of `lines`. `order`: the
    number of the last event in its transaction. `events`: how many were added so far.
    """

    name: str | None
    source: str | None
    position: int
    first: int
    seen: Seen
    order: int = 0
    events: int = 0
    lines: list[Line] = msgspec.field(default_factory=list)


class MissedEvents(msgspec.Struct, frozen=True):
    """A transaction that was released though it is not known to be whole."""

    transaction: str
    found: str
    expected: str


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """What is released at once. `taken`: the lines, by stream partition, in their order.

    `offset`: the transaction topic's offset after the last END that is done, None if none is. `is_closed`: everything
    that was released so far is a whole number of transactions, so the stream may be cut here.
    """

    taken: Mapping[int, Sequence[tuple[HeldRun, Sequence[Line]]]]
    offset: int | None
    is_closed: bool
    missed: Sequence[MissedEvents]


class HeldLines:
    """The lines of a stream partition that were read and not released.

    `position`: of the last released event; `highest`: the highest released position. `position` below `highest` means
    that the connector is sending events again. `furthest`: the highest position of a run that was read.
    """

    def __init__(self, number: int, position: int) -> None:
        self.runs: deque[HeldRun] = deque()
        self.position = self.highest = self.furthest = position
        self.bytes = self.count = 0
        self._number = number
        self._last: HeldRun | None = None
        self._read = 0

    @property
    def is_behind(self) -> bool:
        return self.position < self.highest

    def add(self, lines: Iterable[Line], size_bytes: int, tally_of: Callable[[str], Tally]) -> None:
        """Adds lines in their order. A line that names no transaction belongs to that of the line before it."""
        for line in lines:
            event = line.event
            found = None if event is None or event.transaction is None else transaction_of(event)
            run = self._last
            if event is not None and found is not None:
                # A number that does not rise begins what was sent again.
                if run is None or run.source != event.transaction or 0 < found[1] <= run.order:
                    run = self._begin(found[0], event.transaction, exact_position(event), tally_of)
                seen, run.order = run.seen, found[1]
                run.events += 1
                order = found[1] or seen.last + 1
                if order > seen.last:
                    seen.last, seen.count, seen.reach = order, seen.count + 1, self._read + 1
            elif run is None:
                run = self._begin(None, None, 0, tally_of)
            if not run.lines:
                run.first = self._read
                self.runs.append(run)
            run.lines.append(line)
            self._read += 1
            self.count += 1
        self.bytes += size_bytes

    def released(self, is_free: Callable[[HeldRun], bool], reach: int) -> list[tuple[HeldRun, list[Line]]]:
        """Takes the runs that begin before `reach` lines, and those after them that are free."""
        taken = []
        while self.runs and (self.runs[0].first < reach or is_free(self.runs[0])):
            run = self.runs.popleft()
            taken.append((run, self._take(run, len(run.lines))))
        return taken

    def part(self) -> list[tuple[HeldRun, list[Line]]]:
        """Takes all lines, but for a delete at the end, and what is after it: it may begin a key change."""
        taken = self.released(lambda _: False, self.runs[-1].first)
        run = self.runs[0]
        count = len(before_last_delete(run.lines)[0])
        if count == len(run.lines):
            self.runs.popleft()
        return [*taken, (run, self._take(run, count))] if count else taken

    def _begin(self, name: str | None, source: str | None, position: int, tally_of: Callable[[str], Tally]) -> HeldRun:
        seen = Seen()
        if name is not None:
            tally = tally_of(name)
            seen = tally.seen.setdefault(self._number, seen)
            tally.position = max(tally.position, position)
        self.furthest = max(self.furthest, position)
        self._last = HeldRun(name=name, source=source, position=position, first=self._read, seen=seen)
        return self._last

    def _take(self, run: HeldRun, count: int) -> list[Line]:
        lines, run.lines = run.lines[:count], run.lines[count:]
        run.first += count
        self.bytes -= self.bytes * count // self.count
        self.count -= count
        position = run.position if run.events == 1 else _last_position(lines)
        if position:
            self.position, self.highest = position, max(self.highest, position)
        return lines


def _last_position(lines: Sequence[Line]) -> int:
    events = (line.event for line in reversed(lines))
    last = next((event for event in events if event is not None and transaction_of(event) is not None), None)
    return 0 if last is None else exact_position(last)
