"""B9: how long after its commit in the source a row can be read in the lake, by the whole stack under a steady load.

Each slice length is an installation of `cdc up` of its own, with Airflow. Rows carry the source's clock when they were
written. The reader waits for the next commit of the lake's log and reads the files that it adds: half of the events
are inserts, half are updates of random rows, so these files have each event that no later one of its slice replaced.
"""

import io
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from urllib.parse import unquote

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.results import RowFigures
from benchmarks.slice_runs import Stack, running_stack
from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.delta_log import Commit, DeltaLog
from cdc_pipeline.sources.postgres.session import session

log = structlog.get_logger()

BEYOND_SLICE = "p99 freshness beyond the slice length, seconds"
WRITES_PER_SECOND = 10
POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 600.0
MOST_BEHIND_SECONDS = 2.0
"""Of the writer: what comes later than this is not the rate that the row names."""
WARM_UP_SLICES = 2
SHARES = {"median": 50, "p99": 99, "most": 100}
"""Name of a figure -> its percentile."""
WRITE = """
WITH inserted AS (
    INSERT INTO idle_0 SELECT %(next)s + n, extract(epoch FROM clock_timestamp())::text
    FROM generate_series(1, %(half)s) AS n
)
UPDATE idle_0 SET note = extract(epoch FROM clock_timestamp())::text
WHERE id = ANY(ARRAY(SELECT 1 + floor(random() * %(rows)s)::bigint FROM generate_series(1, %(half)s)))
"""


def measure(bench: Bench) -> RowFigures:
    os.environ.pop("CDC_CONFIG", None)
    sizes = bench.sizes("B9")
    values = dict[str, float]()
    for kind in ("short", "long"):
        length, slices = sizes[f"{kind}_slice"], sizes[f"{kind}_slices"]
        with running_stack({"tables": 1, "rows": sizes["rows"]}, {"slice_length": f"{length}s"}) as stack:
            for rate in (sizes["slow"], sizes["fast"]):
                waited = seconds_until_readable(stack, rate=rate, slice_seconds=length, slices=slices)
                name = f"{length} s slices, {rate:,} events/s"
                values |= {f"{name}: {title}": float(np.percentile(waited, share)) for title, share in SHARES.items()}
                beyond = values[f"{name}: p99"] - length
                values[BEYOND_SLICE] = max(beyond, values.get(BEYOND_SLICE, beyond))
                log.info("freshness", length=length, rate=rate, rows=len(waited), beyond=beyond)
    return RowFigures(values=values, sizes=sizes)


def seconds_until_readable(stack: Stack, *, rate: int, slice_seconds: int, slices: int) -> NDArray[np.float64]:
    """One value per row that became readable, of the rows that were written after the warm-up, until the lake has all.

    `rate`: events per second.
    """
    stop = Event()
    warm = time.time() + WARM_UP_SLICES * slice_seconds
    end = warm + slices * slice_seconds
    found: list[NDArray[np.float64]] = []
    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(written, stack, rate, stop)
        try:
            for written_at, readable_at in readable_rows(stack, writer):
                measured = written_at[(written_at >= warm) & (written_at < end)]
                found.append(readable_at - measured)
                if written_at.size and written_at.max() >= end:
                    break
        finally:
            stop.set()
        writer.result()
    return np.concatenate(found)


def readable_rows(stack: Stack, writer: Future[None]) -> Iterator[tuple[NDArray[np.float64], float]]:
    """Yields per commit from now on: when its rows were written, and when they could be read; seconds since 1970."""
    (table,) = stack.pipeline.table_names()
    lake_log = DeltaLog(stack.pipeline.objects, lake_key(table))
    version = lake_log.latest_version() or 0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline and not writer.done():
        commit = lake_log.read(version + 1)
        if commit is None:
            Event().wait(POLL_SECONDS)
            continue
        readable_at, version = time.time(), version + 1
        yield np.concatenate([np.zeros(0), *new_rows(stack, lake_log, commit)]), readable_at
    if writer.done():
        writer.result()
    message = f"the lake had not all rows after {TIMEOUT_SECONDS:.0f} s"
    raise TimeoutError(message)


def new_rows(stack: Stack, lake_log: DeltaLog, commit: Commit) -> Iterator[NDArray[np.float64]]:
    """Yields when the rows of each new file were written. A file that only got a deletion vector is not new."""
    removed = {action["remove"]["path"] for action in commit.actions if "remove" in action}
    for action in commit.actions:
        added = action.get("add")
        if added and added["dataChange"] and added["path"] not in removed:
            content = stack.pipeline.objects.get(f"{lake_log.table_key}/{unquote(added['path'])}")
            notes = pq.read_table(io.BytesIO(content), columns=["note"])["note"]
            yield pc.cast(notes, "float64").to_numpy()


def written(stack: Stack, rate: int, stop: Event) -> None:
    """Writes events evenly until `stop` is set; one transaction per write. Raises TimeoutError if it cannot keep up."""
    half = rate // WRITES_PER_SECOND // 2
    with session(stack.pipeline.endpoints.source_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT max(id) FROM idle_0")
        ((highest,),) = cursor.fetchall()
        began, writes = time.monotonic(), 0
        while not stop.wait(max(0.0, began + writes / WRITES_PER_SECOND - time.monotonic())):
            cursor.execute(WRITE, {"next": highest, "half": half, "rows": stack.rows})
            connection.commit()
            highest, writes = highest + half, writes + 1
        behind = time.monotonic() - began - writes / WRITES_PER_SECOND
    if behind > MOST_BEHIND_SECONDS:
        message = f"the source took {rate} events/s {behind:.1f} s too late"
        raise TimeoutError(message)
