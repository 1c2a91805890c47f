"""Nothing is lost and nothing doubled while servers, consumer and workers die under the writers, again and again."""

import os
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
import structlog

from tests.chaos.bank import Bank, burning_bank
from tests.chaos.evidence import check_boundaries, check_registry, check_rows, wait_until_applied
from tests.chaos.faults import PROCESSES, SERVERS, Fire, Made, Schedule, recoveries, summary, writers
from tests.chaos.report import Report

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("spark")]

log = structlog.get_logger()

SECONDS = float(os.environ.get("CDC_FIRE_SECONDS", "600"))
CUT_SECONDS = 30.0


@pytest.mark.chaos_cut
def test_half_a_minute_of_every_fault(report: Report, chaos_seed: int) -> None:
    schedules = Schedule(kinds=SERVERS, pauses=(5, 15)), Schedule(kinds=PROCESSES, pauses=(3, 12))
    burn_down(report, "half a minute", schedules, Random(f"{chaos_seed} cut"), seconds=CUT_SECONDS, slice_seconds=10)


def test_ten_minutes_of_every_fault(report: Report, chaos_seed: int) -> None:
    schedules = Schedule(kinds=SERVERS, pauses=(5, 40)), Schedule(kinds=PROCESSES, pauses=(5, 30))
    burn_down(report, "fire", schedules, Random(f"{chaos_seed} fire"), seconds=SECONDS, slice_seconds=20)


def burn_down(
    report: Report,
    section: str,
    schedules: Sequence[Schedule],
    chance: Random,
    *,
    seconds: float,
    slice_seconds: int,
) -> None:
    with burning_bank(slice_seconds=slice_seconds, claim_slices=1) as bank:
        fire = Fire(bank=bank, chance=chance)
        with report.red_unless_done(f"{section}: the bank", "every fault"):
            with writers(bank):
                fire.burn(schedules, seconds=seconds)
            wait_until_applied(bank)
            with bank.pipeline() as pipeline:
                rows = check_rows(bank, pipeline)
                check_registry(bank)
                boundaries = check_boundaries(pipeline)
        registered, applied = record(report, section, bank, fire.made)
    words = (
        f"equal, {sum(rows.values())} rows; {boundaries} boundaries in balance; {len(fire.made)} faults;"
        f" registered again after {registered} (min / median / max), in the lake again after {applied},"
        f" with slices of {slice_seconds} s"
    )
    report.record(f"{section}: the bank", "every fault", words)
    log.info("the fire is out", section=section, rows=rows, found=words)


def record(report: Report, section: str, bank: Bank, made: Sequence[Made]) -> tuple[str, str]:
    """Per fault the time until the lake had what was registered after it: a slice's length is part of it."""
    felt = {fault: recoveries(bank, fault) for fault in made}
    for fault, (_, applied) in felt.items():
        report.record(f"{section}: {fault.kind.site}", fault.kind.fault, "equal", applied)
    kinds = Counter(f"{fault.kind.site} {fault.kind.fault}" for fault in made)
    log.info("faults made", section=section, kinds=dict(kinds))
    return summary([found for found, _ in felt.values()]), summary([found for _, found in felt.values()])
