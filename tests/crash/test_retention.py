"""What is old is deleted, and everything goes on: the pipeline, a rewind, and a store that is rebuilt."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from cdc_pipeline.areas import CDC_EVENT, DB_SNAPSHOT, STAGING_AREA, lake_key
from cdc_pipeline.errors import RegistryError, UsageError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.operations.retention import Cleaning
from cdc_pipeline.record import TableName
from cdc_pipeline.time_slice import SliceFileName
from cdc_pipeline.wiring import Pipeline
from tests.crash.faults import Faults, each_fault, recorded
from tests.crash.invariants import check, lake_rows, source_rows
from tests.crash.steps import RETENTION, lethal
from tests.crash.test_rebuild import keep_aside, live, lose_store, rebuilt, replay_all
from tests.crash.test_rivals import Meanwhile
from tests.crash.world import World, apply_all, go_on, lake_tables, register_changes
from tests.support.ledgers import ledger_of
from tests.support.streams import run_sql

WEEK, YEAR = timedelta(days=8), timedelta(days=365)


def cleaned(world: World, later: timedelta = WEEK, *, dry_run: bool = False) -> Cleaning:
    with world.process() as pipeline:
        return cleaned_by(pipeline, later, dry_run=dry_run)


def cleaned_by(pipeline: Pipeline, later: timedelta = WEEK, *, dry_run: bool = False) -> Cleaning:
    return pipeline.cleanup().clean(now=pipeline.store.snapshot_history.now() + later, dry_run=dry_run)


def apply_changes(world: World) -> None:
    register_changes(world)
    with world.process() as pipeline:
        apply_all(pipeline)


def counts(cleaning: Cleaning) -> dict[str, int]:
    return {found.kind: found.count for found in cleaning.kinds}


def keys(world: World, area: str) -> set[str]:
    with world.process() as pipeline:
        return {found.key for found in pipeline.objects.list_prefix(area)}


def test_what_is_young_stays(world: World) -> None:
    apply_changes(world)
    before, objects = ledger_of(world.store_url), keys(world, CDC_EVENT)
    assert set(counts(cleaned(world, timedelta(days=6))).values()) == {0}
    assert (ledger_of(world.store_url), keys(world, CDC_EVENT)) == (before, objects)


def test_what_is_old_and_applied_goes_and_the_pipeline_goes_on(world: World) -> None:
    for _ in range(4):
        apply_changes(world)
    objects, slices = keys(world, CDC_EVENT), world.store_query("SELECT count(*) FROM cdc.slice")
    found = counts(cleaned(world))
    assert min(found["slice files"], found["cut files"], found["rows of slice"], found["rows of boundary"]) > 0
    assert found["snapshot files"] > 0
    assert len(keys(world, CDC_EVENT)) < len(objects) / 2
    assert world.store_query("SELECT count(*) FROM cdc.slice") < slices
    assert keys(world, STAGING_AREA) | keys(world, DB_SNAPSHOT) == set()
    go_on(world)
    check(world)
    apply_changes(world)
    check(world)
    assert set(counts(cleaned(world, timedelta(days=6))).values()) == {0}


def test_a_dry_run_says_what_would_go_and_changes_nothing(world: World) -> None:
    apply_changes(world)
    apply_changes(world)
    before, objects = ledger_of(world.store_url), keys(world, "")
    told = cleaned(world, YEAR, dry_run=True)
    assert (ledger_of(world.store_url), keys(world, "")) == (before, objects)
    assert told.kinds == cleaned(world, YEAR).kinds
    assert all(found.bytes > 0 for found in told.kinds if found.count)


def test_a_damaged_log_of_one_table_stops_no_other(world: World) -> None:
    """What its fence names is not known. So the cut files and the rows of cuts stay, whatever others forget."""
    for _ in range(3):
        apply_changes(world)
    with world.process() as pipeline:
        table = lake_tables(pipeline)[0]
        log = DeltaLog(pipeline.objects, lake_key(table.name))
        key = f"{log.folder}/{log.latest_version() or 0:020d}.json"
        content = pipeline.objects.get(key)
        pipeline.objects.overwrite(key, b"no commit")
    slices = world.store_query("SELECT count(*) FROM cdc.slice")
    cleaning = cleaned(world)
    assert "its fence cannot be read from the lake" in cleaning.held_by[str(table.name)]
    assert counts(cleaning)["slice files"] > 0
    assert "cut files" not in counts(cleaning)
    assert world.store_query("SELECT count(*) FROM cdc.slice") == slices
    with world.process() as pipeline:
        pipeline.objects.overwrite(key, content)
    assert counts(cleaned(world))["cut files"] > 0
    assert world.store_query("SELECT count(*) FROM cdc.slice") < slices
    go_on(world)
    check(world)


@each_fault
def test_a_cleaning_killed_at_any_step_is_completed_by_the_next_one(world: World, faults: Faults) -> None:
    """At every other step the metadata store is lost too, and rebuilt from what is left."""
    apply_changes(world)
    cleaned(world, YEAR)
    apply_changes(world)
    sites = lethal(recorded(world, lambda pipeline: cleaned_by(pipeline, YEAR)), RETENTION)
    for number, (fault, site) in enumerate(faults(sites)):
        apply_changes(world)
        fault(world, lambda pipeline: cleaned_by(pipeline, YEAR), site)
        if number % 2:
            lose_store(world)
            rebuilt(world)
        go_on(world)
        check(world)
        cleaned(world, YEAR)
        assert set(counts(cleaned(world, YEAR, dry_run=True)).values()) == {0}


def without_figures(name: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of claims: their slices and the rows that were read are those of slices that may be forgotten."""
    return [row[:5] + row[7:] for row in rows] if name == "claim" else rows


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_after_retention_a_lost_store_comes_back_as_it_was(world: World, seed: int) -> None:
    live(world, seed)
    go_on(world)
    cleaned(world)
    apply_changes(world)
    before = ledger_of(world.store_url)
    lose_store(world)
    rebuilt(world)
    after = ledger_of(world.store_url)
    for name, rows in before.items():
        assert without_figures(name, after[name]) == without_figures(name, rows), name
    rebuilt(world)
    assert ledger_of(world.store_url) == after
    replay_all(world)
    go_on(world)
    with world.process() as pipeline:
        for table in lake_tables(pipeline):
            assert lake_rows(pipeline, table) == source_rows(world, table)


def test_a_table_that_is_not_applied_keeps_its_slices_and_the_cut_files_but_no_other_tables_files(
    world: World,
) -> None:
    register_changes(world)
    register_changes(world)
    lagging, *others = world.tables
    with world.process() as pipeline:
        for table in others:
            pipeline.slice_worker().slice_to_lake(table)
    found = cleaned(world)
    assert counts(found)["slice files"] > 0
    assert list(found.held_by) == [str(lagging)]
    lose_store(world)
    rebuilt(world)
    go_on(world)
    check(world)
    assert str(lagging) not in cleaned(world).held_by


def test_a_slice_file_that_nobody_named_goes_when_its_range_lies_before_the_base(world: World) -> None:
    """Its writer died before the cut was decided, or another cut was decided there."""
    apply_changes(world)
    old = orphan(world)
    apply_changes(world)
    apply_changes(world)
    young = orphan(world)
    found = cleaned(world)
    assert counts(found)["files without a slice"] == 1
    assert keys(world, CDC_EVENT) & {old, young} == {young}


def orphan(world: World) -> str:
    """Of the newest range of a table."""
    ((path,),) = world.store_query(
        "SELECT path FROM cdc.slice WHERE path IS NOT NULL ORDER BY boundary_id DESC LIMIT 1"
    )
    folder, _, name = str(path).rpartition("/")
    key = f"{folder}/{replace(SliceFileName.parse(name), sha256='0' * 16)}"
    with world.process() as pipeline:
        pipeline.objects.put_if_absent(key, b"never named")
    return key


def test_a_rewind_goes_no_further_back_than_the_slices_that_are_kept(world: World) -> None:
    apply_changes(world)
    table = world.tables[0]
    with world.process() as pipeline:
        moment = pipeline.store.snapshot_history.now()
    apply_changes(world)
    cleaned(world)
    apply_changes(world)
    apply_changes(world)
    with world.process() as pipeline:
        with pytest.raises(UsageError, match=r"whose slices are kept"):
            pipeline.rewind().run(table, moment.isoformat())
        ((last,),) = world.store_query(
            "SELECT min(lake_version) FROM cdc.claim JOIN cdc.source_table USING (table_id)"
            f" WHERE table_name = '{table.table}' AND first_number > forgotten_through"
        )
        assert last is not None
        pipeline.rewind().run(table, first_kept_position(world, table))
    go_on(world)
    check(world)


def first_kept_position(world: World, table: TableName) -> str:
    ((position,),) = world.store_query(
        "SELECT position FROM cdc.claim AS c JOIN cdc.source_table AS t USING (table_id)"
        " JOIN cdc.slice AS s ON (s.table_id, s.number) = (c.table_id, c.last_number) JOIN cdc.boundary"
        f" USING (boundary_id) WHERE table_name = '{table.table}' AND first_number > forgotten_through"
        " ORDER BY first_number LIMIT 1"
    )
    return str(position)


def test_an_event_that_waits_in_quarantine_outlives_the_cut_file_that_told_it(world: World) -> None:
    keep_aside(world, number=5000)
    apply_changes(world)
    apply_changes(world)
    cleaned(world, YEAR)
    lose_store(world)
    rebuilt(world)
    with world.process() as pipeline:
        (entry,) = pipeline.store.quarantine.entries(state=QuarantineState.WAITING)
        assert entry.payload["id"] == "5000"
    replay_all(world)
    go_on(world)
    with world.process() as pipeline:
        for table in lake_tables(pipeline):
            assert lake_rows(pipeline, table) == source_rows(world, table)


def test_a_store_that_is_older_than_the_cut_files_that_are_kept_is_refused_and_rebuilt(world: World) -> None:
    apply_changes(world)
    world.store_query("SELECT 1")
    run_sql(world.store_url, "CREATE SCHEMA backup")
    names = ("stream_partition", "source_table", "boundary", "claim", "slice")
    for name in names:
        run_sql(world.store_url, f"CREATE TABLE backup.{name} AS SELECT * FROM cdc.{name}")
    for _ in range(3):
        apply_changes(world)
    cleaned(world)
    run_sql(world.store_url, "DELETE FROM cdc.slice", "DELETE FROM cdc.claim", "DELETE FROM cdc.boundary")
    for name in ("boundary", "claim", "slice"):
        run_sql(world.store_url, f"INSERT INTO cdc.{name} SELECT * FROM backup.{name}")
    with world.process() as pipeline, pytest.raises(RegistryError, match=r"its cut files begin at.*cdc rebuild"):
        pipeline.cut_chain().catch_up()
    world.bury_the_dead()
    with world.process() as pipeline:
        pipeline.rebuild().run()
    go_on(world)
    check(world)


@pytest.mark.parametrize("is_cleaned", [False, True], ids=["all cut files", "a base"])
def test_a_rebuild_beside_a_clean_says_to_run_it_again(world: World, *, is_cleaned: bool) -> None:
    for is_due in (is_cleaned, False, False):
        apply_changes(world)
        if is_due:
            cleaned(world)
    world.bury_the_dead()
    meanwhile = Meanwhile("ledger.rebuild", lambda: cleaned(world, YEAR))
    with world.process(meanwhile) as pipeline, pytest.raises(RegistryError, match="run cdc rebuild again when no cdc"):
        pipeline.rebuild().run()
    rebuilt(world)
    go_on(world)
    check(world)


def test_histories_go_when_they_are_as_old_as_pipeline_yml_says_and_nothing_else_does(world: World) -> None:
    for _ in range(3):
        apply_changes(world)
    with world.process() as pipeline:
        positions = [
            pipeline.store.lake_positions.lake_position(row.table_id) for row in pipeline.store.tables.tables()
        ]
    claims = world.store_query("SELECT count(*) FROM cdc.claim")
    assert counts(cleaned(world))["rows of claim"] == 0
    assert counts(cleaned(world, timedelta(days=31)))["rows of claim"] > 0
    assert world.store_query("SELECT count(*) FROM cdc.claim") < claims
    with world.process() as pipeline:
        tables = pipeline.store.tables.tables()
        assert [pipeline.store.lake_positions.lake_position(row.table_id) for row in tables] == positions
    go_on(world)
    check(world)
