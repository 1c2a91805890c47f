"""The script of `cdc demo`: the main job on live data with one worker killed in a claim, and a proof at the end."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cdc_pipeline.demo.airflow_api import AirflowApi, open_airflow
from cdc_pipeline.demo.sources import DemoSource
from cdc_pipeline.demo.workload import Workload
from cdc_pipeline.errors import CdcError, SettingsError
from cdc_pipeline.launcher.airflow import ADMINISTRATOR
from cdc_pipeline.launcher.control import down, up
from cdc_pipeline.launcher.display import progress
from cdc_pipeline.launcher.processes import WARM_UP, WORKER
from cdc_pipeline.launcher.rights import become_account
from cdc_pipeline.operations.verification import Verified
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.dag_ids import slice_dag_id
from cdc_pipeline.settings.file import load_settings
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.settings.installation.state import home_of
from cdc_pipeline.wiring import Pipeline, open_pipeline, utc_now

SLICES_PER_TABLE = 3
TIMEOUT_SECONDS = 300.0
VICTIM, FIRST = "orders", "products"
TRANSACTIONS_PER_SECOND = 60.0
_POLL_SECONDS = 0.2
_HELD_BACK_SECONDS = 8.0
_WITHOUT_CUTOFF = timedelta(hours=1)
"""How far the backfill reaches back for tables that began without a snapshot: a demo takes minutes."""


@dataclass(slots=True, kw_only=True)
class Phases:
    """Duration of each part of the demo in seconds, in order."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, title: str) -> Iterator[Callable[[str], None]]:
        """Yields a function that shows what the demo waits for."""
        started = time.monotonic()
        with self.console.status(title) as status:
            yield lambda words: status.update(f"{title}: {words}")
        self.seconds[title] = time.monotonic() - started
        self.console.print(f"[green]✓[/green] {title} [dim]{self.seconds[title]:.1f} s[/dim]")

    def show_first(self, verdict: Verified) -> None:
        """Shows the first verdict, and how long after the start it was known."""
        words = "equals its source" if verdict.is_equal else "does NOT equal its source"
        spent = sum(self.seconds.values())
        self.console.print(f"after {spent:.0f} s the first table, {verdict.table}, {words} at {verdict.position}")


def run_demo(folder: Path, console: Console, source: DemoSource) -> bool:
    """Returns whether lake equals source in every table. All processes stay up; Ctrl-C or an error ends them."""
    _refuse_variables(os.environ)
    become_account([folder], say=console.print)
    config = source.prepare(folder)
    settings = load_settings(config)
    home = home_of(settings, os.environ)
    phases = Phases(console=console)
    try:
        with phases.phase(source.title):
            written_url = source.begin(settings, config)
        started = time.monotonic()
        with progress(console) as on_states:
            endpoints = up(settings, config=config, home=home, on_states=on_states, later={WARM_UP, WORKER})
        phases.seconds["processes up"] = time.monotonic() - started
        with (
            open_pipeline(settings, endpoints) as pipeline,
            open_airflow(endpoints, timeout_seconds=TIMEOUT_SECONDS) as airflow,
        ):
            writers = Workload(
                written_url or endpoints.source_url,
                chance=random.Random(7),
                transactions_per_second=TRANSACTIONS_PER_SECOND,
                shop=source.shop,
            )
            verdicts = _main_job(pipeline, airflow, phases, writers, source)
            _show_verdicts(pipeline, verdicts, console)
    except BaseException:
        # A second Ctrl-C must not interrupt this and leave processes behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        down(home)
        raise
    _show_phases(phases, console)
    _show_end(settings, endpoints, config, console)
    return all(verdict.is_equal for verdict in verdicts)


def _refuse_variables(environment: Mapping[str, str]) -> None:
    """Raises SettingsError for variables of another pipeline: the demo would write to its source or end its servers."""
    keys = {"CDC_HOME", *(f"CDC_{key}".upper() for key in Settings.model_fields)}
    named = sorted(name for name in environment if name.upper().partition("__")[0] in keys)
    if named:
        raise SettingsError(
            f"the demo's settings are overridden by {', '.join(named)}",
            expected="a demo with servers and a state folder of its own",
            remedy="unset these variables, and run the demo again",
        )


def _main_job(
    pipeline: Pipeline, airflow: AirflowApi, phases: Phases, workload: Workload, source: DemoSource
) -> tuple[Verified, ...]:
    tables = pipeline.table_names()
    dags = tuple(slice_dag_id(table) for table in tables)
    with phases.phase("Airflow: one DAG per table, snapshot, backfill, maintenance"):
        airflow.wait_for_dags((*dags, "cdc_snapshot", "cdc_backfill", "cdc_maintenance"), TIMEOUT_SECONDS)
    # The first runs of all tables at once would take the processor from the first proof, or begin tables empty.
    _set_paused(airflow, dags, paused=True)
    workload.start()
    try:
        if pipeline.source.capabilities.copies_tables:
            _take_snapshot(pipeline, airflow, tables, phases)
        elif source.exported:
            _load_exports(pipeline.settings.folder, source.exported, tables, phases)
        _set_paused(airflow, dags, paused=False)
        with phases.phase("slice DAGs: woken by each slice; one worker gets kill -9 in a claim") as show:
            _kill_a_worker(pipeline, tables, show)
            _wait_for_slices(pipeline, tables, show)
        with phases.phase("slice DAGs paused, and the writers end: a backlog"):
            _set_paused(airflow, dags, paused=True)
            Event().wait(_HELD_BACK_SECONDS)
    finally:
        counts = workload.stop()
    phases.console.print("the sessions did", ", ".join(f"{number} {kind}" for kind, number in counts.items()))
    with phases.phase("backfill DAG: every table's backlog applied from the cutoff on"):
        _backfill(pipeline, airflow, tables)
        _set_paused(airflow, dags, paused=False)
    with phases.phase("proof: every row of source and lake compared at one position") as show:
        show("the last slices")
        pipeline.slice_runs().apply(tables)
        show("reading both sides")
        return source.verify(pipeline, tables)


def _set_paused(airflow: AirflowApi, dags: tuple[str, ...], *, paused: bool) -> None:
    for dag in dags:
        airflow.set_paused(dag, paused=paused)


def _take_snapshot(pipeline: Pipeline, airflow: AirflowApi, tables: tuple[TableName, ...], phases: Phases) -> None:
    """A lake without a snapshot begins with the first event, and is compared at the end alone."""
    with phases.phase("snapshot DAG: initial lake at one cutoff, while four sessions write"):
        run = airflow.trigger("cdc_snapshot", {"poll_seconds": 1})
        airflow.wait_for_run("cdc_snapshot", run, TIMEOUT_SECONDS)
    with phases.phase(f"first proof: every row of {FIRST} compared at one position, while the sessions write"):
        (first,) = pipeline.verification().verify([table for table in tables if table.table == FIRST])
    phases.show_first(first)


def _load_exports(folder: Path, exported: str, tables: tuple[TableName, ...], phases: Phases) -> None:
    """Begins each table with its exported files, by the command that people run for it."""
    with phases.phase(
        "cdc snapshot --from: the lake begins with the full load's files, while four sessions write"
    ) as show:
        for table in tables:
            show(str(table))
            place = folder / exported.format(schema=table.schema, table=table.table)
            words = ["snapshot", str(table), "--from", str(place), "--as-of", "start"]
            ended = subprocess.run(
                [sys.executable, "-m", "cdc_pipeline", *words, "--config", str(folder / "pipeline.yml")],
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode:
                raise CdcError(f"cdc {' '.join(words)} failed:\n{ended.stderr}", remedy="correct what it names")


def _kill_a_worker(pipeline: Pipeline, tables: tuple[TableName, ...], show: Callable[[str], None]) -> None:
    """Sends kill -9 to the process that works on a claim, and waits until another one has applied the claim."""
    victim = next(table for table in tables if table.table == VICTIM)
    table_id = pipeline.store.tables.table(victim).table_id
    show(f"waiting for a worker in the middle of a claim of {victim}")
    claim = _wait_until(lambda: pipeline.store.claims.open_claim(table_id))
    process = int(claim.owner.split(":")[1])
    os.kill(process, signal.SIGKILL)
    show(f"process {process} killed in claim {claim.first_number} to {claim.last_number}; waiting for another one")
    _wait_until(lambda: pipeline.store.lake_positions.lake_position(table_id).applied_through >= claim.last_number)


def _wait_for_slices(pipeline: Pipeline, tables: tuple[TableName, ...], show: Callable[[str], None]) -> None:
    def has_enough(table: TableName) -> bool:
        return applied_slices(pipeline, table) >= SLICES_PER_TABLE

    for table in tables:
        show(f"{SLICES_PER_TABLE} slices of {table}")
        _wait_until(partial(has_enough, table))


def applied_slices(pipeline: Pipeline, table: TableName) -> int:
    """The number of non-empty slices that the lake has applied."""
    table_id = pipeline.store.tables.table(table).table_id
    through = pipeline.store.lake_positions.lake_position(table_id).applied_through
    return sum(1 for row in pipeline.store.slices.slices(table_id, 1, through) if row.rows and row.state == "applied")


def _backfill(pipeline: Pipeline, airflow: AirflowApi, tables: tuple[TableName, ...]) -> None:
    cutoffs = [pipeline.store.tables.table(table).cutoff_time for table in tables]
    known = [cutoff for cutoff in cutoffs if cutoff is not None]
    start = min(known, default=utc_now() - _WITHOUT_CUTOFF).replace(minute=0, second=0, microsecond=0)
    conf = {"tables": [str(table) for table in tables]}
    backfill = airflow.backfill("cdc_backfill", start=start, end=utc_now(), conf=conf)
    airflow.wait_for_backfill(backfill, TIMEOUT_SECONDS)


def _wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise CdcError(
                f"the demo waited {TIMEOUT_SECONDS:.0f} s without success",
                remedy="read the logs in .cdc/logs beside the demo's pipeline.yml",
            )
        Event().wait(_POLL_SECONDS)
    return found


def _show_verdicts(pipeline: Pipeline, verdicts: tuple[Verified, ...], console: Console) -> None:
    lag = {row["source_table"]: row for row in pipeline.store.inspection.run("lag")}
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("table", "rows in\nsource", "rows in\nlake", "rows that\ndiffer", "as of\nposition", "as of\ntime"):
        table.add_column(name, no_wrap=True)
    table.add_column("slices\napplied")
    table.add_column("behind")
    for verdict in verdicts:
        found = verdict.comparison
        table.add_row(
            str(verdict.table),
            *(
                ("?", "?", "?")
                if found is None
                else map(str, (found.source_rows, found.lake_rows, found.differing_rows))
            ),
            verdict.position,
            f"{verdict.time:%H:%M:%S}",
            str(applied_slices(pipeline, verdict.table)),
            f"{lag[str(verdict.table)]['seconds_behind']:.1f} s",
        )
    equal = all(verdict.is_equal for verdict in verdicts)
    console.print("[bold]lake equals source[/bold]" if equal else "[bold red]lake does NOT equal source[/bold red]")
    console.print(table)


def _show_phases(phases: Phases, console: Console) -> None:
    total = sum(phases.seconds.values())
    console.print(
        f"[dim]{total:.0f} s in all: {', '.join(f'{name} {spent:.0f}' for name, spent in phases.seconds.items())}"
    )


def _show_end(settings: Settings, endpoints: Endpoints, config: Path, console: Console) -> None:
    console.print(f"Airflow: {endpoints.airflow_url}   user: {ADMINISTRATOR}   password: {endpoints.airflow_password}")
    console.print(f"lake: {settings.lake_url}   settings: {config}")
    console.print("stop with: make down")
