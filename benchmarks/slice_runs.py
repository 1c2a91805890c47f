"""B10 and B7: what slice runs cost beyond their claims, and how many tables the whole stack keeps fresh.

Each arm is an installation of `cdc up` of its own, with Airflow. Its tables have a snapshot in the lake.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from threading import Event

import psutil
import structlog

from benchmarks.bench import Bench
from benchmarks.idle import at_rest, installed, processor_seconds
from benchmarks.results import RowFigures
from cdc_pipeline.demo.airflow_api import AirflowApi, open_airflow
from cdc_pipeline.launcher.control import up
from cdc_pipeline.launcher.marked import marked
from cdc_pipeline.launcher.parts import running
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.dag_ids import slice_dag_id
from cdc_pipeline.settings.installation.state import open_installation
from cdc_pipeline.wiring import Pipeline, open_pipeline
from snapshot.wiring import snapshot_runs
from tests.support.command_line import query
from tests.support.streams import run_sql

log = structlog.get_logger()

BEYOND, JVM_STARTS, FRESH = (
    "processor seconds beyond the claim",
    "JVM starts per slice run",
    "tables whose p99 freshness is at most 120 s",
)
FRESH_SECONDS = 120.0
TIMEOUT_SECONDS = 900.0
WARM_UPS = 2
POLL_SECONDS = 1.0
"""Asking takes processor seconds of the installation's servers too."""
LONGER_THAN_A_ROUND = timedelta(hours=1)
CREATE = (
    "CREATE TABLE idle_{0} AS SELECT n AS id, md5(n::text) AS note FROM generate_series(1, {1}) AS n",
    "ALTER TABLE idle_{0} ADD PRIMARY KEY (id)",
)
CHANGE = """
UPDATE idle_{} SET note = md5(random()::text)
WHERE id IN (SELECT 1 + floor(random() * {})::int FROM generate_series(1, {}))
"""
WAITING = "SELECT count(DISTINCT table_id) FROM cdc.slice WHERE state = 'registered' AND path IS NOT NULL"
RUNNING = "SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running')"
SLICE_RUNS = "SELECT count(*) FROM dag_run WHERE dag_id LIKE 'cdc_slice%' AND state IN ('success', 'failed')"
CLAIMS = "SELECT count(*) FROM cdc.claim WHERE state = 'applied' AND rows_read > 0"


Held = Mapping[TableName, tuple[Lease, LeaseKeeper]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running installation whose tables have `rows` rows each."""

    home: Path
    pipeline: Pipeline
    airflow: AirflowApi
    rows: int

    @property
    def tables(self) -> int:
        return len(self.pipeline.table_names())

    def change(self, rows: int) -> None:
        """About so many random rows of each table; one transaction each."""
        statements = [CHANGE.format(number, self.rows, rows) for number in range(self.tables)]
        run_sql(self.pipeline.endpoints.source_url, *statements)

    def waiting(self) -> int:
        """The number of tables with slices to apply."""
        return self._number(self.pipeline.endpoints.metadata_store_url, WAITING)

    def is_quiet(self) -> bool:
        """Whether everything is applied, and no run of Airflow goes on."""
        return self.waiting() == 0 and self._number(self.pipeline.endpoints.airflow_database_url, RUNNING) == 0

    def slice_runs(self) -> int:
        return self._number(self.pipeline.endpoints.airflow_database_url, SLICE_RUNS)

    def claims(self) -> int:
        return self._number(self.pipeline.endpoints.metadata_store_url, CLAIMS)

    def spent(self) -> float:
        """Processor seconds of all processes of the installation."""
        return sum(processor_seconds(self.home).values())

    def java(self) -> set[int]:
        return {process.pid for process in marked(open_installation(self.home).identity) if _is_java(process)}

    @contextmanager
    def held_back(self, rows: int) -> Iterator[Held]:
        """Changes rows of all tables. Inside the block their slices are registered, and only the leases apply them."""
        work = replace(self.pipeline.table_work, owner="benchmark", lease_length=LONGER_THAN_A_ROUND)
        held = dict[TableName, tuple[Lease, LeaseKeeper]]()
        wait_for(self.is_quiet, "the lake")
        with ExitStack() as holding:
            for name in self.pipeline.table_names():
                held[name] = holding.enter_context(work.leased(work.store.tables.table(name).table_id))
            self.change(rows)
            wait_for(lambda: self.waiting() == self.tables, "slices of all tables")
            yield held

    @staticmethod
    def _number(url: str, statement: str) -> int:
        return int(query(url, statement)[0][0])


@dataclass(slots=True, kw_only=True)
class Cost:
    """What rounds of slice runs took: processor seconds and JVM starts, one entry per round."""

    seconds: list[float] = field(default_factory=list)
    jvm_starts: int = 0
    runs: int = 0


def measure_runs(bench: Bench) -> RowFigures:
    """B10: a slice run of Airflow beside a bare call of what it does, for both values of `worker.runs`."""
    os.environ.pop("CDC_CONFIG", None)
    sizes = bench.sizes("B10")
    values = dict[str, float]()
    for runs in ("resident", "task"):
        ending = "" if runs == "resident" else f", worker.runs: {runs}"
        with running_stack(sizes, {"slice_length": "2s", "worker": {"runs": runs, "run_length": "1s"}}) as stack:
            bare, by_airflow, rest = costs(stack, sizes)
        log.info("slice runs", runs=runs, bare=bare, by_airflow=by_airflow, rest=rest)
        values[f"{BEYOND}{ending}"] = statistics.median(by_airflow.seconds) - statistics.median(bare.seconds)
        values[f"{JVM_STARTS}{ending}"] = by_airflow.jvm_starts / by_airflow.runs
        values[f"processor seconds of a bare call{ending}"] = statistics.median(bare.seconds)
        values[f"slice runs per table and round{ending}"] = by_airflow.runs / sizes["tables"] / sizes["rounds"]
        values[f"cores at rest{ending}"] = rest
    return RowFigures(values=values, sizes=sizes)


def costs(stack: Stack, sizes: Mapping[str, int]) -> tuple[Cost, Cost, float]:
    """Per table: of a bare call, and of a run by Airflow; each without what the installation takes at rest."""

    def bare_calls(held: Held) -> None:
        """Under the lease, so that no run of Airflow comes between."""
        store, worker = stack.pipeline.store, stack.pipeline.slice_worker()
        for name, (lease, keeper) in held.items():
            worker.apply_held(lease, keeper, name, before=store.tables.table(name).next_slice_number)

    bare, _ = cost_of(stack, sizes, bare_calls)
    by_airflow, rest = cost_of(stack, sizes, lambda _: None)
    return bare, by_airflow, rest


def cost_of(stack: Stack, sizes: Mapping[str, int], run: Callable[[Held], None]) -> tuple[Cost, float]:
    """Of all rounds behind the first, which warm up; and the share of a core that the installation takes at rest."""
    for _ in range(WARM_UPS):
        one_round(stack, sizes, run, Cost(), 0.0)
    rest, cost = sum(at_rest(stack.home, sizes["rest_seconds"]).values()), Cost()
    for _ in range(sizes["rounds"]):
        one_round(stack, sizes, run, cost, rest)
    return cost, rest


def one_round(stack: Stack, sizes: Mapping[str, int], run: Callable[[Held], None], cost: Cost, rest: float) -> None:
    """Has slices wait, calls `run`, waits until all is applied and nothing goes on. Adds what that took to `cost`."""
    with stack.held_back(sizes["changes"]) as held:
        began, spent, java, runs = time.monotonic(), stack.spent(), stack.java(), stack.slice_runs()
        own = time.process_time()
        run(held)
        own = time.process_time() - own
    wait_for(stack.is_quiet, "the lake")
    took = own + stack.spent() - spent - rest * (time.monotonic() - began)
    cost.seconds.append(took / stack.tables)
    cost.jvm_starts += len(stack.java() - java)
    cost.runs += stack.slice_runs() - runs


def measure_freshness(bench: Bench) -> RowFigures:
    """B7: `changes` random updates per table and minute, and how far behind the lake is, asked every second."""
    os.environ.pop("CDC_CONFIG", None)
    sizes = bench.sizes("B7")
    behind: dict[str, list[float]] = {}
    with (
        running_stack(sizes, {"slice_length": f"{sizes['slice_seconds']}s"}) as stack,
        ThreadPoolExecutor(1) as threads,
    ):
        stop = Event()
        writer = threads.submit(written, stack, sizes["changes"], stop)
        try:
            Event().wait(2.0 * sizes["slice_seconds"])
            before, claims, began = processor_seconds(stack.home), stack.claims(), time.monotonic()
            while time.monotonic() - began < 60.0 * sizes["minutes"]:
                for row in stack.pipeline.store.inspection.run("lag"):
                    behind.setdefault(str(row["source_table"]), []).append(float(row["seconds_behind"]))
                Event().wait(1)
            after, claims, took = processor_seconds(stack.home), stack.claims() - claims, time.monotonic() - began
        finally:
            stop.set()
        changes = writer.result()
    everything = [value for found in behind.values() for value in found]
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    return RowFigures(
        values={
            FRESH: float(sum(1 for found in behind.values() if percentile(found, 0.99) <= FRESH_SECONDS)),
            "seconds behind, median": statistics.median(everything),
            "seconds behind, p99": percentile(everything, 0.99),
            "claims per minute": claims / took * 60,
            "changes per table and minute": changes,
            "cores busy": sum(spent.values()) / took,
            "processor seconds per claim, all in": sum(spent.values()) / max(claims, 1),
            **{f"processor seconds per claim: {name}": seconds / max(claims, 1) for name, seconds in spent.items()},
        },
        sizes=sizes,
    )


def written(stack: Stack, changes: int, stop: Event) -> float:
    """Changes so many rows per table and minute until `stop` is set; returns how many there were in fact.

    One transaction per table and second. A second that the source was late is made up for in the next one.
    """
    began, rows = time.monotonic(), 0
    while not stop.wait(1):
        due = int((time.monotonic() - began) * changes / 60) - rows
        if due:
            stack.change(due)
            rows += due
    return rows / (time.monotonic() - began) * 60


@contextmanager
def running_stack(sizes: Mapping[str, int], more: Mapping[str, object]) -> Iterator[Stack]:
    """The tables are loaded and published, and Airflow knows their DAGs."""
    with installed(sizes["tables"], more) as (settings, config, home):
        with running(settings, config=config, home=home, parts=frozenset({"postgres"})) as endpoints:
            statements = [each.format(number, sizes["rows"]) for number in range(sizes["tables"]) for each in CREATE]
            run_sql(endpoints.source_url, *statements)
        endpoints = up(settings, config=config, home=home, on_states=lambda _: None)
        with open_pipeline(settings, endpoints) as pipeline, open_airflow(endpoints, timeout_seconds=300) as airflow:
            snapshot_runs(pipeline, poll_interval=timedelta(seconds=1)).take(pipeline.table_names(), slots=2)
            airflow.wait_for_dags(tuple(map(slice_dag_id, pipeline.table_names())), TIMEOUT_SECONDS)
            yield Stack(home=home, pipeline=pipeline, airflow=airflow, rows=sizes["rows"])


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            message = f"waited {TIMEOUT_SECONDS:.0f} s for {what}"
            raise TimeoutError(message)
        Event().wait(POLL_SECONDS)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not pass."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.Error:
        return False
