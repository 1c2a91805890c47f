"""Each of the four verbs killed at every step: whoever comes next ends where an undisturbed run would have."""

from collections.abc import Callable

import pytest
import structlog

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
from tests.crash.world import World, apply_all, go_on, take_snapshot
from tests.support.pipelines import consume
from tests.support.streams import run_sql

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


def register_changes(world: World) -> None:
    world.change(marks=2)
    with world.process() as pipeline:
        consume(pipeline)


def test_tmp(world: World) -> None:
    for tables in (world.tables[:1], world.tables[1:]):
        world.change(marks=2)
        for s in recorded(world, lambda p: take_snapshot(p, tables)): 
            if str(s.moment)=='before': print(s)
