"""Each of the four verbs killed by kill -9 at each of its steps, on real servers: equal afterwards, everything once."""

import time
from datetime import timedelta

import pytest

from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from tests.chaos.report import Report
from tests.chaos.victim import VERBS
from tests.chaos.world import ChaosWorld, end
from tests.crash.failpoint import Failpoint, Site
from tests.crash.invariants import check
from tests.crash.steps import (
    IN_TESTS_ALONE,
    SLICE_TO_LAKE,
    SNAPSHOT_TO_STAGING,
    STAGING_TO_LAKE,
    STREAM_TO_SLICES,
    changes,
)

pytestmark = pytest.mark.xdist_group("spark")
SPARK_CALLS = frozenset({"lake_claim.fold"})
"""It reads, but it is the longest of all calls."""


def sites(world: ChaosWorld, verb: str, table: TableName, expected: frozenset[str]) -> list[Site]:
    """Before and after the first of every step that the verb takes. Fails when a step is missing."""
    failpoint = Failpoint()
    with world.process(failpoint) as pipeline:
        VERBS[verb](pipeline, table)
    names = list(dict.fromkeys(site.name for site in failpoint.recorded))
    assert expected <= set(names), expected - set(names)
    wanted = [name for name in names if changes(name) or name in SPARK_CALLS]
    return [Site(name, moment, 1) for name in wanted for moment in (Moment.BEFORE, Moment.AFTER)]


def kill(world: ChaosWorld, report: Report, verb: str, site: Site) -> None:
    """One change, one death, one recovery, one comparison."""
    fault = f"kill -9 {site.moment}"
    with report.red_unless_done(f"{verb}: {site.name}", fault):
        table = world.turn()
        if verb == "slice_to_lake":
            world.register()
        victim = world.victim(verb, table, site)
        try:
            assert victim.is_killed(), (world.settings.folder / "victims.log").read_text()
        finally:
            end(victim)
        began = time.monotonic()
        if verb == "snapshot_to_lake":
            world.snapshot(table)
        world.recover(table)
        recovery = timedelta(seconds=time.monotonic() - began)
        check(world)
        report.record(f"{verb}: {site.name}", fault, "equal, once", recovery)


@pytest.mark.chaos
def test_a_consumer_killed_for_real_at_any_step_loses_and_doubles_nothing(world: ChaosWorld, report: Report) -> None:
    table = world.turn()
    for site in sites(world, "stream_to_slices", table, STREAM_TO_SLICES):
        kill(world, report, "stream_to_slices", site)


@pytest.mark.chaos
def test_a_slice_worker_killed_for_real_at_any_step_loses_and_doubles_nothing(
    world: ChaosWorld, report: Report
) -> None:
    table = world.turn()
    world.register()
    for site in sites(world, "slice_to_lake", table, SLICE_TO_LAKE - IN_TESTS_ALONE | SPARK_CALLS):
        kill(world, report, "slice_to_lake", site)


@pytest.mark.chaos
def test_a_snapshot_killed_for_real_at_any_step_shows_every_row_once(world: ChaosWorld, report: Report) -> None:
    table = world.turn()
    expected = SNAPSHOT_TO_STAGING | STAGING_TO_LAKE | {"snapshot_files.write"} - IN_TESTS_ALONE
    for site in sites(world, "snapshot_to_lake", table, frozenset(expected - IN_TESTS_ALONE)):
        kill(world, report, "snapshot_to_lake", site)


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
