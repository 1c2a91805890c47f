"""People who write to the shop: concurrent sessions of short and long transactions, and pgbench beside them."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from random import Random
from threading import Event, Lock

import psycopg2.extensions
from psycopg2.extensions import (
    ISOLATION_LEVEL_READ_COMMITTED,
    ISOLATION_LEVEL_REPEATABLE_READ,
    TransactionRollbackError,
)

from cdc_pipeline.demo.pgbench import finished_transactions, running_pgbench
from cdc_pipeline.demo.transactions import KINDS, Kind, work_for_long
from cdc_pipeline.sources.postgres.session import answering, connect

LONG = "long transactions"
PGBENCH = "pgbench transactions"
_ISOLATION = (ISOLATION_LEVEL_READ_COMMITTED, ISOLATION_LEVEL_REPEATABLE_READ)
_PGBENCH_CLIENTS = 2
_LONGEST_REST_SECONDS = 2.0


class Workload:
    """Writes until it is stopped. Every second session asks for repeatable reads; one more only works for long.

    `chance` decides who does what and when, apart from what the sessions do to each other.
    """

    def __init__(
        self,
        source_url: str,
        *,
        chance: Random,
        sessions: int = 4,
        transactions_per_second: float = 120.0,
        pgbench_per_second: float = 20.0,
        stopping: Event | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._url = source_url
        self._chances = [Random(chance.getrandbits(64)) for _ in range(sessions + 1)]
        self._rate_of_session = transactions_per_second / sessions
        self._pgbench_rate = pgbench_per_second
        self._stopping = stopping or Event()
        self._environment = environment
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self._running = ExitStack()
        self._sessions: list[Future[None]] = []
        self._pgbench_before = 0

    def start(self) -> None:
        self._pgbench_before = finished_transactions(self._url)
        with ExitStack() as starting:
            starting.enter_context(
                running_pgbench(
                    self._url,
                    clients=_PGBENCH_CLIENTS,
                    transactions_per_second=self._pgbench_rate,
                    environment=self._environment,
                )
            )
            threads = starting.enter_context(ThreadPoolExecutor(len(self._chances), "shop"))
            starting.callback(self._stopping.set)
            self._sessions = [threads.submit(self._work, *session) for session in enumerate(self._chances)]
            self._running = starting.pop_all()

    def stop(self) -> dict[str, int]:
        """How many transactions of each kind were done; long ones end early. Raises what ended a session before."""
        self._running.close()
        for session in self._sessions:
            session.result()
        return self.counts()

    def counts(self) -> dict[str, int]:
        """The same while it runs, by name."""
        pgbench = finished_transactions(self._url) - self._pgbench_before
        with self._lock:
            return dict(sorted((self._counts | Counter({PGBENCH: pgbench})).items()))

    def _work(self, number: int, chance: Random) -> None:
        """One that breaks stops them all: half a workload would prove less than it seems."""
        try:
            with answering(), closing(connect(self._url)) as connection:
                if number == 0:
                    self._work_for_long(connection, chance)
                else:
                    connection.set_session(_ISOLATION[number % 2])
                    self._work_at_rate(connection, chance)
        finally:
            self._stopping.set()

    def _work_at_rate(self, connection: psycopg2.extensions.connection, chance: Random) -> None:
        for kind in dealt(chance):
            if self._stopping.wait(chance.expovariate(self._rate_of_session)):
                return
            self._do(connection, kind, chance)

    def _work_for_long(self, connection: psycopg2.extensions.connection, chance: Random) -> None:
        kind = Kind(name=LONG, share=1, run=partial(work_for_long, stopping=self._stopping))
        while not self._stopping.wait(chance.uniform(0, _LONGEST_REST_SECONDS)):
            self._do(connection, kind, chance)

    def _do(self, connection: psycopg2.extensions.connection, kind: Kind, chance: Random) -> None:
        """Again and again while other sessions are in its way."""
        while True:
            try:
                with connection.cursor() as cursor:
                    done = kind.run(cursor, chance)
                connection.commit()
            except TransactionRollbackError:
                connection.rollback()
                if self._stopping.is_set():
                    return
            else:
                break
        if done:
            with self._lock:
                self._counts[kind.name] += 1


def dealt(chance: Random) -> Iterator[Kind]:
    """Kinds without end, shuffled like cards: each has its share in every hundred."""
    cards = [kind for kind in KINDS for _ in range(kind.share)]
    while True:
        yield from chance.sample(cards, len(cards))
