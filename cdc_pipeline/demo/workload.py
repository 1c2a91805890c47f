"""People who write to the shop: concurrent sessions of short and long transactions, and pgbench beside them."""

import random
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from threading import Event, Lock, Thread

import psycopg2
import psycopg2.errors
import psycopg2.extensions

from cdc_pipeline.demo.seed import pgbench

Cursor = psycopg2.extensions.cursor
_LONG_SECONDS = 6.0
_PAUSE_SECONDS = 0.04
_CUSTOMERS, _PRODUCTS, _ORDERS = 2000, 500, 20000


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One kind of transaction, and how often it is chosen among all."""

    name: str
    weight: int
    run: Callable[[Cursor, random.Random, Event], None]


def insert_order(cursor: Cursor, chance: random.Random, _stop: Event) -> None:
    cursor.execute(
        "INSERT INTO orders (order_id, customer_id, total, note, attributes)"
        " VALUES (nextval('fresh_id'), %s, %s, %s, %s) RETURNING order_id",
        (
            chance.randint(1, _CUSTOMERS),
            chance.randint(0, 99999) / 100,
            chance.choice([None, "", "Grüße, 東京"]),
            chance.choice([None, "null", '{"gift": true}']),
        ),
    )
    (order_id,) = cursor.fetchone() or (0,)
    cursor.executemany(
        "INSERT INTO order_items VALUES (%s, %s, %s, %s, %s)",
        [(order_id, line, chance.randint(1, _PRODUCTS), line, chance.randint(1, 999)) for line in (1, 2)],
    )


def update_order(cursor: Cursor, chance: random.Random, _stop: Event) -> None:
    status = chance.choice(["paid", "shipped", "returned"])
    cursor.execute(
        "UPDATE orders SET status = %s, total = total + 1, updated_at = now() WHERE order_id = %s",
        (status, chance.randint(_ORDERS - 2000, _ORDERS)),
    )


def update_price(cursor: Cursor, chance: random.Random, _stop: Event) -> None:
    """The long description stays, so the log leaves it out."""
    cursor.execute(
        "UPDATE products SET price = price + 0.01, updated_at = now() WHERE product_id = %s",
        (chance.randint(1, _PRODUCTS),),
    )


def delete_order(cursor: Cursor, chance: random.Random, _stop: Event) -> None:
    order_id = chance.randint(1, _ORDERS - 2000)
    cursor.execute("DELETE FROM order_items WHERE order_id = %s", (order_id,))
    cursor.execute("DELETE FROM orders WHERE order_id = %s", (order_id,))


def delete_customer(cursor: Cursor, chance: random.Random, _stop: Event) -> None:
    cursor.execute("DELETE FROM customers WHERE customer_id = %s", (chance.randint(1, _CUSTOMERS),))


def change_key(cursor: Cursor, chance: random.Random, _stop: Event) -> None:
    """A product moves to a fresh id, with its long description left out of the log."""
    cursor.execute(
        "UPDATE products SET product_id = nextval('fresh_id'), updated_at = now() WHERE product_id ="
        " (SELECT product_id FROM products WHERE product_id > %s ORDER BY product_id LIMIT 1)",
        (chance.randint(1, 1_000_000),),
    )


def swap_keys(cursor: Cursor, chance: random.Random, _stop: Event) -> None:
    """Two customers change places through a third id, in one transaction."""
    first = chance.randint(1, _CUSTOMERS - 1)
    for old, new in ((first, -first), (first + 1, first), (-first, first + 1)):
        cursor.execute("UPDATE customers SET customer_id = %s WHERE customer_id = %s", (new, old))


def insert_and_delete(cursor: Cursor, _chance: random.Random, _stop: Event) -> None:
    cursor.execute("INSERT INTO orders (order_id, customer_id) VALUES (nextval('fresh_id'), 1) RETURNING order_id")
    cursor.execute("DELETE FROM orders WHERE order_id = %s", cursor.fetchone())


def long_transaction(cursor: Cursor, chance: random.Random, stop: Event) -> None:
    """Its update_time is its start, its commit comes seconds and slices later."""
    order_id = chance.randint(_ORDERS - 2000, _ORDERS)
    cursor.execute("UPDATE orders SET note = 'early', updated_at = now() WHERE order_id = %s", (order_id,))
    stop.wait(_LONG_SECONDS)
    cursor.execute("UPDATE orders SET note = 'late', updated_at = now() WHERE order_id = %s", (order_id,))


def rollback(cursor: Cursor, chance: random.Random, _stop: Event) -> None:
    """Half is taken back by a savepoint, then all of it."""
    cursor.execute("UPDATE orders SET note = 'never' WHERE order_id = %s", (chance.randint(1, _ORDERS),))
    cursor.execute("SAVEPOINT half")
    cursor.execute("INSERT INTO customers (customer_id, reference, name) VALUES (-1, gen_random_uuid(), 'nobody')")
    cursor.execute("ROLLBACK TO SAVEPOINT half")
    cursor.connection.rollback()


ACTS = (
    Act(name="inserts", weight=30, run=insert_order),
    Act(name="updates", weight=40, run=update_order),
    Act(name="updates beside a large text", weight=15, run=update_price),
    Act(name="deletes", weight=8, run=delete_order),
    Act(name="soft deletes", weight=2, run=delete_customer),
    Act(name="key changes", weight=4, run=change_key),
    Act(name="key swaps", weight=2, run=swap_keys),
    Act(name="insert and delete", weight=2, run=insert_and_delete),
    Act(name="long transactions", weight=1, run=long_transaction),
    Act(name="rollbacks", weight=2, run=rollback),
)


class Workload:
    """About a hundred transactions a second until it is stopped; nothing of it is left then."""

    def __init__(self, source_url: str, *, chance: random.Random, sessions: int = 4, pgbench_rate: int = 20) -> None:
        self._url = source_url
        self._chances = [random.Random(chance.random()) for _ in range(sessions)]
        self._rate = pgbench_rate
        self._stop = Event()
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._pgbench: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._threads = [Thread(target=self._session, args=(chance,), daemon=True) for chance in self._chances]
        for thread in self._threads:
            thread.start()
        self._pgbench = subprocess.Popen(
            [pgbench(), "--no-vacuum", "--client=2", f"--rate={self._rate}", "--time=3600", self._url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> dict[str, int]:
        """How many transactions of each kind were committed."""
        self._stop.set()
        if self._pgbench is not None:
            self._pgbench.terminate()
            self._pgbench.wait()
        for thread in self._threads:
            thread.join()
        return dict(sorted(self._counts.items()))

    def _session(self, chance: random.Random) -> None:
        weights = [act.weight for act in ACTS]
        with closing(psycopg2.connect(self._url)) as connection:
            while not self._stop.wait(_PAUSE_SECONDS):
                (act,) = chance.choices(ACTS, weights)
                self._perform(connection, act, chance)

    def _perform(self, connection: psycopg2.extensions.connection, act: Act, chance: random.Random) -> None:
        """Two sessions may want the same row, or an id that is taken by now: then this one gives way."""
        try:
            with connection.cursor() as cursor:
                act.run(cursor, chance, self._stop)
            connection.commit()
        except (psycopg2.errors.DeadlockDetected, psycopg2.errors.UniqueViolation):
            connection.rollback()
            return
        with self._lock:
            self._counts[act.name] += 1
