"""Processor time of an installation at rest, by process: Airflow without DAGs, few idle tables, many of them.

Each arm is an installation of `cdc up` of its own, with its tables' snapshots in the lake. Nobody writes: what is
counted is what it costs to wait. Ended children count with their parents.
"""

import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import psutil

from benchmarks.bench import Bench
from benchmarks.results import RowFigures
from cdc_pipeline.demo.airflow_api import open_airflow
from cdc_pipeline.launcher.control import down, start_and_wait, up
from cdc_pipeline.launcher.marked import marked
from cdc_pipeline.launcher.parts import running
from cdc_pipeline.launcher.planning import plan
from cdc_pipeline.launcher.processes import AIRFLOW_MIGRATE, with_dependencies
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.dag_ids import slice_dag_id
from cdc_pipeline.settings.file import load_settings
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.settings.installation.state import PORT_NAMES, open_installation
from cdc_pipeline.wiring import open_pipeline
from snapshot.wiring import snapshot_runs
from tests.support.command_line import query
from tests.support.streams import run_sql

CALM_SECONDS = 60
TRIGGERS = 5
TIMEOUT_SECONDS = 600
AIRFLOW = frozenset({"api-server", "scheduler", "dag-processor", "triggerer"})
CREATE = "CREATE TABLE idle_{} AS SELECT n AS id, md5(n::text) AS note FROM generate_series(1, 100) AS n"
KEY = "ALTER TABLE idle_{} ADD PRIMARY KEY (id)"
PARSED = "SELECT count(*) FROM serialized_dag"
STARTED_AFTER = """
SELECT extract(epoch FROM task_instance.start_date - dag_run.queued_at)
FROM dag_run JOIN task_instance USING (dag_id, run_id) WHERE dag_run.run_id = '{}'
"""


@contextmanager
def installed(tables: int, more: Mapping[str, Any] | None = None) -> Iterator[tuple[Settings, Path, Path]]:
    """Settings, their file, and the state folder; whatever runs there ends with the block. `more`: further settings."""
    with tempfile.TemporaryDirectory(prefix="cdc-idle-") as folder:
        Path(folder).chmod(0o711)
        config, home = Path(folder) / "pipeline.yml", Path(folder) / "home"
        document = {
            "name": "idle",
            "lake": "lake",
            "source": {"kind": "postgres"},
            "tables": [{"name": f"idle.public.idle_{number}"} for number in range(tables)],
            **(more or {}),
        }
        config.write_text(json.dumps(document), encoding="utf-8")
        try:
            yield load_settings(config, {}), config, home
        finally:
            down(home)


def processor_seconds(home: Path) -> dict[str, float]:
    """Of all processes of an installation since they began, by the name of their part.

    PostgreSQL's backends write over the mark that they inherit: they are found by their parent.
    """
    parts = marked(open_installation(home).identity)
    everyone = {child: name for process, name in parts.items() for child in children(process)} | parts
    seconds: dict[str, float] = defaultdict(float)
    for process, name in everyone.items():
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds[name] += times.user + times.system + times.children_user + times.children_system
    return seconds


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


def at_rest(home: Path, seconds: float) -> dict[str, float]:
    """The share of one core that each part takes while nobody asks for anything."""
    before, began = processor_seconds(home), time.monotonic()
    Event().wait(seconds)
    after, took = processor_seconds(home), time.monotonic() - began
    return {name: (after[name] - before[name]) / took for name in after}


def airflow_alone(seconds: float) -> dict[str, float]:
    """Airflow and its database with the settings of `cdc up`, and neither DAGs nor plugins."""
    with installed(1) as (settings, config, home):
        installation, described = plan(settings, config=config, installation=open_installation(home), free=PORT_NAMES)
        empty = home / "nothing"
        empty.mkdir()
        nothing = {"AIRFLOW__CORE__DAGS_FOLDER": str(empty), "AIRFLOW__CORE__PLUGINS_FOLDER": str(empty)}
        parts = with_dependencies(described, AIRFLOW | {AIRFLOW_MIGRATE})
        alone = tuple(replace(part, environment={**part.environment, **nothing}) for part in parts)
        start_and_wait(installation, alone, lambda _: None)
        Event().wait(min(CALM_SECONDS, seconds))
        return at_rest(home, seconds)


def idle_tables(tables: int, seconds: float) -> tuple[dict[str, float], float]:
    """The shares at rest, and the seconds from a manual trigger until its task runs."""
    with installed(tables) as (settings, config, home):
        with running(settings, config=config, home=home, parts=frozenset({"postgres"})) as endpoints:
            statements = [text.format(number) for number in range(tables) for text in (CREATE, KEY)]
            run_sql(endpoints.source_url, *statements)
        endpoints = up(settings, config=config, home=home, on_states=lambda _: None)
        with open_pipeline(settings, endpoints) as pipeline:
            snapshot_runs(pipeline, poll_interval=timedelta(seconds=1)).take(pipeline.table_names(), slots=2)
        dag_ids = tuple(slice_dag_id(table.table) for table in settings.tables)
        while query(endpoints.airflow_database_url, PARSED)[0][0] < tables:
            Event().wait(1)
        Event().wait(min(CALM_SECONDS, seconds))
        return at_rest(home, seconds), started_after(endpoints, dag_ids[0])


def started_after(endpoints: Endpoints, dag_id: str) -> float:
    """The median of some manual triggers."""
    found = []
    for _ in range(TRIGGERS):
        with open_airflow(endpoints) as airflow:
            run = airflow.trigger(dag_id, {})
            airflow.wait_for_run(dag_id, run, TIMEOUT_SECONDS)
        ((waited,),) = query(endpoints.airflow_database_url, STARTED_AFTER.format(run))
        found.append(float(waited))
    return statistics.median(found)


def measure(bench: Bench) -> RowFigures:
    """Shares of one core."""
    os.environ.pop("CDC_CONFIG", None)
    sizes = bench.sizes("rest")
    alone = airflow_alone(sizes["seconds"])
    values = {f"Airflow without DAGs: {name}": share for name, share in alone.items()}
    for tables in (sizes["few"], sizes["many"]):
        shares, waited = idle_tables(tables, sizes["seconds"])
        values |= {f"{tables} idle tables: {name}": share for name, share in shares.items()}
        values[f"{tables} idle tables: seconds from a manual trigger until it runs"] = waited
        values[f"{tables} idle tables over Airflow without DAGs"] = sum(shares.values()) / sum(alone.values())
    return RowFigures(values=values, sizes=sizes)
