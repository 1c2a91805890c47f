"""A metadata store that was lost, wholly or in part, rebuilt from nothing but bucket and lake."""

import random
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.areas import CDC_EVENT, DATALAKE
from cdc_pipeline.consume.slice_cutter import CUT_AT
from cdc_pipeline.errors import FenceMismatch, LeaseBusy, RegistryError
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.ledger.cut import BEGINNING
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.operations.rebuild import Rebuilt
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.invariants import check, lake_rows, source_rows
from tests.crash.world import World, apply_all, go_on, lake_tables, new_world, register_changes, take_snapshot
from tests.support.ledgers import Ledger, forget_store, ledger_of
from tests.support.pipelines import consume, set_up_and_consume
from tests.support.streams import run_sql

INFINITE = "INSERT INTO things VALUES ({0}, 'never', repeat('x', 3000), 1.5, 'infinity')"
MEND = "UPDATE cdc.quarantine SET payload = replace(payload::text, 'infinity', '9999-12-31 00:00:00+00')::json"
IN_THE_SOURCE = "UPDATE things SET changed = now(), body = 'b' WHERE changed = 'infinity'"


def ledger(world: World) -> Ledger:
    return ledger_of(world.store_url)


def lose_store(world: World) -> None:
    forget_store(world.store_url)


def rebuilt(world: World) -> tuple[Rebuilt, ...]:
    world.bury_the_dead()
    with world.process() as pipeline:
        return pipeline.rebuild().run()


def keep_aside(world: World, *, number: int) -> None:
    """An event that goes to quarantine, and the source mended."""
    run_sql(world.source_url, INFINITE.format(number))
    run_sql(world.source_url, IN_THE_SOURCE)
    with world.process() as pipeline:
        consume(pipeline)


def replay_all(world: World) -> None:
    run_sql(world.store_url, MEND)
    with world.process() as pipeline:
        pipeline.replay().run(pipeline.store.quarantine.entries(state=QuarantineState.WAITING))


def apply(world: World) -> None:
    with world.process() as pipeline:
        apply_all(pipeline)


def snapshot_one(world: World) -> None:
    with world.process() as pipeline:
        take_snapshot(pipeline, world.tables[:1])


def snapshot_with_a_misfit(world: World, *, number: int) -> None:
    """A row that the snapshot keeps aside, mended in the source behind its cutoff."""
    run_sql(world.source_url, INFINITE.format(number))
    snapshot_one(world)
    run_sql(world.source_url, IN_THE_SOURCE)
    assert world.store_query("SELECT 1 FROM cdc.quarantine WHERE snapshot_id IS NOT NULL")


def cut_twice_at_one_place(world: World) -> None:
    """Somebody asks for a cut where one is."""
    ((position,),) = world.store_query("SELECT max(position) FROM cdc.boundary")
    run_sql(world.source_url, f"SELECT pg_logical_emit_message(true, 'cdc_pipeline', '{CUT_AT}{position}:1')")
    register_changes(world)


def go_back(world: World) -> None:
    with world.process() as pipeline:
        table = lake_tables(pipeline)[1].name
        row = pipeline.store.tables.table(table)
        claims = world.store_query(f"SELECT 1 FROM cdc.claim WHERE table_id = {row.table_id} AND state = 'applied'")
        if claims:
            pipeline.rewind().run(table, str(row.cutoff_offset))


def live(world: World, seed: int) -> None:
    """A busy history: each thing that can happen at least once, in some order."""
    randomness = random.Random(seed)
    numbers = iter(range(5_000, 6_000))
    deeds: list[Callable[[World], object]] = [
        register_changes,
        register_changes,
        register_changes,
        apply,
        apply,
        apply,
        snapshot_one,
        cut_twice_at_one_place,
        go_back,
        replay_all,
        replay_all,
        lambda world: keep_aside(world, number=next(numbers)),
        lambda world: keep_aside(world, number=next(numbers)),
        lambda world: keep_aside(world, number=next(numbers)),
        lambda world: snapshot_with_a_misfit(world, number=next(numbers)),
    ]
    randomness.shuffle(deeds)
    for deed in deeds:
        deed(world)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_lost_store_comes_back_as_it_was(world: World, seed: int) -> None:
    live(world, seed)
    before = ledger(world)
    lose_store(world)
    tables = rebuilt(world)
    after = ledger(world)
    for name, rows in before.items():
        assert after[name] == rows, name
    assert {table.notes for table in tables} == {(f"{table.slices} slices were not registered",) for table in tables}
    assert {table.notes for table in rebuilt(world)} == {()}
    assert ledger(world) == after
    replay_all(world)
    go_on(world)
    with world.process() as pipeline:
        for table in lake_tables(pipeline):
            assert lake_rows(pipeline, table) == source_rows(world, table)


@pytest.mark.parametrize("site", [Site("registry.register", Moment.BEFORE, 1), Site("slot.confirm", Moment.BEFORE, 2)])
def test_what_was_decided_when_the_store_was_lost_is_registered_and_applied(world: World, site: Site) -> None:
    register_changes(world)
    world.change(marks=2)
    with pytest.raises(Crash), world.process(Failpoint(site)) as pipeline:
        consume(pipeline)
    lose_store(world)
    world.bury_the_dead()
    with world.process() as pipeline, pytest.raises(RegistryError, match=r"knows nothing of the stream.*cdc rebuild"):
        consume(pipeline)
    rebuilt(world)
    go_on(world)
    check(world)


def test_a_store_that_contradicts_the_lake_is_made_right_and_keeps_what_only_it_knows(world: World) -> None:
    keep_aside(world, number=5000)
    keep_aside(world, number=5001)
    with world.process() as pipeline:
        dropped, _ = pipeline.store.quarantine.entries()
        pipeline.replay().drop([dropped.quarantine_id], "a test account")
        apply_all(pipeline)
    entries = "SELECT * FROM cdc.quarantine ORDER BY quarantine_id"
    before, kept = ledger(world), world.store_query(entries)
    run_sql(
        world.store_url,
        "UPDATE cdc.slice SET slice_id = reverse(slice_id), state = 'registered', claim_id = NULL WHERE number > 4",
        "UPDATE cdc.claim SET state = 'claimed', first_number = 1 WHERE table_id = 2",
        "UPDATE cdc.source_table SET table_uuid = gen_random_uuid() WHERE table_id = 3",
        "UPDATE cdc.snapshot SET state = 'staging' WHERE table_id = 1",
    )
    assert ledger(world) != before
    rebuilt(world)
    assert ledger(world) == before
    assert world.store_query(entries) == kept
    go_on(world)


def test_nothing_is_rebuilt_while_somebody_works_on_a_table(world: World) -> None:
    before = ledger(world)
    with world.process() as pipeline:
        pipeline.store.leases.acquire(1, owner="a worker", duration=timedelta(minutes=1))
        with pytest.raises(LeaseBusy, match="held by a worker"):
            pipeline.rebuild().run()
    assert ledger(world) == before


def test_a_bucket_that_lost_a_cut_file_is_refused_and_nothing_is_changed(world: World) -> None:
    register_changes(world)
    apply(world)
    files = [file for file in cut_files(world) if file.stem != BEGINNING]
    last = max(files, key=lambda file: file.stem)
    content = last.read_bytes()
    last.unlink()
    before = ledger(world)
    with pytest.raises(RegistryError, match="knows 1 cuts of shop that no cut file describes"):
        rebuilt(world)
    assert ledger(world) == before
    lose_store(world)
    with pytest.raises(FenceMismatch, match=r"holds slices up to \d+; expected at most \d+"):
        rebuilt(world)
    last.write_bytes(content)
    lose_store(world)
    rebuilt(world)
    assert ledger(world) == before


def test_a_lake_that_was_restored_from_its_backup_gets_its_slices_again(world: World, tmp_path: Path) -> None:
    lake = world.settings.folder / world.settings.lake / DATALAKE
    shutil.copytree(lake, tmp_path / "backup")
    for _ in range(2):
        register_changes(world)
        apply(world)
    shutil.rmtree(lake)
    shutil.copytree(tmp_path / "backup", lake)
    with world.process() as pipeline, pytest.raises(FenceMismatch, match=r"is applied.*the lake was set back: run cdc"):
        apply_all(pipeline)
    rebuilt(world)
    go_on(world)
    check(world)


def test_a_lake_that_holds_another_slice_than_the_cut_files_is_refused_with_both_sides(world: World) -> None:
    register_changes(world)
    apply(world)
    sha256 = world.store_query("SELECT sha256 FROM cdc.slice WHERE path IS NOT NULL ORDER BY number DESC")[0][0]
    for file in cut_files(world):
        file.write_text(file.read_text().replace(sha256, sha256[::-1]))
    lose_store(world)
    with pytest.raises(FenceMismatch, match=rf"SHA-256 {sha256}.* in the lake's log.*SHA-256 {sha256[::-1]}"):
        rebuilt(world)


def cut_files(world: World) -> list[Path]:
    return list((world.settings.folder / world.settings.lake / CDC_EVENT / "stream=shop").iterdir())


@pytest.mark.parametrize("loses", [lose_store, lambda _: None], ids=["lost", "kept"])
def test_a_table_that_the_last_cut_shows_to_have_a_gap_is_stale_after_a_rebuild(
    postgres: PostgresServer, tmp_path: Path, loses: Callable[[World], None]
) -> None:
    """A consumer that does not know the table reads on behind its snapshot; the next one does."""
    with new_world(postgres, tmp_path) as world:
        whole, gone = world.settings, world.tables[1]
        less = whole.model_copy(update={"tables": tuple(each for each in whole.tables if each.table != gone)})

        def list_the_table(name: str, moment: Moment) -> None:
            if (name, moment) == ("stream.take", Moment.AFTER) and world.settings is less:
                world.settings = whole
                with world.process() as other:
                    other.source_setup().set_up()
                    take_snapshot(other, [gone])
                run_sql(world.source_url, f"INSERT INTO {gone.table} VALUES (9000, 'in the gap')")

        world.settings = less
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
        with world.process(list_the_table) as pipeline:
            consume(pipeline)
        with world.process() as pipeline:
            consume(pipeline)
        state = f"SELECT state, state_reason, halted_at FROM cdc.source_table WHERE table_name = '{gone.table}'"
        before = world.store_query(state)
        assert before[0][0] == "stale"
        world.bury_the_dead()
        loses(world)
        rebuilt(world)
        assert world.store_query(state) == before


def test_a_table_that_was_removed_without_its_lake_and_listed_again_waits_for_its_snapshot(world: World) -> None:
    whole, table = world.settings, world.tables[0]
    register_changes(world)
    world.settings = whole.model_copy(update={"tables": tuple(each for each in whole.tables if each.table != table)})
    with world.process() as pipeline:
        consume(pipeline)
        pipeline.removal().remove_table(table, with_lake=False)
    world.settings = whole
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
    world.bury_the_dead()
    lose_store(world)
    rebuilt(world)
    state = f"SELECT state FROM cdc.source_table WHERE table_name = '{table.table}'"
    assert world.store_query(state) == [("registered",)]
    with world.process() as pipeline:
        pipeline.source_setup().set_up(begin_again=(table,))
    snapshot_one(world)
    go_on(world)
    check(world)
