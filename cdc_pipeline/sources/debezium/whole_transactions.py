"""Holds lines of all stream partitions until the transactions that they belong to are whole. Pure: no I/O, no clock."""

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

import msgspec

from cdc_pipeline.sources.debezium.held_lines import HeldLines, HeldRun, MissedEvents, Release, Seen, Tally
from cdc_pipeline.sources.debezium.partition import Line
from cdc_pipeline.sources.debezium.transaction_records import TransactionRecord

LONGEST_WAIT = timedelta(minutes=5)
"""How much later than an END the newest END may be, by the records' times, before events that lack are given up."""
MOST_HELD_BYTES = 1 << 20
"""A stream partition that holds more is not read on, so that memory is bounded. About: one more read may come."""
MOST_ENDS = 50_000
_MOST_REMEMBERED = 50_000
_MICROSECOND = timedelta(microseconds=1)


class _End(msgspec.Struct, frozen=True, kw_only=True):
    """An END. `number`: counts the ENDs that were read.

    `expected`: the number of events of the listed tables, by the stream partitions that they may be in.
    """

    number: int
    record: TransactionRecord
    expected: Mapping[frozenset[int], int]


class ReadEnds(msgspec.Struct, frozen=True, kw_only=True):
    """The ENDs that were read so far: how many, and the time of the newest."""

    count: int
    newest: int


class WholeTransactions:
    """Releases the transactions in the order of their ENDs, each once all its events of the listed tables were read.

    `collections`: by data collection, the stream partitions of its table's topics; no other collection is waited for.
    `positions`: by stream partition, the highest position in the source's log that was registered.
    """

    def __init__(self, *, collections: Mapping[str, frozenset[int]], positions: Mapping[int, int]) -> None:
        self._collections = collections
        self._parts = {number: HeldLines(number, position) for number, position in positions.items()}
        self._ends: deque[_End] = deque()
        self._tallies: dict[str, Tally] = {}
        self._done: OrderedDict[str, None] = OrderedDict()
        self._done_position = max(positions.values(), default=0)
        self._begun: str | None = None
        self._pending: Counter[str] = Counter()
        self._partial: dict[str, int] = {}
        """Transactions of which a part was released, with their positions."""
        self._newest = self._open_since = self._count = self._given_up = 0
        self._is_open = False
        self._reached, self._were_full = ReadEnds(count=0, newest=0), list[HeldLines]()
        self.asks_for: ReadEnds | None = None
        """Set if it has to be known whether the events of these ENDs were read to the ends that the broker has now.

        Ask the broker for the ends, and call `reached_ends` with this value once they are reached.
        """

    @property
    def has_room_for_records(self) -> bool:
        return len(self._ends) < MOST_ENDS

    @property
    def holds_lines(self) -> bool:
        return any(part.runs for part in self._parts.values())

    def is_full(self, number: int) -> bool:
        """Returns whether the stream partition holds so many lines that it is not to be read on."""
        part = self._parts[number]
        return part.bytes >= MOST_HELD_BYTES and not self._flows(part)

    def add(self, number: int, lines: Sequence[Line], size_bytes: int) -> None:
        """Adds lines of a stream partition, in its order. `size_bytes`: about the memory that their text takes."""
        self._parts[number].add(lines, size_bytes, self._tally)

    def add_record(self, record: TransactionRecord) -> None:
        """Adds a record of the transaction topic, in its order."""
        if not record.is_end:
            self._begun = record.transaction
            self._tally(record.transaction).begins += 1
            return
        expected: dict[frozenset[int], int] = {}
        for collection, count in record.counts.items():
            partitions = self._collections.get(collection)
            if partitions and count:
                expected[partitions] = expected.get(partitions, 0) + count
        self._begun = None
        self._count += 1
        self._pending[record.transaction] += 1
        self._newest = max(self._newest, record.written)
        self._ends.append(_End(number=self._count, record=record, expected=expected))

    def reached_ends(self, asked_for: ReadEnds, full: Collection[int] = ()) -> None:
        """Says that the partitions were read to the ends that the broker had after `asks_for` was set.

        `full`: those that were not, because they are full.
        """
        self._reached, self._were_full = asked_for, [self._parts[number] for number in full]

    def release(self) -> Release | None:
        """Returns what can be released now, None for nothing. Sets `asks_for` if that is not known yet.

        Transactions of one second are released together, since a slice may end between any two seconds.
        """
        self.asks_for = None
        missed: list[MissedEvents] = []
        reach: dict[int, int] = {}
        offset = second = None
        while self._ends and second in (None, self._ends[0].record.second) and self._is_done(self._ends[0], missed):
            end = self._ends.popleft()
            offset, second = end.record.place + 1, end.record.second
            for number, seen in self._finish(end.record.transaction).items():
                reach[number] = max(reach.get(number, 0), seen.reach)
        taken = {number: found for number in self._parts if (found := self._taken(number, reach, missed))}
        if offset is None and not taken and self._head is None:
            taken = self._without_end(missed)
        if offset is None and not taken and not self._is_open:
            return None
        is_closed = self._closes(missed)
        if offset is None and not taken and not is_closed:
            return None
        return Release(taken=taken, offset=offset, is_closed=is_closed, missed=missed)

    def waits_for(self) -> tuple[str, str]:
        """Returns what was found, and what is expected, of the oldest lines that are held."""
        if self._ends:
            return self._shown(self._ends[0])
        name = next((part.runs[0].name for part in self._parts.values() if part.runs), None)
        return f"events of the transaction {name}, and no END", "its END in the transaction topic"

    @property
    def _head(self) -> str | None:
        """The transaction that is released next, None if its END and its BEGIN were not read yet."""
        return self._ends[0].record.transaction if self._ends else self._begun

    def _tally(self, name: str) -> Tally:
        if name in self._done:
            return Tally()
        return self._tallies.setdefault(name, Tally())

    def _is_done(self, end: _End, missed: list[MissedEvents]) -> bool:
        name, tally = end.record.transaction, self._tallies.get(end.record.transaction) or Tally()
        if not end.expected or self._is_old(name, tally.position):
            return True
        lacking = [numbers for numbers, count in end.expected.items() if tally.found(numbers) < count]
        # The counts of a transaction in which the connector was restarted may be those of its second part.
        if not lacking and tally.begins <= 1:
            return True
        has_passed = bool(lacking) and self._have_passed(frozenset().union(*lacking), tally.position)
        needs_ends = not lacking or end.number <= self._given_up or self._is_overdue(end.record.written)
        has_reached = needs_ends and self._reached.count >= end.number and self._is_behind_all(name, tally.position)
        if lacking and (has_passed or has_reached):
            missed.append(MissedEvents(name, *self._shown(end)))
        elif needs_ends and not has_reached:
            self.asks_for = ReadEnds(count=self._count, newest=self._newest)
        return has_passed or has_reached

    def _is_behind_all(self, name: str, position: int) -> bool:
        """Returns whether the partitions that were not read to their ends, because they were full, hold later lines."""
        return all(self._holds_later(part, name, position) for part in self._were_full)

    def _holds_later(self, part: HeldLines, name: str, position: int) -> bool:
        """Returns whether lines are held that were committed after the transaction `name`."""
        return any(run.name != name and not 0 < run.position < position and not self._is_free(run) for run in part.runs)

    def _is_overdue(self, since: int) -> bool:
        """Returns whether much newer ENDs were read, and after them all events that the broker had; else asks for them.

        If no more ENDs can be read, those that were are enough, and all but the newest `MOST_ENDS // 2` are overdue.
        `since`: the time of a record.
        """
        is_full = not self.has_room_for_records
        if has_all := is_full and self._reached.count == self._count:
            self._given_up = self._count - MOST_ENDS // 2
        if has_all or (self._reached.newest - since) * _MICROSECOND >= LONGEST_WAIT:
            return True
        if is_full or (self._newest - since) * _MICROSECOND >= LONGEST_WAIT:
            self.asks_for = ReadEnds(count=self._count, newest=self._newest)
        return False

    def _have_passed(self, numbers: frozenset[int], position: int) -> bool:
        """Returns whether each of the stream partitions showed an event that was committed after `position`."""
        return position > 0 and all(self._parts[number].furthest > position for number in numbers)

    def _is_old(self, name: str | None, position: int) -> bool:
        """Returns whether a transaction was released before, so that this is a repetition or the rest of it."""
        return name in self._done or 0 < position <= self._done_position

    def _flows(self, part: HeldLines) -> bool:
        """Returns whether all held lines are of the next transaction or earlier ones: they can be released at once."""
        name = self._head or ""
        tally = self._tallies.get(name)
        return tally is not None and not self._holds_later(part, name, tally.position)

    def _is_free(self, run: HeldRun) -> bool:
        return run.name is None or self._is_old(run.name, run.position)

    def _finish(self, name: str) -> Mapping[int, Seen]:
        """Marks a transaction as done. Returns its events that were read, nothing for one that was sent again."""
        tally = self._tallies.pop(name, None) or Tally()
        seen = {} if self._is_old(name, tally.position) else tally.seen
        self._done_position = max(self._done_position, tally.position)
        self._partial.pop(name, None)
        self._pending[name] -= 1
        if not self._pending[name]:
            del self._pending[name]
        if tally.seen or name in self._done:
            self._remember(name)
        return seen

    def _remember(self, name: str) -> None:
        self._done[name] = None
        self._done.move_to_end(name)
        if len(self._done) > _MOST_REMEMBERED:
            self._done.popitem(last=False)

    def _taken(
        self, number: int, reach: Mapping[int, int], missed: list[MissedEvents]
    ) -> list[tuple[HeldRun, list[Line]]]:
        part = self._parts[number]
        before = part.highest
        taken = part.released(self._is_free, reach.get(number, 0))
        if part.runs and part.bytes >= MOST_HELD_BYTES and self._flows(part):
            taken += part.part()
        for run, _ in taken:
            if run.name is not None and run.name not in self._done:
                self._note_without_end(run, before, missed)
        return taken

    def _note_without_end(self, run: HeldRun, before: int, missed: list[MissedEvents]) -> None:
        """Records a transaction whose lines are released without its END, because a later one is already complete."""
        name = run.name or ""
        is_later = not 0 < run.position <= self._done_position
        if is_later and (name in self._pending or name == self._begun):
            self._partial[name] = run.position
            return
        self._tallies.pop(name, None)
        self._remember(name)
        if run.position > before or run.position == 0:
            missed.append(_without_end(name))

    def _without_end(self, missed: list[MissedEvents]) -> dict[int, list[tuple[HeldRun, list[Line]]]]:
        """Releases lines whose transaction has no END, though much newer ENDs were read."""
        fronts = {number: part.runs[0] for number, part in self._parts.items() if part.runs}
        overdue = {number: run for number, run in fronts.items() if self._is_overdue(run.lines[0].raw.written)}
        for run in overdue.values():
            self._note_without_end(run, run.position - 1, missed)
        return {number: self._taken(number, {}, missed) for number in overdue}

    def _closes(self, missed: list[MissedEvents]) -> bool:
        """Returns whether all released transactions are complete, so that the stream may be cut here.

        Repeated events must first reach the position they had before.
        """
        for name, position in list(self._partial.items()):
            if name not in self._pending and 0 < position <= self._done_position:
                self._drop_partial(name, missed)
        behind = [number for number, part in self._parts.items() if part.is_behind]
        if not self._is_open:
            self._open_since = self._newest
        without_end = self._partial.keys() - self._pending.keys()
        if (behind or without_end) and self._is_open and self._is_overdue(self._open_since):
            self._let_fall_back(behind, missed)
            for name in without_end:
                self._drop_partial(name, missed)
            behind = []
        self._is_open = bool(behind or self._partial)
        return not self._is_open

    def _drop_partial(self, name: str, missed: list[MissedEvents]) -> None:
        """Waits no longer for the END of a transaction of which a part was released."""
        del self._partial[name]
        self._tallies.pop(name, None)
        self._remember(name)
        missed.append(_without_end(name))

    def _let_fall_back(self, behind: Sequence[int], missed: list[MissedEvents]) -> None:
        if not behind:
            return
        for number in behind:
            self._parts[number].highest = self._parts[number].position
        found = f"events that were sent again, in the stream partitions {behind}, and nothing newer after them"
        missed.append(MissedEvents("", found, "the events up to where they were before"))

    def _shown(self, end: _End) -> tuple[str, str]:
        name, tally = end.record.transaction, self._tallies.get(end.record.transaction) or Tally()
        found = sum(tally.found(numbers) for numbers in end.expected)
        return f"{found} events of the transaction {name}", f"{sum(end.expected.values())}, as its END says"


def _without_end(name: str) -> MissedEvents:
    return MissedEvents(name, f"events of the transaction {name}, and no END", "its END before that of later ones")
