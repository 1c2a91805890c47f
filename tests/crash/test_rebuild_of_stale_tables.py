"""The lake position of a stale table is after a rebuild what it was before, and never behind what the lake has."""

import pytest

from tests.crash.invariants import check
from tests.crash.test_rebuild import lose_store, rebuilt, snapshot_one
from tests.crash.test_retention import apply_changes, cleaned, counts
from tests.crash.world import World, go_on, register_changes

POSITIONS = "SELECT source_table, position, as_of FROM cdc.v_lake_position ORDER BY source_table"


def become_stale(world: World) -> None:
    """Its first table is stale, and the others go on."""
    stale, *others = world.tables
    with world.process() as pipeline:
        pipeline.store.stale_tables.mark(pipeline.store.tables.table(stale).table_id, "its changes were not read")
        for _ in range(3):
            register_changes(world)
            pipeline.slice_runs().apply(others)


def take_new_snapshot(world: World) -> None:
    """Of the stale table, which is read and applied again."""
    with world.process() as pipeline:
        pipeline.source_setup().set_up(begin_again=world.tables[:1])
    snapshot_one(world)
    apply_changes(world)


def check_rebuild(world: World) -> None:
    before = world.store_query(POSITIONS)
    rebuilt(world)
    assert world.store_query(POSITIONS) == before
    lose_store(world)
    rebuilt(world)
    assert world.store_query(POSITIONS) == before


def test_a_stale_table_that_was_halted_before_the_base_is_halted_there_after_a_rebuild(world: World) -> None:
    apply_changes(world)
    become_stale(world)
    assert counts(cleaned(world))["cut files"] > 0
    check_rebuild(world)


@pytest.mark.parametrize("is_cleaned", [False, True], ids=["all cut files", "a base"])
def test_a_table_that_is_stale_again_is_halted_where_it_was_the_last_time(world: World, *, is_cleaned: bool) -> None:
    apply_changes(world)
    become_stale(world)
    if is_cleaned:
        assert counts(cleaned(world))["cut files"] > 0
    take_new_snapshot(world)
    become_stale(world)
    check_rebuild(world)
    take_new_snapshot(world)
    go_on(world)
    check(world)
