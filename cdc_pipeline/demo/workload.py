"""The demo's write load: concurrent sessions of short and long transactions in the shop, and pgbench."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from random import Random
from threading import Event, Lock
from typing import Any

from psycopg2.extensions import (
    ISOLATION_LEVEL_READ_COMMITTED,
    ISOLATION_LEVEL_REPEATABLE_READ,
    TransactionRollbackError,
)

from cdc_pipeline.demo.pgbench import finished_transactions, running_pgbench
from cdc_pipeline.demo.transactions import KINDS, LONG, Kind
from cdc_pipeline.sources.postgres.session import answering, connect

PGBENCH = "pgbench transactions"
_SESSIONS = 4
_LONG_PER_SECOND = 1.0
_PGBENCH_CLIENTS = 2
_PGBENCH_PER_SECOND = 20.0
_ISOLATION = (ISOLATION_LEVEL_READ_COMMITTED, ISOLATION_LEVEL_REPEATABLE_READ)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """How sessions write to the shop of one kind of database.

    `session`: opens a connection (PEP 249) of the session with this number, whose statements begin transactions.
    `conflicts`: the driver's errors after which a transaction is repeated, if `is_conflict` says so too.
    `has_pgbench`: whether pgbench writes to the same database.
    """

    session: Callable[[str, int], AbstractContextManager[Any]]
    conflicts: type[Exception]
    is_conflict: Callable[[Exception], bool] = lambda _: True
    kinds: Sequence[Kind] = KINDS
    long: Kind = LONG
    has_pgbench: bool = False


class Workload:
    """Writes until `stop` is called. One additional session runs only long transactions.

    `source_url`: the database, as the shop's sessions take it. `chance` decides what each session does and when.
    """

    def __init__(
        self,
        source_url: str,
        *,
        chance: Random,
        transactions_per_second: float = 120.0,
        shop: Shop | None = None,
    ) -> None:
        self._url = source_url
        self._shop = shop or POSTGRES_SHOP
        self._chances = [Random(chance.getrandbits(64)) for _ in range(_SESSIONS + 1)]
        self._rate_of_session = transactions_per_second / _SESSIONS
        self._stopping = Event()
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self._running = ExitStack()
        self._sessions: list[Future[None]] = []
        self._pgbench_before = 0

    def start(self) -> None:
        with ExitStack() as starting:
            if self._shop.has_pgbench:
                self._pgbench_before = finished_transactions(self._url)
                starting.enter_context(_pgbench(self._url))
            threads = starting.enter_context(ThreadPoolExecutor(len(self._chances), "shop"))
            starting.callback(self._stopping.set)
            self._sessions = [threads.submit(self._work, *session) for session in enumerate(self._chances)]
            self._running = starting.pop_all()

    def stop(self) -> dict[str, int]:
        """Returns the number of finished transactions per kind. Raises the error that ended a session, if any."""
        self._running.close()
        for session in self._sessions:
            session.result()
        return self.counts()

    def counts(self) -> dict[str, int]:
        """The number of finished transactions so far, by the name of their kind."""
        beside = Counter[str]()
        if self._shop.has_pgbench:
            beside[PGBENCH] = finished_transactions(self._url) - self._pgbench_before
        with self._lock:
            return dict(sorted((self._counts | beside).items()))

    def _work(self, number: int, chance: Random) -> None:
        """Runs one session. If it fails, all sessions stop."""
        shop = self._shop
        kinds, rate = ((shop.long,), _LONG_PER_SECOND) if number == 0 else (shop.kinds, self._rate_of_session)
        try:
            with shop.session(self._url, number) as connection:
                for kind in dealt(kinds, chance):
                    if self._stopping.wait(chance.expovariate(rate)):
                        return
                    self._do(connection, kind, chance)
        finally:
            self._stopping.set()

    def _do(self, connection: Any, kind: Kind, chance: Random) -> None:
        """Runs a transaction, and repeats it after conflicts with other sessions."""
        while True:
            try:
                with connection.cursor() as cursor:
                    done = kind.run(cursor, chance, self._stopping)
                connection.commit()
            except self._shop.conflicts as error:
                if not self._shop.is_conflict(error):
                    raise
                connection.rollback()
                if self._stopping.is_set():
                    return
            else:
                break
        if done:
            with self._lock:
                self._counts[kind.name] += 1


def dealt(kinds: Sequence[Kind], chance: Random) -> Iterator[Kind]:
    """Yields kinds endlessly in random order; in every round each occurs as often as its share."""
    cards = [kind for kind in kinds for _ in range(kind.share)]
    while True:
        yield from chance.sample(cards, len(cards))


@contextmanager
def _postgres_session(source_url: str, number: int) -> Iterator[Any]:
    with answering(), closing(connect(source_url)) as connection:
        connection.set_session(_ISOLATION[number % 2])
        yield connection


def _pgbench(source_url: str) -> AbstractContextManager[None]:
    return running_pgbench(
        source_url,
        clients=_PGBENCH_CLIENTS,
        transactions_per_second=_PGBENCH_PER_SECOND,
        environment=os.environ,
    )


POSTGRES_SHOP = Shop(session=_postgres_session, conflicts=TransactionRollbackError, has_pgbench=True)
