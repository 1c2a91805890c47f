"""A table that was removed, while cut files still name it, also one that decides a late slice of it."""

import pytest

from tests.crash.invariants import check
from tests.crash.test_rebuild import keep_aside, lose_store, rebuilt, replay_all, snapshot_one
from tests.crash.test_retention import apply_changes, cleaned
from tests.crash.world import World, go_on
from tests.support.pipelines import consume, set_up_and_consume


@pytest.fixture
def removed(world: World) -> World:
    """Without its first table, of which the last cut file decides a late slice."""
    apply_changes(world)
    keep_aside(world, number=5000)
    replay_all(world)
    return world


def remove_first(world: World, *, with_lake: bool) -> None:
    """Its tables in pipeline.yml are the others from then on."""
    gone, *_ = world.tables
    rest = tuple(each for each in world.settings.tables if each.table != gone)
    world.settings = world.settings.model_copy(update={"tables": rest})
    with world.process() as pipeline:
        consume(pipeline)
        pipeline.removal().remove_table(gone, with_lake=with_lake)
    world.bury_the_dead()


def test_a_table_that_was_removed_with_its_lake_does_not_come_back(removed: World) -> None:
    remove_first(removed, with_lake=True)
    lose_store(removed)
    assert [found.table for found in rebuilt(removed)] == list(removed.tables)
    go_on(removed)
    assert {name for (name,) in removed.store_query("SELECT table_name FROM cdc.source_table")} == {"parts", "notes"}
    assert cleaned(removed).held_by == {}
    lose_store(removed)
    rebuilt(removed)
    go_on(removed)


def test_a_table_that_is_listed_again_is_not_the_one_of_the_late_slice(removed: World) -> None:
    whole = removed.settings
    remove_first(removed, with_lake=False)
    removed.settings = whole
    with removed.process() as pipeline:
        set_up_and_consume(pipeline)
    removed.bury_the_dead()
    lose_store(removed)
    rebuilt(removed)
    with removed.process() as pipeline:
        pipeline.source_setup().set_up(begin_again=removed.tables[:1])
    snapshot_one(removed)
    go_on(removed)
    check(removed)
