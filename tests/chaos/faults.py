"""Faults on the processes of a bank, chosen by seeded chance, and how long each was felt."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import median
from threading import Event, Thread

import psutil
import psycopg2

from cdc_pipeline.demo.pgbench import running_pgbench
from cdc_pipeline.errors import SetupError, SourceAway
from tests.chaos.bank import CONSUMER, LEASE_SECONDS, SOURCE, SPARK, STORE, WORKERS, Bank
from tests.support.command_line import query

CLIENTS, PER_SECOND = 2, 30
LOOK_AGAIN_SECONDS = 3
TICK_SECONDS = 0.2
OPEN_CLAIMS = "SELECT 1 FROM cdc.claim WHERE state = 'claimed'"
KILL, AT_ONCE, FAST = "kill -9", "immediate shutdown", "fast shutdown"
PAUSE, IN_MERGE = "paused past its lease", "kill -9 during a claim"
SIGNALS = {KILL: signal.SIGKILL, AT_ONCE: signal.SIGQUIT, FAST: signal.SIGINT, IN_MERGE: signal.SIGKILL}
REGISTERED_AFTER = "SELECT min(registered_at) - %s FROM cdc.boundary WHERE registered_at > %s"
APPLIED_AFTER = "SELECT min(applied_at) - %s FROM cdc.slice WHERE rows > 0 AND registered_at > %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What may happen to one process; `share` is its part of all faults."""

    site: str
    fault: str
    share: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Faults one after the other, with a pause between the two given numbers of seconds."""

    kinds: tuple[Kind, ...]
    pauses: tuple[float, float]


SERVERS = tuple(Kind(site=site, fault=fault, share=1) for site in (SOURCE, STORE) for fault in (KILL, AT_ONCE, FAST))
PROCESSES = (
    Kind(site=SPARK, fault=IN_MERGE, share=3),
    Kind(site=CONSUMER, fault=KILL, share=4),
    *(Kind(site=worker, fault=fault, share=2) for worker in WORKERS for fault in (KILL, PAUSE)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A fault that was made, at a time of this machine's clock, which is the servers' too."""

    kind: Kind
    at: datetime


@dataclass(slots=True, kw_only=True)
class Fire:
    """Makes faults one after the other. Whoever is paused goes on by itself, also when the fire ends."""

    bank: Bank
    chance: Random
    made: list[Made] = field(default_factory=list)
    _paused: list[tuple[float, psutil.Process]] = field(default_factory=list)

    def burn(self, schedules: Sequence[Schedule], *, seconds: float) -> None:
        """All schedules beside each other, for that long. A fault that finds nobody to hit waits for somebody."""
        deadline, waiting = time.monotonic() + seconds, Event()
        due = [self._next(schedule) for schedule in schedules]
        try:
            while (now := time.monotonic()) < deadline:
                for place, (at, kind) in enumerate(due):
                    if at <= now and self._make(kind):
                        due[place] = self._next(schedules[place])
                self._wake(now)
                waiting.wait(TICK_SECONDS)
        finally:
            self._wake(float("inf"))

    def _next(self, schedule: Schedule) -> tuple[float, Kind]:
        (kind,) = self.chance.choices(schedule.kinds, [kind.share for kind in schedule.kinds])
        return time.monotonic() + self.chance.uniform(*schedule.pauses), kind

    def _make(self, kind: Kind) -> bool:
        """Whether it was made: its process may be away, and a claim may have to be waited for."""
        number = self.bank.process(kind.site)
        if number is None or (kind.fault == IN_MERGE and not self._a_claim_is_open()):
            return False
        try:
            found = psutil.Process(number)
            made = Made(kind=kind, at=datetime.now(UTC))
            if kind.fault == PAUSE:
                found.suspend()
                self._paused.append((time.monotonic() + LEASE_SECONDS + self.chance.uniform(1, 6), found))
            else:
                found.send_signal(SIGNALS[kind.fault])
            self.made.append(made)
        except psutil.NoSuchProcess:
            return False
        return True

    def _a_claim_is_open(self) -> bool:
        with suppress(psycopg2.OperationalError):
            return bool(query(self.bank.store_url, OPEN_CLAIMS))
        return False

    def _wake(self, now: float) -> None:
        for due, process in [found for found in self._paused if found[0] <= now]:
            self._paused.remove((due, process))
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def writers(bank: Bank, *, per_second: float = PER_SECOND) -> Iterator[None]:
    """pgbench's clients, started again when the source's end was theirs too."""
    stop = Event()

    def write() -> None:
        while not stop.is_set():
            with (
                suppress(SetupError, SourceAway),
                running_pgbench(
                    bank.source_url, clients=CLIENTS, transactions_per_second=per_second, environment=os.environ
                ),
            ):
                stop.wait(LOOK_AGAIN_SECONDS)

    thread = Thread(target=write, name="writers")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


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
