"""A small pipeline on the real stack: every process of `cdc up`, with Airflow's timeouts shortened."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event

import psutil

from cdc_pipeline.demo.airflow_api import AirflowApi, open_airflow
from cdc_pipeline.demo.pgbench import initialize_pgbench, running_pgbench
from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.installation.endpoints import endpoints_of
from cdc_pipeline.installation.state import PORT_NAMES, Installation, open_installation
from cdc_pipeline.launcher.control import down, process_states, start_and_wait
from cdc_pipeline.launcher.marked import SUPERVISOR, marked
from cdc_pipeline.launcher.parts import running
from cdc_pipeline.launcher.planning import plan
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.record import TableName, encode_position
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.dag_ids import slice_dag_id
from cdc_pipeline.settings.file import parse_settings
from cdc_pipeline.wiring import Pipeline, open_pipeline
from tests.chaos.evidence import CURRENT
from tests.chaos.impatient_airflow import holder, impatient, running_tasks
from tests.chaos.waiting import TIMEOUT_SECONDS, beside, wait_for
from tests.support.command_line import query
from tests.support.spark import QUICK_JAVA

PIPELINE = f"""
name: bank
lake: lake
slice_length: 2s
worker: {{runs: task, lease: 6s, claim_slices: 1}}
driver: {{java_options: {QUICK_JAVA}}}
source: {{kind: postgres, publication: cdc_bank, slot: cdc_bank}}
tables:
  - name: bank.public.pgbench_history
"""
LIMIT_SECONDS = 12
VICTIM = TableName(database="bank", schema="public", table="pgbench_history")
TRIES = """
SELECT id::text, dag_id || ' try ' || try_number FROM task_instance
UNION ALL SELECT task_instance_id::text, dag_id || ' try ' || try_number FROM task_instance_history
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
        """The task process that has a claim of the victim open, once there is one."""

        def at_work() -> psutil.Process | None:
            claim = self.pipeline.store.claims.open_claim(self.victim_id)
            return None if claim is None else holder(claim.owner, self.installation.identity)

        return wait_for(at_work, "a worker with a claim")

    def has_applied_everything(self) -> bool:
        return query(self.pipeline.endpoints.metadata_store_url, WAITING) == []

    def running_tasks(self) -> frozenset[str]:
        return running_tasks(self.installation.identity)

    def is_quiet(self) -> bool:
        return not self.running_tasks()

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


@contextmanager
def small_stack() -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="cdc-test-airflow-"))
    folder.chmod(0o711)
    config, home = folder / "pipeline.yml", folder / "home"
    config.write_text(PIPELINE, encoding="utf-8")
    settings = parse_settings(PIPELINE, path=config, environment={})
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
    start_and_wait(installation, impatient(described, limit_seconds=LIMIT_SECONDS), lambda _: None)
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


@dataclass(slots=True, kw_only=True)
class Watch:
    """Which tries of tasks were alive at the same time; looked at about five times a second."""

    stack: Stack
    alive: list[tuple[float, frozenset[str]]] = field(default_factory=list)

    def looking(self) -> AbstractContextManager[None]:
        def look(stop: Event) -> None:
            while not stop.wait(0.2):
                self.alive.append((time.monotonic(), self.stack.running_tasks()))

        return beside(look)

    def together(self) -> tuple[tuple[str, ...], timedelta]:
        """The tries that may work on the victim and were alive together, and for how long two of them were."""
        tries: dict[str, str] = dict(query(self.stack.pipeline.endpoints.airflow_database_url, TRIES))
        seconds, names = 0.0, set[str]()
        for (before, _), (now, alive) in pairwise(self.alive):
            mine = {name for one in alive if (name := tries.get(one, "")).startswith((self.stack.dag, "cdc_backfill"))}
            if len(mine) > 1:
                seconds += now - before
                names |= mine
        return tuple(sorted(names)), timedelta(seconds=seconds)
