"""MySQL's sets of global transaction ids, and the pipeline's positions that stand for them.

The position behind a place in the log is the number of transactions in the set before it, plus one.
docs/reference/sources/mysql.md (positions of MySQL) says why that count is an order, and what would make it wrong.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cdc_pipeline.errors import SourceError
from cdc_pipeline.sources.mysql.gtid import Gtid
from cdc_pipeline.sources.mysql.log_runs import LogRun, LogTransaction

Interval = tuple[int, int]
"""Numbers from the first to before the second."""
_INTERVALS = r"(?::[0-9]+(?:-[0-9]+)?)+"
_TAG = r":[a-z_][a-z0-9_]*"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ENTRY = re.compile(rf"({_UUID})(?=:)((?:{_INTERVALS})?(?:{_TAG}{_INTERVALS})*)", re.IGNORECASE)
_PART = re.compile(rf"({_TAG})?({_INTERVALS})", re.IGNORECASE)
"""The intervals of one tag, or those without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GtidSet:
    """The place behind the transactions of a set.

    `intervals`: by UUID, with its tag (`uuid:tag`) if it has one, sorted, without two that touch.
    """

    intervals: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        return ",".join(f"{uuid}:{':'.join(map(_written, found))}" for uuid, found in sorted(self.intervals.items()))

    @property
    def end(self) -> int:
        """The position behind everything that is before the place."""
        return 1 + sum(end - first for found in self.intervals.values() for first, end in found)

    @property
    def last(self) -> LogTransaction:
        """Has the position alone: a set does not show which of its transactions came last."""
        return LogTransaction(origin="", number=0, position=self.end - 1)

    def next(self, event: Any, last: LogTransaction) -> LogTransaction:
        uuid, _, number = event.gtid.rpartition(":")
        return LogTransaction(origin=uuid, number=int(number), position=last.end)

    def is_alone(self, event: Any) -> bool | None:
        """Returns None: the first statement behind the event shows it."""
        del event
        return None

    def is_unfinished(self, event: Any) -> bool:
        """Returns False: MySQL logs what is done."""
        del event
        return False

    def passed(self, run: LogRun) -> "GtidSet":
        uuid = run.first.origin
        added = (run.first.number, run.last_number + 1)
        return GtidSet(intervals={**self.intervals, uuid: _joined(*self.intervals.get(uuid, ()), added)})

    def before(self, transaction: LogTransaction) -> "GtidSet":
        """Returns the set without the transaction: the server sends whatever is not in a set, in the log's order."""
        uuid, number = transaction.origin, transaction.number
        left = tuple(part for each in self.intervals.get(uuid, ()) for part in _around(each, number))
        others = {each: found for each, found in self.intervals.items() if each != uuid}
        return GtidSet(intervals={**others, **({uuid: left} if left else {})})

    def at(self, position: int) -> "GtidSet | None":
        """Returns the set at an earlier position if one server wrote all transactions, from 1 on."""
        if position == 1:
            return GtidSet()
        match list(self.intervals.items()):
            case [(uuid, ((1, _),))]:
                return GtidSet(intervals={uuid: ((1, position),)})
        return None

    def joined(self, other: "GtidSet") -> "GtidSet":
        uuids = self.intervals.keys() | other.intervals.keys()
        both = {uuid: (*self.intervals.get(uuid, ()), *other.intervals.get(uuid, ())) for uuid in uuids}
        return GtidSet(intervals={uuid: _joined(*found) for uuid, found in both.items()})

    def contains(self, other: "GtidSet") -> bool:
        return all(
            any(first <= low and high <= end for first, end in self.intervals.get(uuid, ()))
            for uuid, found in other.intervals.items()
            for low, high in found
        )

    def begins_like(self, other: "GtidSet") -> bool:
        """Returns whether both have the same UUIDs, each from the same first number on."""
        firsts = [{uuid: found[0][0] for uuid, found in each.intervals.items()} for each in (self, other)]
        return firsts[0] == firsts[1]


LogPlace = Gtid | GtidSet
"""A place in the log, between two transactions. Its text is how it is registered, "" for the log's beginning."""


class LogHistory:
    """Knows the place of each position among the transactions that were read. Positions must not fall.

    It holds one entry per run, so memory does not grow with the number of transactions.
    """

    def __init__(self, start: LogPlace) -> None:
        self._place = start
        self._runs: deque[LogRun] = deque()

    def add(self, transaction: LogTransaction) -> None:
        if self._runs and self._runs[-1].takes(transaction):
            self._runs[-1].end = transaction.end
        else:
            self._runs.append(LogRun(first=transaction, end=transaction.end))

    def end(self) -> LogPlace:
        """Returns the place behind everything that was added."""
        place = self._place
        for run in self._runs:
            place = place.passed(run)
        return place

    def place_at(self, position: int) -> LogPlace:
        while self._runs and self._runs[0].first.position < position:
            run = self._runs.popleft()
            if run.end > position:
                run, rest = run.divided(position)
                self._runs.appendleft(rest)
            self._place = self._place.passed(run)
        return self._place


def parse_gtid_set(text: str) -> GtidSet:
    """Reads a set as the server writes it, in one line or several. Raises SourceError for other text."""
    return GtidSet(intervals=dict(_entries(text)))


def _entries(text: str) -> Iterator[tuple[str, tuple[Interval, ...]]]:
    for entry in text.split(","):
        written = "".join(entry.split())
        if not written:
            continue
        found = _ENTRY.fullmatch(written)
        if found is None:
            raise SourceError(
                f"the server names its position {written!r}",
                expected="MySQL's GTIDs, such as 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-1234:a_tag:1-5",
                remedy="read a supported server",
            )
        for tag, intervals in _PART.findall(found[2]):
            yield (found[1] + tag).lower(), _joined(*map(_interval, intervals.removeprefix(":").split(":")))


def _interval(written: str) -> Interval:
    first, _, last = written.partition("-")
    return int(first), int(last or first) + 1


def _written(interval: Interval) -> str:
    first, end = interval
    return str(first) if end == first + 1 else f"{first}-{end - 1}"


def _around(interval: Interval, number: int) -> Iterator[Interval]:
    """Yields what is left of an interval without the number."""
    first, end = interval
    if not first <= number < end:
        yield interval
        return
    if first < number:
        yield first, number
    if number + 1 < end:
        yield number + 1, end


def _joined(*intervals: Interval) -> tuple[Interval, ...]:
    """Returns the intervals in order. Joins those that touch."""
    if all(one[1] < two[0] for one, two in pairwise(intervals)):
        return intervals
    found: list[Interval] = []
    for first, end in sorted(intervals):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)
