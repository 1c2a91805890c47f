"""Peak memory of the consumer, for a small transaction and for one that is many times as large.

    python -m benchmarks.large_transaction [changes] [times]

Each transaction is consumed by a process of its own: half of its changes are inserts, the others update and delete.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.support.command_line import query
from tests.support.pipelines import consume, opened_pipeline, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_database, fresh_store, started_server
from tests.support.streams import run_sql

CHANGES, TIMES = 500_000, 10
MEASURE = "--measure"
CREATE = "CREATE TABLE orders (id bigint PRIMARY KEY, kind text, note text, amount numeric(12,2), changed timestamptz)"
CHANGE = """
INSERT INTO orders
    SELECT n, 'kind ' || n % 7, 'a note of some length about order ' || n, n / 100.0, now()
    FROM generate_series(1, {changes} / 2) AS n;
UPDATE orders SET amount = amount + 1 WHERE id % 5 <> 0;
DELETE FROM orders WHERE id % 5 = 0
"""
REGISTERED = "SELECT coalesce(sum(rows), 0) FROM cdc.slice"


def measure(source_url: str, store_url: str, folder: str) -> None:
    """In the process that is measured: prints its peak memory before the transaction is read and after it."""
    settings = pipeline_settings(Path(folder), source_url, [{"name": "public.orders"}])
    with opened_pipeline(settings, store_url=store_url, spark_url="") as pipeline:
        before, started = _peak_bytes(), time.perf_counter()
        consume(pipeline)
        seconds = time.perf_counter() - started
    sys.stdout.write(json.dumps({"before": before, "after": _peak_bytes(), "seconds": seconds}))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def consume_in_process(server: PostgresServer, changes: int) -> dict[str, float]:
    with (
        fresh_database(server) as source_url,
        fresh_store(server) as store_url,
        tempfile.TemporaryDirectory() as folder,
    ):
        run_sql(source_url, CREATE)
        settings = pipeline_settings(Path(folder), source_url, [{"name": "public.orders"}])
        with opened_pipeline(settings, store_url=store_url, spark_url="") as pipeline:
            set_up_and_consume(pipeline)
        run_sql(source_url, CHANGE.format(changes=changes))
        command = [sys.executable, "-m", "benchmarks.large_transaction", MEASURE, source_url, store_url, folder]
        outcome = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        ((rows,),) = query(store_url, REGISTERED)
    found: dict[str, float] = json.loads(outcome.stdout.splitlines()[-1])
    return found | {"rows": int(rows)}


def main(words: Sequence[str]) -> None:
    if words[:1] == [MEASURE]:
        measure(*words[1:])
        return
    given = [int(word) for word in words]
    changes, times = [*given, *(CHANGES, TIMES)[len(given) :]]
    peaks = []
    with started_server(dict(os.environ)) as server:
        for size in (changes, changes * times):
            found = consume_in_process(server, size)
            peaks.append(found["after"])
            mebibytes = {name: round(found[name] / 2**20) for name in ("before", "after")}
            print(
                f"{found['rows']:>12,} changes   peak {mebibytes['after']} MiB   before it {mebibytes['before']} MiB"
                f"   {found['rows'] / found['seconds']:,.0f} a second"
            )
    print(f"{times} x the changes take {peaks[1] / peaks[0]:.2f} x the memory")


if __name__ == "__main__":
    main(sys.argv[1:])
