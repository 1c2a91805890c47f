"""A slice worker stopped at each of its steps, overtaken, and continued: what it still does changes nothing."""

import signal
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest

from cdc_pipeline.steps import Moment
from tests.chaos.report import Report
from tests.chaos.victim import Victim, slice_to_lake
from tests.chaos.world import ChaosWorld, end
from tests.crash.failpoint import Failpoint, Site
from tests.crash.invariants import check
from tests.crash.steps import IN_TESTS_ALONE, IN_TIME, SLICE_TO_LAKE, changes
from tests.support.eventually import eventually

pytestmark = pytest.mark.xdist_group("chaos world")

VERB = "slice_to_lake"
ENDINGS = {"success", "StaleEpoch", "LeaseBusy", "LakeError", "RegistryError", "StoreAway"}
"""StoreAway: it was stopped in a transaction of the metadata store, which ends sessions that idle in one for 8 s."""


def places(world: ChaosWorld) -> list[Site]:
    """Before the first of every step of the slice worker, reads too, and after those that change something."""
    table = world.turn()
    world.register()
    failpoint = Failpoint()
    with world.process(failpoint) as pipeline:
        slice_to_lake(pipeline, table)
    names = [name for name in dict.fromkeys(site.name for site in failpoint.recorded) if name not in IN_TIME]
    assert set(names) >= SLICE_TO_LAKE - IN_TESTS_ALONE
    return [
        Site(name, moment, 1)
        for name in names
        for moment in (Moment.BEFORE, Moment.AFTER)
        if moment is Moment.BEFORE or changes(name)
    ]


def overtake(world: ChaosWorld, report: Report, sites: Sequence[Site], fault: str, seconds: Sequence[float]) -> None:
    """One zombie per table, all at once, so many seconds behind its site: the wait for their leases is one."""
    tables = [world.turn() for _ in sites]
    world.register()
    victims: list[Victim] = []
    try:
        for table, site, behind in zip(tables, sites, seconds, strict=True):
            victims.append(world.victim(VERB, table, site, signal.SIGSTOP, seconds=behind))
        assert all(victim.is_stopped() for victim in victims), world.said
        began = time.monotonic()
        for _ in tables:
            world.turn()
        world.register()
        for table in tables:
            world.apply(table)
        recovery = timedelta(seconds=time.monotonic() - began)
        check_all(world)
        before = versions(world)
        endings = [victim.ending() for victim in victims]
        assert versions(world) == before
        check_all(world)
    finally:
        for victim in victims:
            end(victim)
    for site, ending in zip(sites, endings, strict=True):
        word = ending.partition(":")[0]
        assert word in ENDINGS, ending
        report.record(f"{VERB}: {site.name}", fault.format(site.moment), f"{word}, equal, once", recovery)


def check_all(world: ChaosWorld) -> None:
    for table in world.tables:
        world.apply(table)
    assert eventually(lambda: not world.held_leases())
    check(world)


def versions(world: ChaosWorld) -> list[int | None]:
    with world.process() as pipeline:
        return [pipeline.lake.read_version(pipeline.lake_table(table)) for table in world.tables]


def stop(world: ChaosWorld, report: Report, sites: Sequence[Site]) -> None:
    fault = "SIGSTOP {}, overtaken"
    with report.red_unless_done(f"{VERB}: {', '.join(site.name for site in sites)}", fault.format("")):
        overtake(world, report, sites, fault, [0] * len(sites))


@pytest.mark.chaos
def test_a_slice_worker_that_is_stopped_anywhere_and_overtaken_changes_nothing(
    world: ChaosWorld, report: Report
) -> None:
    sites = places(world)
    for first in range(0, len(sites), len(world.tables)):
        stop(world, report, sites[first : first + len(world.tables)])


@pytest.mark.chaos
def test_a_merge_that_the_server_finishes_while_its_worker_is_stopped_is_the_successors_too(
    world: ChaosWorld, report: Report
) -> None:
    fault = "SIGSTOP during the call, overtaken"
    with report.red_unless_done(f"{VERB}: lake_table.merge", fault):
        overtake(world, report, [Site("lake_table.merge", Moment.BEFORE, 1)] * 3, fault, [0.1, 0.4, 0.8])


@pytest.mark.chaos_cut
def test_a_stopped_slice_worker_that_was_overtaken_changes_nothing(world: ChaosWorld, report: Report) -> None:
    stop(
        world,
        report,
        [
            Site("lake_table.merge", Moment.BEFORE, 1),
            Site("lake_table.merge", Moment.AFTER, 1),
            Site("slice_file.get", Moment.BEFORE, 1),
        ],
    )
