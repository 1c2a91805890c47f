"""The lake position of a stale table is after a rebuild what it was before, and never behind what the lake has."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import RegistryError
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.invariants import check, lake_rows, source_rows
from tests.crash.test_rebuild import IN_THE_SOURCE, INFINITE, lose_store, rebuilt, replay_all, snapshot_one
from tests.crash.test_retention import YEAR, apply_changes, cleaned, counts
from tests.crash.world import World, apply_all, go_on, register_changes, take_snapshot
from tests.support.streams import run_sql

STATES = "SELECT state, state_reason FROM cdc.source_table ORDER BY table_id"
POSITIONS = "SELECT source_table, position, as_of FROM cdc.v_lake_position ORDER BY source_table"


def become_stale(world: World) -> None:
    """Its first table is stale, and the others go on."""
    _, *others = world.tables
    mark_stale(world)
    with world.process() as pipeline:
        for _ in range(3):
            register_changes(world)
            pipeline.slice_runs().apply(others)


def mark_stale(world: World) -> None:
    with world.process() as pipeline:
        first = pipeline.store.tables.table(world.tables[0])
        pipeline.store.stale_tables.mark(first.table_id, "its changes were not read")


def take_new_snapshot(world: World) -> None:
    """Of the stale table, which is read and applied again."""
    with world.process() as pipeline:
        pipeline.source_setup().set_up(begin_again=world.tables[:1])
    snapshot_one(world)
    apply_changes(world)


@contextmanager
def restored_behind_a_cleaning(world: World, table: TableName, folder: Path) -> Iterator[None]:
    """When the block ends, cut files are deleted, and the lake of the table is again what it was before the block."""
    lake, backup = world.settings.folder / world.settings.lake / lake_key(table), folder / "backup"
    shutil.copytree(lake, backup)
    yield
    assert counts(cleaned(world))["cut files"] > 0
    shutil.rmtree(lake)
    shutil.copytree(backup, lake)


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


@pytest.mark.parametrize("loses", [lose_store, lambda _: None], ids=["lost", "kept"])
def test_a_lake_that_was_restored_from_before_the_slices_that_are_kept_makes_its_table_stale(
    world: World, tmp_path: Path, loses: Callable[[World], None]
) -> None:
    older, *others = world.tables
    apply_changes(world)
    with restored_behind_a_cleaning(world, older, tmp_path):
        for _ in range(4):
            apply_changes(world)
    with (
        world.process() as pipeline,
        pytest.raises(RegistryError, match="its lake was restored from before the slices"),
    ):
        pipeline.slice_worker().slice_to_lake(older)
    loses(world)
    assert {
        table.table: "it is stale: its lake ends at slice 4, 5" in str(table.notes) for table in rebuilt(world)
    } == {
        older: True,
        **dict.fromkeys(others, False),
    }
    take_new_snapshot(world)
    go_on(world)
    check(world)


def test_a_lake_that_was_restored_from_before_its_newest_claim_makes_its_idle_table_stale(
    world: World, tmp_path: Path
) -> None:
    """The base of the chain has the rows of all slices of that claim, whose files are deleted."""
    idle, *_ = world.tables
    apply_changes(world)
    with restored_behind_a_cleaning(world, idle, tmp_path):
        for _ in range(2):
            register_changes(world)
        with world.process() as pipeline:
            apply_all(pipeline)
    lose_store(world)
    stale = {table.table for table in rebuilt(world) if "it is stale: its lake ends at slice" in str(table.notes)}
    assert stale == {idle}
    take_new_snapshot(world)
    go_on(world)
    check(world)


def test_quarantined_rows_of_a_snapshot_that_only_the_lake_knows_are_kept_for_a_rebuild(world: World) -> None:
    """The table became stale between the snapshot's commit in the lake and its end in the metadata store."""
    run_sql(world.source_url, INFINITE.format(5000))
    dies = Failpoint(Site("snapshot.publish", Moment.AFTER, 1))
    with pytest.raises(Crash), world.process(dies) as pipeline:
        take_snapshot(pipeline, world.tables[:1])
    run_sql(world.source_url, IN_THE_SOURCE)
    mark_stale(world)
    assert counts(cleaned(world, YEAR))["snapshot files"] > 0
    rebuilt(world)
    assert world.store_query("SELECT payload ->> 'id' FROM cdc.quarantine WHERE snapshot_id IS NOT NULL") == [("5000",)]
    replay_all(world)
    go_on(world)
    with world.process() as pipeline:
        table = pipeline.lake_table(world.tables[0])
        assert lake_rows(pipeline, table) == source_rows(world, table)


@pytest.mark.parametrize("loses", [lose_store, lambda _: None], ids=["lost", "kept"])
@pytest.mark.parametrize("begins_again", [False, True], ids=["not read", "read again"])
def test_a_table_that_was_not_read_behind_a_snapshot_that_only_the_lake_knows_stays_stale(
    world: World, loses: Callable[[World], None], *, begins_again: bool
) -> None:
    """A snapshot was killed behind its commit, and the next cuts were made without the table."""
    with pytest.raises(Crash), world.process(Failpoint(Site("snapshot.publish", Moment.AFTER, 1))) as pipeline:
        take_snapshot(pipeline, world.tables[:1])
    mark_stale(world)
    register_changes(world)
    if begins_again:
        with world.process() as pipeline:
            pipeline.source_setup().set_up(begin_again=world.tables[:1])
        register_changes(world)
    before = world.store_query(STATES)
    assert before[0] == ("stale", "its changes were not read")
    loses(world)
    rebuilt(world)
    assert world.store_query(STATES) == before
    take_new_snapshot(world)
    go_on(world)
    check(world)


def test_a_stale_table_that_begins_again_with_another_setting_keeps_it_in_a_rebuild(world: World) -> None:
    apply_changes(world)
    mark_stale(world)
    first, *others = world.settings.tables
    changed = first.model_copy(update={"deletes": "soft"})
    world.settings = world.settings.model_copy(update={"tables": (changed, *others)})
    with world.process() as pipeline:
        pipeline.source_setup().set_up(begin_again=world.tables[:1])
    register_changes(world)
    rebuilt(world)
    register_changes(world)
    with world.process() as pipeline:
        assert pipeline.lake_table(world.tables[0]).deletes == "soft"
    snapshot_one(world)
    go_on(world)
    check(world)
