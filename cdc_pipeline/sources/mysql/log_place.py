"""Places in the log of a server and the transactions between them, as far as MariaDB and MySQL have them in common.

A position is a number. The transaction at position n commits there, and the position behind it is n + 1. `gtid` says
what the number is for MariaDB, `gtid_set` for MySQL.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTransaction:
    """One transaction of the log: the number that its origin gave it, and the position at which it commits."""

    origin: str
    number: int
    position: int

    @property
    def end(self) -> int:
        """The position behind the transaction."""
        return self.position + 1


@dataclass(slots=True, kw_only=True)
class LogRun:
    """Transactions of one origin without one of another between them: `first`, and all up to the position `end`.

    Within a run, numbers and positions have the same distance everywhere.
    """

    first: LogTransaction
    end: int

    @property
    def last_number(self) -> int:
        return self.end - 1 + self._distance

    @property
    def _distance(self) -> int:
        return self.first.number - self.first.position

    def takes(self, transaction: LogTransaction) -> bool:
        """Returns whether the transaction can be added at the end."""
        return transaction.origin == self.first.origin and transaction.number - transaction.position == self._distance

    def divided(self, position: int) -> "tuple[LogRun, LogRun]":
        """Returns what is before the position, and the rest."""
        rest = replace(self.first, number=position + self._distance, position=position)
        return LogRun(first=self.first, end=position), LogRun(first=rest, end=self.end)


class LogPlace(Protocol):
    """A place in the log, between two transactions. Its text is how it is registered, "" for the log's beginning."""

    @property
    def end(self) -> int:
        """The position behind everything that is before the place."""

    @property
    def last(self) -> LogTransaction:
        """The last transaction before the place."""

    def next(self, event: Any, last: LogTransaction) -> LogTransaction:
        """Returns the transaction that an event with its id begins, behind `last`.

        Raises SourceChanged for one that cannot come there.
        """

    def is_alone(self, event: Any) -> bool | None:
        """Returns whether an event with an id begins a statement that is a transaction of its own, None if unknown."""

    def is_unfinished(self, event: Any) -> bool:
        """Returns whether an event with an id begins a statement that does nothing by itself."""

    def passed(self, run: LogRun) -> "LogPlace":
        """Returns the place behind these transactions, which come next."""

    def before(self, transaction: LogTransaction) -> "LogPlace":
        """Returns a place from which the server sends this transaction first. It is one before the place."""

    def at(self, position: int) -> "LogPlace | None":
        """Returns the place at an earlier position, None if the place does not show it."""


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
