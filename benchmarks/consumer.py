"""Events per second of the whole consumer, from the slot of a real server to registered slices, beside peer and limits.

    python -m benchmarks.consumer [events] [rounds]

Every arm reads the same changes through a slot of its own; arms take turns. Medians, and the ratio to PostgreSQL's own
client, which throws away what it receives. An arm that has not seen every event gives no figure.
"""

import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.plain_loop import EVENT_KINDS, SCHEMA, PlainLoop
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.sources.postgres.session import connect_for_replication
from cdc_pipeline.wiring import Pipeline
from tests.support.command_line import query
from tests.support.pipelines import consume, opened_pipeline, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_database, fresh_store, started_server
from tests.support.streams import database_of, run_sql

EVENTS, ROUNDS, WARM_UPS = 500_000, 3, 1
EVENTS_PER_TRANSACTION = 1_000
EVENTS_PER_FILE = 100_000
COLUMNS = ", ".join(f"{column.name} {column.type}" for column in SCHEMA.columns)
CREATE = f"CREATE TABLE orders ({COLUMNS}, PRIMARY KEY ({', '.join(SCHEMA.key)}))"
REGISTERED = "SELECT coalesce(sum(rows), 0) FROM cdc.slice"
LOAD = """
DO $$ BEGIN FOR part IN {first} .. {last} LOOP
    INSERT INTO orders
        SELECT n, n % 50000, 'status ' || n % 4, n / 100.0, n % 2 = 0, date '2024-01-01' + (n % 300)::int,
               now(), now(), n / 7.0, 'a note of some length about order ' || n
        FROM generate_series(part * 400 + 1, part * 400 + 400) AS n;
    UPDATE orders SET amount = amount + 1, updated_at = now() WHERE order_id > part * 400;
    UPDATE orders SET status = 'shipped', updated_at = now() WHERE order_id > part * 400 + 200;
    COMMIT;
END LOOP; END $$
"""
PEEK = """
SELECT count(*) FILTER (WHERE get_byte(data, 0) IN (73, 85))
FROM pg_logical_slot_peek_binary_changes('{}', NULL, NULL, 'proto_version', '1', 'publication_names', '{}')
"""
SLOTS = {"server alone": "bench_server", "pg_recvlogical": "bench_client", "plain loop": "bench_plain"}
Arm = Callable[[int], int]
"""Reads this many events, which wait, and gives the number of those that it saw."""


class LostEventsError(Exception):
    """An arm has seen more or fewer events than there are."""


def measure(server: PostgresServer, events: int, rounds: int) -> dict[str, list[float]]:
    """Events per second of each round, by arm. `events`: per round, full transactions of 1,000."""
    rates: dict[str, list[float]] = {}
    with opened_arms(server) as (source_url, arms):
        for round_number in range(rounds + WARM_UPS):
            parts = events // EVENTS_PER_TRANSACTION
            run_sql(source_url, LOAD.format(first=round_number * parts, last=(round_number + 1) * parts - 1))
            for name, arm in arms.items():
                started = time.perf_counter()
                seen = arm(events)
                seconds = time.perf_counter() - started
                if seen != events:
                    message = f"{name} saw {seen} events of {events}"
                    raise LostEventsError(message)
                if round_number >= WARM_UPS:
                    rates.setdefault(name, []).append(events / seconds)
            for slot in SLOTS.values():
                run_sql(source_url, f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    return rates


@contextmanager
def opened_arms(server: PostgresServer) -> Iterator[tuple[str, dict[str, Arm]]]:
    with ExitStack() as opened:
        url = opened.enter_context(fresh_database(server))
        store_url = opened.enter_context(fresh_store(server))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        run_sql(url, CREATE)
        settings = pipeline_settings(folder, url, [{"name": "public.orders"}])
        pipeline = opened.enter_context(opened_pipeline(settings, store_url=store_url, spark_url=""))
        set_up_and_consume(pipeline)
        for slot in SLOTS.values():
            run_sql(url, f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        yield (
            url,
            {
                "server alone": lambda _: peek(url),
                "pg_recvlogical": lambda events: receive(server, url, events),
                "this project": lambda _: consume_all(pipeline, store_url),
                "plain loop": lambda events: loop(url, folder, events),
            },
        )


def peek(url: str) -> int:
    """The server decodes and counts; nothing leaves it."""
    ((seen,),) = query(url, PEEK.format(SLOTS["server alone"], database_of(url)))
    return int(seen)


def receive(server: PostgresServer, url: str, events: int) -> int:
    """PostgreSQL's own client up to the end of the log, into nothing; so it is taken at its word."""
    ((end,),) = query(url, "SELECT pg_current_wal_lsn()")
    command = [str(server.program("pg_recvlogical")), "-d", url, "-S", SLOTS["pg_recvlogical"], "--start", "-f", "-"]
    options = ["-o", "proto_version=1", "-o", f"publication_names={database_of(url)}", "--no-loop", f"--endpos={end}"]
    subprocess.run([*command, *options], stdout=subprocess.DEVNULL, check=True)
    return events


def consume_all(pipeline: Pipeline, store_url: str) -> int:
    ((before,),) = query(store_url, REGISTERED)
    consume(pipeline)
    ((after,),) = query(store_url, REGISTERED)
    return int(after - before)


def loop(url: str, folder: Path, events: int) -> int:
    """A Python value per field, one Parquet file per 100,000 events; neither registered nor confirmed."""
    plain, seen, rows = PlainLoop(EVENTS_PER_FILE), 0, 0
    start = "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names '\"{}\"')"
    with closing(connect_for_replication(url)) as connection, connection.cursor() as cursor:
        cursor.start_replication_expert(start.format(SLOTS["plain loop"], database_of(url)), decode=False)
        while seen < events:
            message = cursor.read_message()
            if message is None:
                select.select([cursor], [], [], 1)
                continue
            seen += message.payload[0] in EVENT_KINDS
            batch = plain.take(message.payload)
            if batch is not None:
                rows += _write(batch, folder)
    return rows + _write(plain.rest(), folder)


def _write(batch: pa.RecordBatch, folder: Path) -> int:
    pq.write_table(pa.Table.from_batches([batch]), folder / "plain.parquet", compression="zstd")
    return int(batch.num_rows)


def main(words: Sequence[str]) -> None:
    given = [int(word) for word in words]
    events, rounds = [*given, *(EVENTS, ROUNDS)[len(given) :]]
    with started_server(dict(os.environ)) as server:
        rates = measure(server, events, rounds)
    floor = statistics.median(rates["pg_recvlogical"])
    print(
        f"{events:,} events of {len(SCHEMA.columns)} columns, {EVENTS_PER_TRANSACTION:,} a transaction, {rounds} rounds"
    )
    for name, found in rates.items():
        median = statistics.median(found)
        print(f"{name:15} {median:10,.0f} events/s   {median / floor:5.2f} x pg_recvlogical   worst {min(found):,.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
