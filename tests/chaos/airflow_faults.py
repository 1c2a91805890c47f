"""A bank whose workers are resident ones that Airflow asks, and what may happen to Airflow and to them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import httpx
import psutil

from cdc_pipeline.demo.airflow_api import AirflowApi, AirflowRefused, open_airflow
from cdc_pipeline.launcher.health import is_healthy
from cdc_pipeline.launcher.planning import plan
from cdc_pipeline.launcher.processes import MIGRATE, Process
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.dag_ids import slice_dag_id
from cdc_pipeline.settings.installation.endpoints import endpoints_of
from cdc_pipeline.settings.installation.state import PORT_NAMES, Installation
from tests.chaos.bank import SOURCE, STORE, Bank, NobodyThere
from tests.chaos.faults import IN_CLAIM, KILL, PAST_LEASE, PAUSE, pause, paused, signalled
from tests.chaos.fire import Kind, Lasting
from tests.chaos.impatient_airflow import RESIDENT, holder, impatient, with_a_second_worker

TIMEOUT_SECONDS = 10
LIMIT_SECONDS = 20
"""Longer than where nothing else burns: whoever only lacks a processor is not to be taken for dead."""
RESIDENT_WORKER = "resident worker"
SCHEDULER, API_SERVER, TRIGGERER = "scheduler", "api-server", "triggerer"
PAST_LIMIT = LIMIT_SECONDS + 2, LIMIT_SECONDS + 8


def with_airflow(
    settings: Settings, config: Path, installation: Installation
) -> tuple[Installation, tuple[Process, ...]]:
    """What `cdc up` starts for a source and a metadata store that somebody else keeps up."""
    renewed, described = plan(settings, config=config, installation=installation, free=PORT_NAMES)
    needed = with_a_second_worker(impatient(described, limit_seconds=LIMIT_SECONDS))
    return renewed, tuple(
        replace(process, depends_on=(SOURCE, STORE)) if process.name == MIGRATE else process for process in needed
    )


def a_worker(bank: Bank) -> psutil.Process:
    """One that has a claim open."""
    residents = [process for name in RESIDENT for process in processes_of(bank, name)]
    at_work = {holder(owner, bank.installation.identity) for owner in bank.claim_owners()}
    worker = next((process for process in residents if process in at_work), None)
    if worker is None:
        raise NobodyThere(RESIDENT_WORKER)
    return worker


def processes_of(bank: Bank, name: str) -> list[psutil.Process]:
    with suppress(NobodyThere):
        return [bank.process(name)]
    return []


def kill_a_worker(bank: Bank, _: Random) -> None:
    a_worker(bank).kill()


def kill_all_workers(bank: Bank, _: Random) -> None:
    """Requests wait until the supervisor has started one of them again."""
    a_worker(bank)
    for name in RESIDENT:
        for process in processes_of(bank, name):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def pause_a_worker(bank: Bank, chance: Random) -> Lasting:
    return pause(a_worker(bank), chance.uniform(*PAST_LEASE))


def trigger_two_more(bank: Bank, chance: Random) -> None:
    with answering(bank) as airflow:
        table = chance.choice(bank.settings.tables)
        airflow.trigger(slice_dag_id(table.table), {})
        airflow.trigger("cdc_backfill", {"tables": [table.name]})


def backfill_meanwhile(bank: Bank, _: Random) -> None:
    now = datetime.now(UTC)
    with answering(bank) as airflow:
        airflow.backfill("cdc_backfill", start=now.replace(minute=0, second=0, microsecond=0), end=now, conf={})


@contextmanager
def answering(bank: Bank) -> Iterator[AirflowApi]:
    """Raises NobodyThere while nobody answers, or not with what was asked for."""
    endpoints = endpoints_of(bank.settings, bank.installation)
    if not is_healthy(f"{endpoints.airflow_url}/api/v2/version"):
        raise NobodyThere(API_SERVER)
    try:
        with open_airflow(endpoints, timeout_seconds=TIMEOUT_SECONDS) as airflow:
            yield airflow
    except (httpx.HTTPError, AirflowRefused) as away:
        raise NobodyThere(API_SERVER) from away


RESIDENT_WORKERS = (
    Kind(site=RESIDENT_WORKER, fault=IN_CLAIM, share=3, strike=kill_a_worker),
    Kind(site=RESIDENT_WORKER, fault=PAUSE, share=3, strike=pause_a_worker),
    Kind(site=RESIDENT_WORKER, fault="all killed at once", share=2, strike=kill_all_workers),
)
AIRFLOW = (
    Kind(site=SCHEDULER, fault=KILL, share=2, strike=signalled(SCHEDULER)),
    Kind(site=SCHEDULER, fault="paused past its heartbeat limit", share=2, strike=paused(SCHEDULER, *PAST_LIMIT)),
    Kind(site=API_SERVER, fault=KILL, share=1, strike=signalled(API_SERVER)),
    Kind(
        site=API_SERVER,
        fault="paused for twice the heartbeat limit",
        share=1,
        strike=paused(API_SERVER, 2 * LIMIT_SECONDS, 2 * LIMIT_SECONDS),
    ),
    Kind(site=TRIGGERER, fault=KILL, share=2, strike=signalled(TRIGGERER)),
)
RUNS = (
    Kind(site="schedule", fault="two manual runs at once", share=1, strike=trigger_two_more),
    Kind(site="schedule", fault="a backfill at once", share=1, strike=backfill_meanwhile),
)
