"""A small pipeline on the real stack: every process of `cdc up`, with Airflow's timeouts shortened."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event

import psutil

from cdc_pipeline.demo.airflow_api import AirflowApi, open_airflow
from cdc_pipeline.demo.pgbench import initialize_pgbench, running_pgbench
from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.launcher.control import down, process_states, start_and_wait
from cdc_pipeline.launcher.marked import SUPERVISOR, marked
from cdc_pipeline.launcher.parts import running
from cdc_pipeline.launcher.planning import plan
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.dag_ids import slice_dag_id
from cdc_pipeline.settings.file import parse_settings
from cdc_pipeline.settings.installation.endpoints import endpoints_of
from cdc_pipeline.settings.installation.state import PORT_NAMES, Installation, open_installation
from cdc_pipeline.wiring import Pipeline, open_pipeline
from tests.chaos.evidence import CURRENT, lake_rows, source_rows
from tests.chaos.impatient_airflow import (
    OPEN_REQUESTS,
    RESIDENT,
    holder,
    impatient,
    running_tasks,
    with_a_second_worker,
)
from tests.chaos.report import Report
from tests.chaos.waiting import TIMEOUT_SECONDS, wait_for
from tests.support.command_line import query
from tests.support.spark import QUICK_JAVA

PIPELINE = f"""
name: bank
lake: lake
slice_length: 2s
worker: {{{{runs: {{}}, lease: 6s, run_length: 10s, claim_slices: 1}}}}
driver: {{{{java_options: {QUICK_JAVA}}}}}
source: {{{{kind: postgres, publication: cdc_bank, slot: cdc_bank}}}}
tables:
  - name: bank.public.pgbench_history
"""
LIMIT_SECONDS = 12
BACKLOG_SECONDS = 14
SOON_SECONDS = 5
VICTIM = TableName(database="bank", schema="public", table="pgbench_history")
OPEN_RUNS = "SELECT 1 FROM dag_run WHERE state IN ('queued', 'running')"
FAILED_RUNS = "SELECT count(*) FROM dag_run WHERE state = 'failed'"
CLAIMS = """
SELECT owner, epoch, started_at, finished_at FROM cdc.claim WHERE state = 'applied' ORDER BY first_number
"""
WAITING = "SELECT 1 FROM cdc.slice WHERE state = 'registered' AND path IS NOT NULL LIMIT 1"
LONGER_THAN_A_BACKLOG = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    installation: Installation
    pipeline: Pipeline
    airflow: AirflowApi
    dag: str

    @property
    def victim_id(self) -> int:
        return self.pipeline.store.tables.table(VICTIM).table_id

    def named(self, name: str) -> list[psutil.Process]:
        return [process for process, found in marked(self.installation.identity).items() if found == name]

    def main_process(self, name: str) -> psutil.Process:
        process = next(state.pid for state in process_states(self.installation.home) if state.name == name)
        assert process is not None
        return psutil.Process(process)

    def worker(self) -> psutil.Process:
        """The process that has a claim of the victim open, once there is one: a task's, or a resident worker."""

        def at_work() -> psutil.Process | None:
            claim = self.pipeline.store.claims.open_claim(self.victim_id)
            return None if claim is None else holder(claim.owner, self.installation.identity)

        return wait_for(at_work, "a worker with a claim")

    def has_applied_everything(self) -> bool:
        return query(self.pipeline.endpoints.metadata_store_url, WAITING) == []

    def resident_workers(self) -> list[psutil.Process]:
        return [process for name in RESIDENT for process in self.named(name)]

    def has_request(self) -> bool:
        """Whether a slice run waits for a resident worker, or is at work in one."""
        return query(self.pipeline.endpoints.metadata_store_url, OPEN_REQUESTS) != []

    def is_quiet(self) -> bool:
        runs = query(self.pipeline.endpoints.airflow_database_url, OPEN_RUNS)
        return not runs and not running_tasks(self.installation.identity) and not self.has_request()

    def is_up(self) -> bool:
        return all(state.is_ready for state in process_states(self.installation.home))

    def failed_runs(self) -> int:
        return int(query(self.pipeline.endpoints.airflow_database_url, FAILED_RUNS)[0][0])

    def check_turns(self) -> None:
        """One worker at a time: no claim began before the one before it had ended, or under an older lease."""
        claims = query(self.pipeline.endpoints.metadata_store_url, CLAIMS)
        assert [epoch for _, epoch, _, _ in claims] == sorted(epoch for _, epoch, _, _ in claims)
        assert all(earlier[3] <= later[2] for earlier, later in pairwise(claims))

    def workers_since(self, began: datetime) -> int:
        """How many workers have applied claims that began after this time."""
        claims = query(self.pipeline.endpoints.metadata_store_url, CLAIMS)
        return len({owner for owner, _, started, _ in claims if started > began})

    @contextmanager
    def away(self, name: str) -> Iterator[None]:
        """Killed, and not started again inside the block."""
        supervisor = self.named(SUPERVISOR)[0]
        supervisor.suspend()
        try:
            self.main_process(name).kill()
            yield
        finally:
            supervisor.resume()


Strike = Callable[[Stack], None]
"""Makes a fault, and ends one that lasts."""


@contextmanager
def small_stack(runs: str) -> Iterator[Stack]:
    """`runs`: the setting `worker.runs`."""
    folder = Path(tempfile.mkdtemp(prefix="cdc-test-airflow-"))
    folder.chmod(0o711)
    config, home = folder / "pipeline.yml", folder / "home"
    document = PIPELINE.format(runs)
    config.write_text(document, encoding="utf-8")
    settings = parse_settings(document, path=config, environment={})
    try:
        with running(settings, config=config, home=home, parts=frozenset({"postgres"})) as endpoints:
            initialize_pgbench(endpoints.source_url, scale=1, environment=os.environ)
        installation = _started(settings, config, home)
        with ExitStack() as opened:
            endpoints = endpoints_of(settings, installation)
            pipeline = opened.enter_context(open_pipeline(settings, endpoints))
            airflow = opened.enter_context(open_airflow(endpoints))
            dag = slice_dag_id(VICTIM)
            airflow.wait_for_dags((dag, "cdc_snapshot", "cdc_backfill"), TIMEOUT_SECONDS)
            run = airflow.trigger("cdc_snapshot", {"poll_seconds": 1})
            airflow.wait_for_run("cdc_snapshot", run, TIMEOUT_SECONDS)
            yield Stack(installation=installation, pipeline=pipeline, airflow=airflow, dag=dag)
    finally:
        down(home)
        shutil.rmtree(folder)


def _started(settings: Settings, config: Path, home: Path) -> Installation:
    installation, described = plan(settings, config=config, installation=open_installation(home), free=PORT_NAMES)
    needed = with_a_second_worker(impatient(described, limit_seconds=LIMIT_SECONDS))
    start_and_wait(installation, needed, lambda _: None)
    return installation


def write_backlog(stack: Stack, *, seconds: float) -> None:
    """People write for so long while the victim's lease is taken: what they wrote is registered and waits."""
    lease = wait_for(lambda: _taken(stack), "the victim's lease")
    try:
        url = stack.pipeline.endpoints.source_url
        with running_pgbench(url, clients=2, transactions_per_second=20, environment=os.environ):
            Event().wait(seconds)
        ((position,),) = query(url, CURRENT)
        end = encode_position(int(position))
        streams, name = stack.pipeline.store.streams, stack.pipeline.settings.name
        wait_for(lambda: (streams.next_offset(name) or "") >= end, "the consumer")
    finally:
        stack.pipeline.store.leases.release(lease)


def _taken(stack: Stack) -> Lease | None:
    try:
        return stack.pipeline.store.leases.acquire(stack.victim_id, owner="the test", duration=LONGER_THAN_A_BACKLOG)
    except LeaseBusy:
        return None


@contextmanager
def paused(*processes: psutil.Process) -> Iterator[None]:
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def check_cell(stack: Stack, report: Report, case: str, strike: Strike) -> None:
    """The table is equal after a backlog in whose runs `strike` makes a fault. `case`: `place: fault`."""
    place, _, fault = case.partition(": ")
    with report.red_unless_done(f"Airflow: {place}", fault):
        write_backlog(stack, seconds=BACKLOG_SECONDS)
        before = datetime.now(UTC)
        stack.airflow.trigger(stack.dag, {})
        strike(stack)
        began = time.monotonic()
        wait_for(stack.has_applied_everything, "everything in the lake")
        took = timedelta(seconds=time.monotonic() - began)
        wait_for(stack.is_quiet, "every run to end")
        assert source_rows(stack.pipeline.endpoints.source_url, VICTIM) == lake_rows(stack.pipeline, VICTIM)
        stack.check_turns()
        wait_for(stack.is_up, "every process to be up again")
    workers = stack.workers_since(before)
    report.record(f"Airflow: {place}", fault, f"equal; one worker at a time, {workers} in turn", took)
