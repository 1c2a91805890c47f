"""A rewind that was killed behind its commit in the lake, and then another one: each only goes back."""

import pytest

from cdc_pipeline.errors import UsageError
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.invariants import check
from tests.crash.test_rebuild import rebuilt
from tests.crash.test_rewind import apply_changes, position, rows
from tests.crash.world import World, go_on, lake_tables


def changed(world: World) -> tuple[str, list[str]]:
    """After more changes are applied: the position of the first table, and its rows."""
    apply_changes(world)
    with world.process() as pipeline:
        table = lake_tables(pipeline)[0]
        return position(pipeline, table), rows(pipeline, table)


def killed_rewind(world: World, place: str) -> None:
    dies = Failpoint(Site("lake_table.rewind", Moment.AFTER, 1))
    with pytest.raises(Crash), world.process(dies) as pipeline:
        pipeline.rewind().run(world.tables[0], place)
    world.bury_the_dead()


def test_a_rewind_to_a_later_position_completes_the_one_that_was_killed(world: World) -> None:
    (earlier, then), (later, _), _ = changed(world), changed(world), changed(world)
    killed_rewind(world, earlier)
    with world.process() as pipeline:
        found = pipeline.rewind().run(world.tables[0], later)
        assert found.position == earlier < later
        assert rows(pipeline, lake_tables(pipeline)[0]) == then
    rebuilt(world)
    go_on(world)
    check(world)


def test_a_rewind_to_an_earlier_position_follows_the_one_that_was_killed(world: World) -> None:
    (earlier, then), (later, _), _ = changed(world), changed(world), changed(world)
    killed_rewind(world, later)
    with world.process() as pipeline:
        assert pipeline.rewind().run(world.tables[0], earlier).position == earlier
        assert rows(pipeline, lake_tables(pipeline)[0]) == then
    rebuilt(world)
    go_on(world)
    check(world)


def test_a_rewind_that_is_refused_after_one_that_was_killed_leaves_a_table_that_goes_on(world: World) -> None:
    (earlier, then), _ = changed(world), changed(world)
    killed_rewind(world, earlier)
    with world.process() as pipeline:
        with pytest.raises(UsageError, match=r"nothing of .* was applied at or before"):
            pipeline.rewind().run(world.tables[0], "0/1")
        assert rows(pipeline, lake_tables(pipeline)[0]) == then
    rebuilt(world)
    go_on(world)
    check(world)
