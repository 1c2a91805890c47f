"""Notices a log that began again and has passed the same numbers, as after RESET MASTER: their times are others.

Each cut registers one transaction before it, with its time. A new reader looks for it in the log.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pymysqlreplication.event import GtidEvent, MariadbGtidEvent

from cdc_pipeline.errors import SourceGap
from cdc_pipeline.sources.mysql.gtid_set import LogPlace
from cdc_pipeline.sources.mysql.log_runs import LogTransaction
from cdc_pipeline.sources.mysql.tagged_gtids import TaggedGtid

_MICROSECONDS = 1_000_000
_MOST_SECONDS = 60
"""How long a transaction is waited for. MySQL sends a heartbeat for each event that it passes over, without a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """A transaction that was read. `commit_time`: in microseconds since 1970."""

    transaction: LogTransaction
    commit_time: int

    def check(self, start: LogPlace, begun: Any) -> None:
        """Raises SourceGap if the log has another transaction of this id. `begun`: what `next_begun` found."""
        before = replace(self.transaction, number=self.transaction.number - 1, position=self.transaction.position - 1)
        is_other = begun is not None and begun.timestamp * _MICROSECONDS != self.commit_time
        if is_other and start.next(begun, before) == self.transaction:
            raise SourceGap(
                f"the source's log has another transaction of the number {self.transaction.number} than was read",
                expected="the log up to which it is registered",
                remedy="RESET MASTER was run, or the server was set back: run cdc setup-source --begin-again, then cdc"
                " snapshot",
            )


class LogMarks:
    """Returns, for a position, a transaction before it and its time. Positions must not fall.

    `noted`: a text of `text_at`, "" for none.
    """

    def __init__(self, noted: str) -> None:
        self._marks = deque[LogMark]()
        if noted:
            found = json.loads(noted)
            self.add(LogTransaction(**found["transaction"]), found["commit_time"])

    @property
    def first(self) -> LogMark | None:
        return self._marks[0] if self._marks else None

    def add(self, transaction: LogTransaction, commit_time: int) -> None:
        self._marks.append(LogMark(transaction=transaction, commit_time=commit_time))

    def add_batch(self, ended: Sequence[tuple[LogTransaction, int]]) -> None:
        """Adds of a batch the last transaction, behind which most cuts are, and the first one for a cut within it."""
        for transaction, committed in (*ended[:1], *ended[1:][-1:]):
            self.add(transaction, committed)

    def text_at(self, position: int) -> str:
        while len(self._marks) > 1 and self._marks[1].transaction.position < position:
            self._marks.popleft()
        known = [mark for mark in self._marks if mark.transaction.position < position]
        return json.dumps(asdict(known[0])) if known else ""


def next_begun(next_event: Callable[[], Any]) -> Any:
    """Returns the event with which the next transaction of a log begins, None if none comes soon."""
    deadline = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < deadline:
        event = next_event()
        if isinstance(event, GtidEvent | MariadbGtidEvent | TaggedGtid):
            return event
    return None
