"""Transactions in the log of a server, as far as MariaDB and MySQL have them in common.

A position is a number. The transaction at position n commits there, and the position behind it is n + 1. `gtid` says
what the number is for MariaDB, `gtid_set` for MySQL.
"""

from dataclasses import dataclass, replace


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
