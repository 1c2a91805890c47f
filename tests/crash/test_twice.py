"""What comes after a fault can die as well; and the steps that only a recovery takes."""

from contextlib import suppress
from random import Random

import pytest

from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Countdown, Crash, Failpoint, Site
from tests.crash.faults import Fault, killed, recorded, unanswered
from tests.crash.invariants import check
from tests.crash.steps import (
    IN_TWO_PASSES,
    SLICE_TO_LAKE,
    SNAPSHOT_TO_STAGING,
    STAGING_TO_LAKE,
    STREAM_TO_SLICES,
    changes,
    lethal,
)
from tests.crash.world import (
    World,
    apply_all,
    consume_and_apply,
    go_on,
    register_changes,
    registered_files,
    take_snapshot,
)
from tests.support.pipelines import consume
from tests.support.streams import run_sql

SEED = 11
PAIRS = 8
MOST_STEPS = 8
"""A recovery takes more."""


def test_a_recovery_that_is_killed_is_recovered_too(world: World) -> None:
    chance = Random(SEED)
    world.change(marks=2)
    sites = lethal(recorded(world, consume_and_apply), STREAM_TO_SLICES | SLICE_TO_LAKE)
    for site in chance.sample(sites, PAIRS):
        world.change(marks=2)
        killed(world, consume_and_apply, site)
        with pytest.raises(Crash):
            go_on(world, Countdown(chance.randint(1, MOST_STEPS), changes))
        go_on(world)
        check(world)


def test_a_snapshot_that_is_killed_twice_shows_every_row_once(world: World) -> None:
    chance = Random(SEED)
    table = world.tables[0]
    sites = lethal(
        recorded(world, lambda pipeline: take_snapshot(pipeline, [table])),
        SNAPSHOT_TO_STAGING - IN_TWO_PASSES | STAGING_TO_LAKE,
    )
    for site in chance.sample(sites, PAIRS // 2):
        world.change()
        killed(world, lambda pipeline: take_snapshot(pipeline, [table]), site)
        world.bury_the_dead()
        with suppress(Crash), world.process(Countdown(chance.randint(1, MOST_STEPS), changes)) as pipeline:
            take_snapshot(pipeline, [table])
        register_changes(world)
        world.bury_the_dead()
        with world.process() as pipeline:
            (snapshot,) = take_snapshot(pipeline, [table])
        assert snapshot.state is SnapshotState.PUBLISHED, snapshot.error
        go_on(world)
        check(world)


@pytest.mark.parametrize("fault", [killed, unanswered])
def test_the_steps_that_only_a_recovery_takes_are_recovered_too(world: World, fault: Fault) -> None:
    for died_at, then in (("lake_table.merge", "claim.resume"), ("claim.mark_applied", "claim.mark_applied_through")):
        register_changes(world)
        with pytest.raises(Crash), world.process(Failpoint(Site(died_at, Moment.BEFORE, 1))) as pipeline:
            apply_all(pipeline)
        world.bury_the_dead()
        fault(world, apply_all, Site(then, Moment.AFTER, 1))
        go_on(world)
        check(world)


@pytest.mark.parametrize("fault", [killed, unanswered])
def test_the_steps_behind_a_damaged_file_are_recovered_too(world: World, fault: Fault) -> None:
    register_changes(world)
    file = registered_files(world)[-1]
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    for then in ("slice.mark_damaged", "claim.mark_failed", "failure.record"):
        fault(world, apply_all, Site(then, Moment.AFTER, 1))
        world.bury_the_dead()
    file.write_bytes(content)
    fault(world, apply_all, Site("failure.clear", Moment.AFTER, 1))
    go_on(world)
    check(world)


@pytest.mark.parametrize("fault", [killed, unanswered])
def test_a_fence_that_moves_over_a_slice_without_rows_moves_once(world: World, fault: Fault) -> None:
    """Columns that changed while nobody wrote to the table."""
    run_sql(world.source_url, f"ALTER TABLE {world.tables[0].table} ADD COLUMN later int")
    with world.process() as pipeline:
        consume(pipeline)
    fault(world, apply_all, Site("fence.move", Moment.AFTER, 1))
    go_on(world)
    check(world)
