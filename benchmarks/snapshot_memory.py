"""Peak memory of a snapshot's worker process, for a small table and for one that is many times as large.

    python -m benchmarks.snapshot_memory [sc://host:port] [rows] [times]

Each table is snapshotted by a process of its own, orchestrator and one worker slot in it; the Spark driver is another
process, whose heap has a fixed size. Partitioned tables write one staging file per partition and snapshot file.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.driver import chosen_driver
from cdc_pipeline.launcher.postgres import PostgresServer
from tests.support.pipelines import opened_pipeline, pipeline_settings, set_up_and_consume, take_snapshot
from tests.support.postgres import fresh_database, started_server
from tests.support.streams import run_sql

ROWS, TIMES = 300_000, 10
MEASURE = "--measure"
CREATE = """
CREATE TABLE events (id bigint PRIMARY KEY, kind text, body text, amount numeric(12,2), happened timestamptz);
INSERT INTO events SELECT n, 'kind ' || n % 7, repeat(md5(n::text), 4), n / 100.0,
    timestamptz '2024-01-01' + n % 300 * interval '1 day' FROM generate_series(1, {rows}) AS n
"""
TABLE = {
    "name": "public.events",
    "update_time": "happened",
    "partition_by": [{"column": "happened", "unit": "month"}],
}


def measure(source_url: str, store_url: str, spark_url: str) -> None:
    """In the process that is measured: prints its peak memory before the snapshot and after it, and the rows."""
    with tempfile.TemporaryDirectory() as folder:
        settings = pipeline_settings(Path(folder), source_url, [TABLE])
        with opened_pipeline(settings, store_url=store_url, spark_url=spark_url) as pipeline:
            set_up_and_consume(pipeline)
            before = _peak_bytes()
            (snapshot,) = take_snapshot(pipeline, *pipeline.table_names())
    sys.stdout.write(json.dumps({"before": before, "after": _peak_bytes(), "rows": snapshot.rows}))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def snapshot_in_process(server: PostgresServer, spark_url: str, rows: int) -> dict[str, int]:
    with fresh_database(server) as source_url, fresh_database(server) as store_url:
        run_sql(source_url, CREATE.format(rows=rows))
        command = [sys.executable, "-m", "benchmarks.snapshot_memory", MEASURE, source_url, store_url, spark_url]
        outcome = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, int] = json.loads(outcome.stdout.splitlines()[-1])
    return found


def main(words: Sequence[str]) -> None:
    if words[:1] == [MEASURE]:
        measure(*words[1:])
        return
    peaks = []
    with chosen_driver(words) as (spark_url, given), started_server(dict(os.environ)) as server:
        rows, times = [*given, *(ROWS, TIMES)[len(given) :]]
        for size in (rows, rows * times):
            found = snapshot_in_process(server, spark_url, size)
            peaks.append(found["after"])
            mebibytes = {name: round(found[name] / 2**20) for name in ("before", "after")}
            print(f"{found['rows']:>12,} rows   peak {mebibytes['after']} MiB   before it {mebibytes['before']} MiB")
    print(f"{times} x the rows take {peaks[1] / peaks[0]:.2f} x the memory")


if __name__ == "__main__":
    main(sys.argv[1:])
