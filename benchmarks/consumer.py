"""B1: events per second from a real server's slot to registered slices, beside PostgreSQL's client and a plain loop.

Every arm reads the same changes through a slot of its own.
"""

import secrets
import select
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.arms import Arm, Contest
from benchmarks.bench import OURS, Bench, plus
from benchmarks.curves import Curve
from benchmarks.plain_loop import EVENT_KINDS, SCHEMA, PlainLoop
from benchmarks.results import RowFigures
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.sources.postgres.session import connect_for_replication
from cdc_pipeline.wiring import Pipeline
from tests.support.command_line import query
from tests.support.pipelines import consume, opened_pipeline, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_database, fresh_store
from tests.support.streams import database_of, run_sql

EVENTS_PER_FILE = 100_000
COLUMNS = ", ".join(f"{column.name} {column.type}" for column in SCHEMA.columns)
CREATE_ORDERS = f"CREATE TABLE orders ({COLUMNS}, PRIMARY KEY ({', '.join(SCHEMA.key)}))"
REGISTERED = "SELECT coalesce(sum(rows), 0) FROM cdc.slice"
ROW = """
    SELECT n, n % 50000, 'status ' || n % 4, n / 100.0, n % 2 = 0, date '2024-01-01' + (n % 300)::int,
           now(), now(), n / 7.0, 'a note of some length about order ' || n
"""
LOAD = f"""
DO $$ BEGIN FOR part IN {{first}} .. {{last}} LOOP
    INSERT INTO orders {ROW} FROM generate_series(part * {{inserts}} + 1, part * {{inserts}} + {{inserts}}) AS n;
    UPDATE orders SET amount = amount + 1, updated_at = now() WHERE order_id > part * {{inserts}};
    UPDATE orders SET status = 'shipped', updated_at = now()
        WHERE order_id > part * {{inserts}} AND order_id <= part * {{inserts}} + {{inserts}} / 2;
    COMMIT;
END LOOP; END $$
"""
"""Ten events for every four inserts: a transaction of `inserts` * 5 / 2."""
LOAD_SINGLE = f"""
DO $$ BEGIN FOR part IN {{first}} .. {{last}} LOOP
    IF part % 2 = 0 THEN INSERT INTO orders {ROW} FROM generate_series(part + 1, part + 1) AS n;
    ELSE UPDATE orders SET amount = amount + 1, updated_at = now() WHERE order_id = part; END IF;
    COMMIT;
END LOOP; END $$
"""
PEEK = """
SELECT count(*) FILTER (WHERE get_byte(data, 0) IN (73, 85))
FROM pg_logical_slot_peek_binary_changes('{}', NULL, NULL, 'proto_version', '1', 'publication_names', '{}')
"""
SERVER, CLIENT, LOOP = "server alone", "pg_recvlogical", "plain loop"
NAMES = {1_000: "1,000 rows a transaction", 10: "10 rows a transaction", 1: "1 row a transaction"}
SLOTS = {SERVER: "bench_server", CLIENT: "bench_client", LOOP: "bench_plain"}


def measure(bench: Bench) -> RowFigures:
    sizes = bench.sizes("B1")
    contests = []
    for size, events in zip(NAMES, (sizes["events"], sizes["small_events"], sizes["small_events"]), strict=True):
        with contest(bench, events=events, size=size) as contestants:
            contests.append(bench.clockwork.measure(contestants))
    values = dict[str, float | None]()
    lines: dict[str, list[tuple[float, float]]] = {}
    for found, size in zip(contests, NAMES, strict=True):
        for peer in (CLIENT, LOOP, SERVER):
            values[f"{found.name}: events/s over {peer}"] = found.speed(OURS, peer)
        for name, figures in found.arms.items():
            lines.setdefault(name, []).append((size, figures.rows_per_second))
    curve = Curve(title="Consumer", across="rows a transaction", upwards="events/s", lines=lines, logarithmic=True)
    return RowFigures(
        contests=tuple(contests), values=plus(values), sizes=sizes, curves={"consumer": curve} if lines else {}
    )


@contextmanager
def contest(bench: Bench, *, events: int, size: int) -> Iterator[Contest]:
    """`events` of each round, in transactions of `size`."""
    with ExitStack() as opened:
        url = opened.enter_context(fresh_database(bench.postgres))
        run_sql(url, CREATE_ORDERS)
        folder = bench.folder()
        ours = tuple(
            consumer_arm(bench, opened, url, name, more) for name, more in bench.variants("source", "slices").items()
        )
        for slot in SLOTS.values():
            run_sql(url, f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")

        def prepare(round_number: int) -> None:
            for slot in SLOTS.values():
                run_sql(url, f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
            run_sql(url, load(round_number, events, size))

        peers = (
            Arm(name=SERVER, run=lambda: peek(url)),
            Arm(name=CLIENT, run=lambda: receive(bench.postgres, url, events)),
            Arm(name=LOOP, run=lambda: loop(url, folder, events)),
        )
        yield Contest(
            name=NAMES[size],
            rows=events,
            arms=(*peers, *ours),
            prepare=prepare,
            parameters={"events": events, "columns": len(SCHEMA.columns)},
        )


def load(round_number: int, events: int, size: int) -> str:
    parts = events // size
    statement = LOAD_SINGLE if size == 1 else LOAD
    return statement.format(first=round_number * parts, last=(round_number + 1) * parts - 1, inserts=size * 2 // 5)


def consumer_arm(bench: Bench, opened: ExitStack, url: str, name: str, more: Mapping[str, Any]) -> Arm:
    """A consumer with its own slot and metadata store; sees what it registers."""
    store_url = opened.enter_context(fresh_store(bench.postgres))
    slot = f"{database_of(url)}_{secrets.token_hex(4)}"
    settings = pipeline_settings(
        bench.folder(), url, [{"name": "public.orders"}], **{**more, "source": {"slot": slot, **more.get("source", {})}}
    )
    pipeline = opened.enter_context(opened_pipeline(settings, store_url=store_url, spark_url=""))
    set_up_and_consume(pipeline)

    return Arm(name=name, run=lambda: register(pipeline, store_url))


def register(pipeline: Pipeline, store_url: str) -> int:
    """Consumes everything that is there now. Returns the number of rows that it registered."""
    ((before,),) = query(store_url, REGISTERED)
    consume(pipeline)
    ((after,),) = query(store_url, REGISTERED)
    return int(after - before)


def peek(url: str) -> int:
    """The server decodes and counts; nothing leaves it."""
    ((seen,),) = query(url, PEEK.format(SLOTS[SERVER], database_of(url)))
    return int(seen)


def receive(server: PostgresServer, url: str, events: int) -> int:
    """PostgreSQL's own client up to the end of the log, into nothing; so it is taken at its word."""
    ((end,),) = query(url, "SELECT pg_current_wal_lsn()")
    command = [str(server.program("pg_recvlogical")), "-d", url, "-S", SLOTS[CLIENT], "--start", "-f", "-"]
    options = ["-o", "proto_version=1", "-o", f"publication_names={database_of(url)}", "--no-loop", f"--endpos={end}"]
    subprocess.run([*command, *options], stdout=subprocess.DEVNULL, check=True)
    return events


def loop(url: str, folder: Path, events: int) -> int:
    """A Python value per field, one Parquet file per 100,000 events; neither registered nor confirmed."""
    plain, seen, rows = PlainLoop(EVENTS_PER_FILE), 0, 0
    start = "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names '\"{}\"')"
    with closing(connect_for_replication(url)) as connection, connection.cursor() as cursor:
        cursor.start_replication_expert(start.format(SLOTS[LOOP], database_of(url)), decode=False)
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
