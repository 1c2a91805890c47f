"""Each of the four verbs killed at every step: whoever comes next ends where an undisturbed run would have."""

from collections.abc import Callable

import pytest
import structlog

from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.record import TableName
from cdc_pipeline.source_setup import set_up_source
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.invariants import check
from tests.crash.steps import (
    SET_UP,
    SLICE_TO_LAKE,
    SNAPSHOT_TO_STAGING,
    STAGING_TO_LAKE,
    STREAM_TO_SLICES,
    lethal,
)
from tests.crash.world import World, apply_all, go_on, register_changes, take_snapshot
from tests.support.pipelines import consume

log = structlog.get_logger()

Verb = Callable[[Pipeline], object]


def recorded(world: World, verb: Verb) -> list[Site]:
    """The steps of an undisturbed run."""
    failpoint = Failpoint()
    with world.process(failpoint) as pipeline:
        verb(pipeline)
    return failpoint.recorded


def die(world: World, verb: Verb, site: Site) -> None:
    log.info("killed", site=str(site))
    with pytest.raises(Crash), world.process(Failpoint(site)) as pipeline:
        verb(pipeline)


def test_a_consumer_killed_at_any_step_loses_nothing_and_doubles_nothing(world: World) -> None:
    world.change(marks=2)
    sites = lethal(recorded(world, consume), STREAM_TO_SLICES)
    go_on(world)
    check(world)
    for site in sites:
        world.change(marks=2)
        die(world, consume, site)
        world.change(marks=1)
        go_on(world)
        check(world)


def test_a_slice_worker_killed_at_any_step_loses_nothing_and_doubles_nothing(world: World) -> None:
    register_changes(world)
    sites = lethal(recorded(world, apply_all), SLICE_TO_LAKE)
    check(world)
    for site in sites:
        register_changes(world)
        die(world, apply_all, site)
        world.change(marks=1)
        go_on(world)
        check(world)


@pytest.mark.parametrize("name", ["things", "notes"])
def test_a_snapshot_killed_at_any_step_up_to_staging_shows_every_row_once(world: World, name: str) -> None:
    table = next(table for table in world.tables if table.table == name)
    sites = snapshot_sites(world, table, SNAPSHOT_TO_STAGING, up_to="lake_table.create")
    for site in sites:
        survive_snapshot(world, table, site)


@pytest.mark.parametrize("name", ["parts", "notes"])
def test_a_snapshot_killed_at_any_step_from_staging_to_the_lake_shows_every_row_once(world: World, name: str) -> None:
    table = next(table for table in world.tables if table.table == name)
    sites = snapshot_sites(world, table, STAGING_TO_LAKE, since="lake_table.create")
    for site in sites:
        survive_snapshot(world, table, site)


def snapshot_sites(
    world: World, table: TableName, expected: frozenset[str], *, since: str = "", up_to: str = ""
) -> list[Site]:
    """Before the first step and after each: what is before a later one is after the one that it follows."""
    world.change()
    sites = recorded(world, lambda pipeline: take_snapshot(pipeline, [table]))
    names = [site.name for site in sites]
    first = names.index(since) if since else 0
    before, *others = lethal(sites[first : names.index(up_to) if up_to else None], expected)
    return [before, *(site for site in others if site.moment is Moment.AFTER)]


def survive_snapshot(world: World, table: TableName, site: Site) -> None:
    """The stream flows on before, between and after; nobody has read the last changes when the snapshot is taken."""
    world.change()
    die(world, lambda pipeline: take_snapshot(pipeline, [table]), site)
    register_changes(world)
    world.bury_the_dead()
    with world.process() as pipeline:
        (snapshot,) = take_snapshot(pipeline, [table])
    assert snapshot.state is SnapshotState.PUBLISHED, snapshot.error
    go_on(world)
    check(world)


def test_a_set_up_killed_at_any_step_is_completed_by_the_next_one(new: World) -> None:
    sites = lethal(recorded(new, set_up_source), SET_UP)
    for site in sites:
        new.forget_everything()
        die(new, set_up_source, site)
        with new.process() as pipeline:
            consume(pipeline)
            new.change()
            take_snapshot(pipeline, new.tables)
        go_on(new)
        check(new)
