"""A table that was removed, while cut files still name it, also one that decides a late slice of it."""

from contextlib import nullcontext
from threading import Barrier

import pytest

from cdc_pipeline.areas import DATALAKE, owner_key
from cdc_pipeline.errors import FenceMismatch
from cdc_pipeline.steps import Moment
from tests.crash.invariants import check
from tests.crash.test_rebuild import INFINITE, keep_aside, lose_store, rebuilt, replay_all, snapshot_one
from tests.crash.test_retention import apply_changes, cleaned
from tests.crash.world import World, go_on
from tests.support.pipelines import consume, set_up_and_consume
from tests.support.streams import run_sql

IDENTITIES = "SELECT table_name, table_uuid FROM cdc.source_table ORDER BY table_name"


@pytest.fixture
def removed(world: World) -> World:
    """Without its first table, of which the last cut file decides a late slice."""
    apply_changes(world)
    keep_aside(world, number=5000)
    replay_all(world)
    return world


def remove_first(world: World, *, with_lake: bool, after_a_cut: bool = True) -> None:
    """Its tables in pipeline.yml are the others from then on. `after_a_cut`: one that reads only these."""
    gone, *_ = world.tables
    rest = tuple(each for each in world.settings.tables if each.table != gone)
    world.settings = world.settings.model_copy(update={"tables": rest})
    with world.process() as pipeline:
        if after_a_cut:
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


@pytest.mark.parametrize("is_listed", [False, True], ids=["left out", "listed again"])
def test_a_table_that_the_base_names_and_that_was_removed_before_it_was_made_does_not_come_back(
    removed: World, *, is_listed: bool
) -> None:
    """The base lies before the removal, so cut files behind it name the table too."""
    whole, gone = removed.settings, removed.tables[0]
    apply_changes(removed)
    remove_first(removed, with_lake=False, after_a_cut=False)
    rest = list(removed.tables)
    assert cleaned(removed).held_by == {}
    with removed.process() as pipeline:
        chain = pipeline.cut_chain()
        base = chain.base()
        assert base is not None
        behind = [file.tables for _, file in chain.files(base.chain_position)]
    assert all(gone in {table.name for table in tables} for tables in (base.tables, *behind))
    assert [len(base.tables), len(base.rows["source_table"]), len(behind) > 0] == [3, 2, True]
    lose_store(removed)
    removed.settings = whole if is_listed else removed.settings
    assert [found.table for found in rebuilt(removed)] == rest
    if is_listed:
        with removed.process() as pipeline:
            pipeline.source_setup().set_up(begin_again=[gone])
        snapshot_one(removed)
    go_on(removed)
    check(removed)


@pytest.mark.parametrize("is_cleaned", [False, True], ids=["all cut files", "a base"])
def test_a_table_that_is_listed_again_is_not_the_one_of_the_late_slice(removed: World, *, is_cleaned: bool) -> None:
    """The base of the chain names only the tables that there are."""
    whole = removed.settings
    remove_first(removed, with_lake=False)
    if is_cleaned:
        for _ in range(2):
            apply_changes(removed)
        cleaned(removed)
    removed.settings = whole
    with removed.process() as pipeline:
        set_up_and_consume(pipeline)
        identifier = pipeline.store.streams.stream(removed.settings.name).source_system_identifier.encode()
    removed.bury_the_dead()
    lose_store(removed)
    with removed.process() as pipeline:
        ours = {each.key: pipeline.objects.get(each.key) for each in pipeline.objects.list_prefix(DATALAKE)}
        of_log = {key: content for key, content in ours.items() if key.endswith(".json") and identifier in content}
        for key, content in of_log.items():
            pipeline.objects.overwrite(key, content.replace(identifier, b"another server"))
        with pytest.raises(FenceMismatch, match="do not belong together") if is_cleaned else nullcontext():
            pipeline.rebuild().run()
        for key, content in of_log.items():
            pipeline.objects.overwrite(key, content)
    rebuilt(removed)
    with removed.process() as pipeline:
        pipeline.source_setup().set_up(begin_again=removed.tables[:1])
    snapshot_one(removed)
    go_on(removed)
    check(removed)


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "kept"])
def test_a_table_that_no_cut_file_names_any_more_and_that_is_listed_again_is_another_one(
    removed: World, *, is_lost: bool
) -> None:
    """It was read before the base of the chain, and the base, which names every table that there was, does not."""
    whole, gone = removed.settings, removed.tables[0]
    remove_first(removed, with_lake=False)
    for _ in range(2):
        apply_changes(removed)
    cleaned(removed)
    rest, removed.settings = list(removed.tables), whole
    if is_lost:
        lose_store(removed)
    assert [found.table for found in rebuilt(removed)] == rest
    with removed.process() as pipeline:
        pipeline.source_setup().set_up(begin_again=[gone])
    snapshot_one(removed)
    go_on(removed)
    check(removed)


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "kept"])
@pytest.mark.parametrize("has_snapshot", [True, False], ids=["with a snapshot", "without one"])
def test_a_table_that_is_listed_again_after_its_lake_is_removed_is_not_the_one_of_the_cut_files(
    removed: World, *, has_snapshot: bool, is_lost: bool
) -> None:
    """No cut file names the new one yet."""
    whole, (_, _, old) = removed.settings, removed.store_query(IDENTITIES)
    remove_first(removed, with_lake=True)
    removed.settings = whole
    with removed.process() as pipeline:
        pipeline.source_setup().set_up()
    if has_snapshot:
        snapshot_one(removed)
    before = removed.store_query(IDENTITIES)
    if is_lost:
        lose_store(removed)
    rebuilt(removed)
    is_registered = has_snapshot or not is_lost
    assert removed.store_query(IDENTITIES) == (before if is_registered else before[:2])
    assert old not in before
    with removed.process() as pipeline:
        pipeline.source_setup().set_up()
    if not has_snapshot:
        snapshot_one(removed)
    go_on(removed)
    check(removed)


def test_the_logs_of_several_tables_are_read_at_the_same_time(removed: World) -> None:
    """Everything stops while a rebuild runs, and a log is read commit by commit."""
    all_at_once = Barrier(len(removed.tables))

    def on_step(name: str, moment: Moment) -> None:
        if (name, moment) == ("ledger.read", Moment.BEFORE):
            all_at_once.wait(timeout=30)

    lose_store(removed)
    with removed.process(on_step) as pipeline:
        assert [found.table for found in pipeline.rebuild().run()] == list(removed.tables)


def test_a_table_whose_owner_was_recorded_by_an_older_version_is_the_one_of_the_cut_files(removed: World) -> None:
    before = removed.store_query(IDENTITIES)
    with removed.process() as pipeline:
        pipeline.objects.overwrite(owner_key(removed.tables[0]), b'{"pipeline": "shop"}')
        pipeline.source_setup().set_up()
    lose_store(removed)
    rebuilt(removed)
    assert removed.store_query(IDENTITIES) == before
    go_on(removed)


def test_a_table_of_a_pipeline_that_was_removed_and_began_again_is_the_one_of_the_new_cut_files(removed: World) -> None:
    """Its owner was recorded behind cut files that are gone. The new ones begin before that."""
    whole, first = removed.settings, removed.settings.tables[:1]
    remove_first(removed, with_lake=True)
    removed.settings = whole
    with removed.process() as pipeline:
        pipeline.source_setup().set_up()
        pipeline.removal().remove_pipeline(with_lake=False)
    removed.settings = whole.model_copy(update={"tables": first})
    with removed.process() as pipeline:
        set_up_and_consume(pipeline)
    before = removed.store_query(IDENTITIES)
    lose_store(removed)
    rebuilt(removed)
    assert len(before) == 1
    assert removed.store_query(IDENTITIES) == before


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "kept"])
def test_quarantined_events_keep_their_places_when_another_table_of_their_cut_is_removed(
    world: World, *, is_lost: bool
) -> None:
    """Late slices name the events that they replay by these places."""
    notes = "SELECT place, version, state, slice_number FROM cdc.quarantine WHERE table_id = 3 ORDER BY version"
    of_notes = "INSERT INTO notes VALUES ('one', 1, 'NaN'); INSERT INTO notes VALUES ('two', 2, 'NaN')"
    run_sql(world.source_url, f"{INFINITE.format(5000)}; {of_notes}")
    with world.process() as pipeline:
        consume(pipeline)
        of_things, first, _ = pipeline.store.quarantine.entries()
    assert (of_things.place < first.place, first.table_id) == (True, 3)
    run_sql(world.store_url, "UPDATE cdc.quarantine SET payload = replace(payload::text, 'NaN', '1.50')::json")
    with world.process() as pipeline:
        pipeline.replay().run(pipeline.store.quarantine.entries(ids=[first.quarantine_id]))
    before = world.store_query(notes)
    assert [state for _, _, state, _ in before] == ["replayed", "waiting"]
    remove_first(world, with_lake=True)
    if is_lost:
        lose_store(world)
    rebuilt(world)
    table_id = world.store_query("SELECT table_id FROM cdc.source_table WHERE table_name = 'notes'")[0][0]
    assert world.store_query(notes.replace("= 3", f"= {table_id}")) == before
