"""Peak memory of a worker's snapshot and of a consumer's large transaction, each in a process of its own.

A process is begun for each size, so that nothing which an earlier run left behind is counted. It has the allocators of
an installation's processes. The Spark driver is another process, whose heap has a fixed size.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.results import RowFigures
from benchmarks.usage import peak_bytes
from cdc_pipeline.launcher.processes import ALLOCATORS
from tests.support.command_line import query
from tests.support.pipelines import consume, opened_pipeline, pipeline_settings, set_up_and_consume, take_snapshot
from tests.support.postgres import fresh_database, fresh_store
from tests.support.streams import run_sql

CREATE_EVENTS = """
CREATE TABLE events (id bigint PRIMARY KEY, kind text, body text, amount numeric(12,2), happened timestamptz);
INSERT INTO events SELECT n, 'kind ' || n % 7, repeat(md5(n::text), 4), n / 100.0,
    timestamptz '2024-01-01' + n % 300 * interval '1 day' FROM generate_series(1, {rows}) AS n
"""
EVENTS = {
    "name": "public.events",
    "update_time": "happened",
    "partition_by": [{"column": "happened", "unit": "month"}],
}
CREATE_ORDERS = """
CREATE TABLE orders (id bigint PRIMARY KEY, kind text, note text, amount numeric(12,2), changed timestamptz)
"""
CHANGE = """
INSERT INTO orders
    SELECT n, 'kind ' || n % 7, 'a note of some length about order ' || n, n / 100.0, now()
    FROM generate_series(1, {changes} / 2) AS n;
UPDATE orders SET amount = amount + 1 WHERE id % 5 <> 0;
DELETE FROM orders WHERE id % 5 = 0
"""
REGISTERED = "SELECT coalesce(sum(rows), 0) FROM cdc.slice"


class LostRowsError(Exception):
    """A process saw more or fewer rows than there are."""


@cache
def snapshot_peaks(bench: Bench, *rows: int) -> tuple[int, ...]:
    """Bytes, by the number of rows. Partitioned tables write one staging file per partition and snapshot file."""
    return tuple(_snapshot_peak(bench, each) for each in rows)


def measure_large_transaction(bench: Bench) -> RowFigures:
    """Half of the changes of a transaction are inserts, the others update and delete."""
    sizes = bench.sizes("large-transaction")
    small, large = (_transaction_peak(bench, sizes["changes"] * times) for times in (1, sizes["times"]))
    values = {"peak in MB": small / 1e6, "peak in MB, times the changes": large / 1e6, "ratio": large / small}
    return RowFigures(values=values, sizes=sizes)


def _snapshot_peak(bench: Bench, rows: int) -> int:
    with fresh_database(bench.postgres) as source_url, fresh_store(bench.postgres) as store_url:
        run_sql(source_url, CREATE_EVENTS.format(rows=rows))
        return _in_process("snapshot", rows, source_url, store_url, bench.spark_url)


def _transaction_peak(bench: Bench, changes: int) -> int:
    with fresh_database(bench.postgres) as source_url, fresh_store(bench.postgres) as store_url:
        run_sql(source_url, CREATE_ORDERS)
        with tempfile.TemporaryDirectory() as folder:
            settings = pipeline_settings(Path(folder), source_url, [{"name": "public.orders"}])
            with opened_pipeline(settings, store_url=store_url, spark_url="") as pipeline:
                set_up_and_consume(pipeline)
            run_sql(source_url, CHANGE.format(changes=changes))
            return _in_process("consume", changes // 2 * 2, source_url, store_url, folder)


def _in_process(what: str, rows: int, *words: str) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", what, *words]
    environment = {**os.environ, **ALLOCATORS}
    outcome = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found = json.loads(outcome.stdout.splitlines()[-1])
    if found["rows"] != rows:
        message = f"the process that does {what} saw {found['rows']} rows of {rows}"
        raise LostRowsError(message)
    return int(found["peak_bytes"])


def snapshot(source_url: str, store_url: str, spark_url: str) -> int:
    """In the process that is measured: orchestrator and one worker slot."""
    with tempfile.TemporaryDirectory() as folder:
        settings = pipeline_settings(Path(folder), source_url, [EVENTS])
        with opened_pipeline(settings, store_url=store_url, spark_url=spark_url) as pipeline:
            set_up_and_consume(pipeline)
            (taken,) = take_snapshot(pipeline, *pipeline.table_names())
            return taken.rows or 0


def consume_all(source_url: str, store_url: str, folder: str) -> int:
    """In the process that is measured."""
    settings = pipeline_settings(Path(folder), source_url, [{"name": "public.orders"}])
    with opened_pipeline(settings, store_url=store_url, spark_url="") as pipeline:
        consume(pipeline)
    ((rows,),) = query(store_url, REGISTERED)
    return int(rows)


def main(words: Sequence[str]) -> None:
    measured: dict[str, Callable[..., int]] = {"snapshot": snapshot, "consume": consume_all}
    rows = measured[words[0]](*words[1:])
    sys.stdout.write(json.dumps({"rows": rows, "peak_bytes": peak_bytes(os.getpid())}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
