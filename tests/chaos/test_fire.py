"""Nothing is lost and nothing doubled while servers, workers, Airflow and S3 fail under the writers all the time."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
import structlog

from cdc_pipeline.settings import ObjectStoreSettings
from tests.chaos.airflow_faults import AIRFLOW, RESIDENT_WORKERS, RUNS, with_airflow
from tests.chaos.bank import Bank, burning_bank, with_own_workers
from tests.chaos.clocks import CLOCKS, with_jumping_clocks, without_leftovers
from tests.chaos.evidence import check_boundaries, check_rows, check_store, wait_until_applied
from tests.chaos.faults import BESIDE_CONSUMER, BESIDE_WORKERS, OWN_WORKERS, RIVAL, SERVERS, TERMINATED
from tests.chaos.fire import Fire, Made, Schedule, recoveries, summary, writers
from tests.chaos.impatient_airflow import OPEN_REQUESTS, running_tasks
from tests.chaos.report import Report
from tests.chaos.s3_storms import s3_kinds
from tests.chaos.waiting import wait_for
from tests.support.command_line import query
from tests.support.fault_plan import FaultPlan, planned_faults
from tests.support.faulty_server import NO_ROOM
from tests.support.s3 import BUCKET, REGION, started_moto

pytestmark = pytest.mark.chaos

log = structlog.get_logger()

WHOLE_SECONDS = 600.0
SECONDS = float(os.environ.get("CDC_FIRE_SECONDS", WHOLE_SECONDS))
STORM_SECONDS = 150.0
CUT_SECONDS = 30.0
CUT = (
    Schedule(kinds=SERVERS, pauses=(5, 15)),
    Schedule(kinds=(*BESIDE_WORKERS, *OWN_WORKERS), pauses=(3, 12)),
)


@pytest.mark.nightly
def test_half_a_minute_without_airflow_and_s3(report: Report, chaos_seed: int) -> None:
    with burning_bank(with_own_workers, slice_seconds=10, claim_slices=2) as bank:
        burn_down(report, "half a minute", bank, CUT, Random(f"{chaos_seed} cut"), seconds=CUT_SECONDS)


def test_a_storm_over_s3_in_which_clocks_jump(report: Report, chaos_seed: int) -> None:
    """Kills, stops, terminated backends, rival consumers, a bucket without room; nobody's clock is right for long."""
    with started_moto() as moto, planned_faults(moto) as (url, plan), without_leftovers():
        place = {"region": REGION, "path_style": True}
        with burning_bank(
            with_jumping_clocks,
            slice_seconds=10,
            claim_slices=8,
            lake=f"s3://{BUCKET}/storm",
            object_store={"endpoint": url, **place},
        ) as bank:
            calm = ObjectStoreSettings(endpoint=moto, region=REGION, path_style=True)
            beside_proxy = replace(bank, settings=bank.settings.model_copy(update={"object_store": calm}))
            schedules = (
                Schedule(kinds=(*SERVERS, *TERMINATED), pauses=(4, 14)),
                Schedule(kinds=(*BESIDE_WORKERS, *BESIDE_CONSUMER, *OWN_WORKERS), pauses=(3, 12)),
                Schedule(kinds=CLOCKS, pauses=(4, 16)),
                Schedule(kinds=s3_kinds(plan), pauses=(16, 30)),
            )
            chance = Random(f"{chaos_seed} storm")
            made = burn_down(
                report,
                "storm",
                bank,
                schedules,
                chance,
                seconds=STORM_SECONDS,
                outcome=beside_proxy,
                clocks_are_right=False,
            )
            assert "Traceback" not in bank.log(RIVAL)
    assert {fault.kind for fault in made} == {kind for schedule in schedules for kind in schedule.kinds}


@pytest.mark.stack
def test_ten_minutes_of_every_fault(report: Report, chaos_seed: int) -> None:
    """What came out is read beside the proxy: the reader would hold up the threads of this process."""
    with started_moto() as moto, planned_faults(moto) as (url, plan):
        server = {"endpoint": url, "region": REGION, "path_style": True}
        calm = ObjectStoreSettings(endpoint=moto, region=REGION, path_style=True)
        with burning_bank(
            with_airflow, slice_seconds=30, claim_slices=1, lake=f"s3://{BUCKET}/bank", object_store=server
        ) as bank:
            beside_proxy = replace(bank, settings=bank.settings.model_copy(update={"object_store": calm}))
            schedules = everything(plan)
            made = burn_down(
                report, "fire", bank, schedules, Random(f"{chaos_seed} fire"), seconds=SECONDS, outcome=beside_proxy
            )
    faults = Counter(fault for (_, fault), times in plan.made.items() for _ in range(times))
    log.info("S3 calls", faults=dict(faults), calls=dict(plan.calls))
    report.record("fire: S3", "every fault", f"{faults.total()} calls failed, {faults[NO_ROOM.name]} for want of room")
    assert SECONDS < WHOLE_SECONDS or {fault.kind for fault in made} == {
        kind for schedule in schedules for kind in schedule.kinds
    }


def everything(plan: FaultPlan) -> tuple[Schedule, ...]:
    return (
        Schedule(kinds=(*SERVERS, *TERMINATED), pauses=(5, 40)),
        Schedule(kinds=(*BESIDE_WORKERS, *BESIDE_CONSUMER, *RESIDENT_WORKERS), pauses=(5, 30)),
        Schedule(kinds=AIRFLOW, pauses=(30, 75)),
        Schedule(kinds=RUNS, pauses=(30, 75)),
        Schedule(kinds=s3_kinds(plan), pauses=(16, 30)),
    )


def burn_down(
    report: Report,
    section: str,
    bank: Bank,
    schedules: Sequence[Schedule],
    chance: Random,
    *,
    seconds: float,
    outcome: Bank | None = None,
    clocks_are_right: bool = True,
) -> list[Made]:
    """`outcome` is the same bank as its lake is read.

    `clocks_are_right`: the workers' clocks, whose time of a commit is what the store learns from the lake.
    """
    fire = Fire(bank=bank, chance=chance)
    with report.red_unless_done(f"{section}: the bank", "every fault"):
        with writers(bank):
            fire.burn(schedules, seconds=seconds)
        wait_until_applied(bank)
        wait_for(lambda: not running_tasks(bank.installation.identity), "every task to end")
        wait_for(lambda: not query(bank.store_url, OPEN_REQUESTS), "every slice run to end")
        with (outcome or bank).pipeline() as pipeline:
            rows = check_rows(bank, pipeline)
            check_store(bank)
            boundaries = check_boundaries(pipeline)
        assert "Traceback" not in bank.log("consumer")
    words = (
        f"equal, {sum(rows.values())} rows; {boundaries} boundaries in balance; {len(fire.made)} faults;"
        f" {record(report, section, bank, fire.made, clocks_are_right=clocks_are_right)},"
        f" with slices of {bank.settings.slice_length.total_seconds():.0f} s"
    )
    report.record(f"{section}: the bank", "every fault", words)
    log.info("the fire is out", section=section, rows=rows, found=words)
    return fire.made


def record(report: Report, section: str, bank: Bank, made: Sequence[Made], *, clocks_are_right: bool) -> str:
    """Per fault the time until the lake had what was registered after it: a slice's length is part of it."""
    felt = [recoveries(bank, fault) for fault in made]
    for fault, (_, applied) in zip(made, felt, strict=True):
        report.record(f"{section}: {fault.kind.site}", fault.kind.fault, "equal", applied if clocks_are_right else None)
    kinds = Counter(f"{fault.kind.site} {fault.kind.fault}" for fault in made)
    log.info("faults made", section=section, kinds=dict(kinds))
    registered = f"registered again after {summary([found for found, _ in felt])} (min / median / max)"
    if not clocks_are_right:
        return registered
    return f"{registered}, in the lake again after {summary([found for _, found in felt])}"
