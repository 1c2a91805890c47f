"""Each of the four verbs killed by kill -9 at each of its steps, on real servers: equal afterwards, everything once."""

import time
from datetime import timedelta
from random import Random

import pytest

from cdc_pipeline.steps import Moment
from tests.chaos.report import Report
from tests.chaos.victim import VERBS
from tests.chaos.world import ChaosWorld
from tests.crash.failpoint import Failpoint, Site
from tests.crash.invariants import check
from tests.crash.steps import (
    IN_TESTS_ALONE,
    IN_TIME,
    IN_TWO_PASSES,
    SLICE_TO_LAKE,
    SNAPSHOT_TO_STAGING,
    STAGING_TO_LAKE,
    STREAM_TO_SLICES,
    changes,
)

pytestmark = pytest.mark.xdist_group("chaos world")
SPARK_CALLS = frozenset({"lake_claim.deduplicate"})
"""It reads, but it is the longest of all calls."""


LONG = (
    ("stream_to_slices", "slice_file.put"),
    ("slice_to_lake", "lake_claim.deduplicate"),
    ("slice_to_lake", "lake_files.write"),
    ("slice_to_lake", "lake_table.merge"),
    ("snapshot_to_lake", "source.copy"),
    ("snapshot_to_lake", "lake_table.create"),
    ("snapshot_to_lake", "snapshot_files.write"),
)
MOST_SECONDS = 1.5
"""How far into a call a process is killed, at most; where the call is shorter, it dies somewhere behind it."""


def sites(world: ChaosWorld, verb: str, expected: frozenset[str]) -> list[Site]:
    """Before and after the first of every step that the verb takes. Fails when a step is missing."""
    table = world.turn()
    if verb == "slice_to_lake":
        world.register()
    failpoint = Failpoint()
    with world.process(failpoint) as pipeline:
        VERBS[verb](pipeline, table)
    world.recover(table)
    names = [name for name in dict.fromkeys(site.name for site in failpoint.recorded) if name not in IN_TIME]
    assert expected <= set(names), expected - set(names)
    wanted = [name for name in names if changes(name) or name in SPARK_CALLS]
    return [Site(name, moment, 1) for name in wanted for moment in (Moment.BEFORE, Moment.AFTER)]


def kill(world: ChaosWorld, report: Report, verb: str, site: Site, *, seconds: float = 0) -> None:
    """One change, one death, one recovery, one comparison."""
    fault = "kill -9 during the call" if seconds else f"kill -9 {site.moment}"
    with report.red_unless_done(f"{verb}: {site.name}", fault):
        table = world.turn()
        if verb == "slice_to_lake":
            world.register()
        world.kill(verb, table, site, seconds=seconds)
        began = time.monotonic()
        if verb == "snapshot_to_lake":
            world.snapshot(table)
        world.recover(table)
        recovery = timedelta(seconds=time.monotonic() - began)
        check(world)
        report.record(f"{verb}: {site.name}", fault, "equal, once", recovery)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("stream_to_slices", STREAM_TO_SLICES),
        ("slice_to_lake", SLICE_TO_LAKE - IN_TESTS_ALONE | SPARK_CALLS),
        (
            "snapshot_to_lake",
            (SNAPSHOT_TO_STAGING | STAGING_TO_LAKE | {"snapshot_files.write"}) - IN_TESTS_ALONE - IN_TWO_PASSES,
        ),
    ],
)
def test_a_process_killed_for_real_at_any_step_loses_and_doubles_nothing(
    world: ChaosWorld, report: Report, verb: str, expected: frozenset[str]
) -> None:
    for site in sites(world, verb, expected):
        kill(world, report, verb, site)


@pytest.mark.chaos
@pytest.mark.parametrize(("verb", "name"), LONG)
def test_a_process_killed_in_the_middle_of_a_long_call_loses_and_doubles_nothing(
    world: ChaosWorld, report: Report, chaos_seed: int, verb: str, name: str
) -> None:
    chance = Random(f"{chaos_seed} {name}")
    for _ in range(2):
        kill(world, report, verb, Site(name, Moment.BEFORE, 1), seconds=chance.uniform(0.02, MOST_SECONDS))


@pytest.mark.chaos_cut
@pytest.mark.parametrize(
    ("verb", "name", "moment"),
    [
        ("stream_to_slices", "registry.register", Moment.AFTER),
        ("slice_to_lake", "lake_table.merge", Moment.AFTER),
        ("snapshot_to_lake", "snapshot.publish", Moment.AFTER),
    ],
)
def test_a_process_killed_for_real_loses_and_doubles_nothing(
    world: ChaosWorld, report: Report, verb: str, name: str, moment: Moment
) -> None:
    kill(world, report, verb, Site(name, moment, 1))
