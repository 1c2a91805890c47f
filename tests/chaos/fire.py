"""Faults made by seeded chance, one schedule beside the other, and how long each was felt."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain, count
from random import Random
from statistics import median
from threading import Event

import psutil
import psycopg2

from cdc_pipeline.demo.pgbench import running_pgbench
from cdc_pipeline.errors import SetupError, SourceAway
from tests.chaos.bank import Bank, NobodyThere
from tests.chaos.waiting import beside

CLIENTS, PER_SECOND = 2, 30
WRITE_AGAIN_SECONDS = 3
TICK_SECONDS = 0.2
REGISTERED_AFTER = "SELECT min(registered_at) - %s FROM cdc.boundary WHERE registered_at > %s"
APPLIED_AFTER = "SELECT min(applied_at) - %s FROM cdc.slice WHERE rows > 0 AND registered_at > %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """A fault that has to be ended, after so many seconds, but not before somebody was hit."""

    seconds: float
    end: Callable[[], None]
    has_hit: Callable[[], bool] = lambda: True


Strike = Callable[[Bank, Random], Lasting | None]
"""Makes a fault. Raises NobodyThere, or psutil.NoSuchProcess, when there is nobody to hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What may happen to one part; `share` is its part of all faults of a schedule."""

    site: str
    fault: str
    share: int
    strike: Strike


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Faults one after the other, with a pause between the two given numbers of seconds.

    Every kind comes once, in an order of chance, and then each by its share.
    """

    kinds: Sequence[Kind]
    pauses: tuple[float, float]

    def turns(self, chance: Random) -> Iterator[tuple[Kind, float]]:
        """For ever: what comes next, and after which pause."""
        shares = [kind.share for kind in self.kinds]
        first = chance.sample(self.kinds, len(self.kinds))
        later = (kind for _ in count() for kind in chance.choices(self.kinds, shares))
        return ((kind, chance.uniform(*self.pauses)) for kind in chain(first, later))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A fault that was made, at a time of this machine's clock, which is the servers' too."""

    kind: Kind
    at: datetime


@dataclass(slots=True, kw_only=True)
class Fire:
    """What lasts ends by itself, also when the fire ends."""

    bank: Bank
    chance: Random
    made: list[Made] = field(default_factory=list)
    _lasting: list[tuple[float, Lasting]] = field(default_factory=list)

    def burn(self, schedules: Sequence[Schedule], *, seconds: float) -> None:
        """All schedules beside each other, for that long. A fault that finds nobody to hit waits for somebody."""
        deadline, waiting = time.monotonic() + seconds, Event()
        chances = [Random(self.chance.random()) for _ in schedules]
        turns = [schedule.turns(chance) for schedule, chance in zip(schedules, chances, strict=True)]
        due = [_next(turn) for turn in turns]
        try:
            while (now := time.monotonic()) < deadline:
                for place, (kind, at) in enumerate(due):
                    if at <= now and self._make(kind, chances[place]):
                        due[place] = _next(turns[place])
                self._end([fault for fault in self._lasting if fault[0] <= now and fault[1].has_hit()])
                waiting.wait(TICK_SECONDS)
        finally:
            self._end(list(self._lasting))

    def _make(self, kind: Kind, chance: Random) -> bool:
        made = Made(kind=kind, at=datetime.now(UTC))
        try:
            lasting = kind.strike(self.bank, chance)
        except (NobodyThere, psutil.NoSuchProcess):
            return False
        if lasting is not None:
            self._lasting.append((time.monotonic() + lasting.seconds, lasting))
        self.made.append(made)
        return True

    def _end(self, over: Sequence[tuple[float, Lasting]]) -> None:
        for fault in over:
            self._lasting.remove(fault)
            fault[1].end()


def _next(turns: Iterator[tuple[Kind, float]]) -> tuple[Kind, float]:
    """What comes next, and when."""
    kind, pause = next(turns)
    return kind, time.monotonic() + pause


def writers(bank: Bank) -> AbstractContextManager[None]:
    """pgbench's clients, started again when the source's end was theirs too."""

    def write(stop: Event) -> None:
        while not stop.is_set():
            with (
                suppress(SetupError, SourceAway),
                running_pgbench(
                    bank.source_url, clients=CLIENTS, transactions_per_second=PER_SECOND, environment=os.environ
                ),
            ):
                stop.wait(WRITE_AGAIN_SECONDS)

    return beside(write)


def recoveries(bank: Bank, made: Made) -> tuple[timedelta | None, timedelta | None]:
    """From the fault until a cut was registered after it, and until the lake had one that was registered after it."""
    with closing(psycopg2.connect(bank.store_url)) as connection, connection.cursor() as cursor:
        found: list[timedelta | None] = []
        for statement in (REGISTERED_AFTER, APPLIED_AFTER):
            cursor.execute(statement, (made.at, made.at))
            found += [took for (took,) in cursor.fetchall()]
    registered, applied = found
    return registered, applied


def summary(durations: Sequence[timedelta | None]) -> str:
    """min / median / max in seconds."""
    seconds = sorted(found.total_seconds() for found in durations if found is not None)
    return f"{seconds[0]:.1f} / {median(seconds):.1f} / {seconds[-1]:.1f} s" if seconds else "none"
