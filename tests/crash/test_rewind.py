"""A table set back to an earlier position, and its slices applied again."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from cdc_pipeline.errors import CdcError, LakeError, LeaseBusy, SliceDamaged, UsageError
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.operations.rewind import Rewound, parse_target
from cdc_pipeline.record import decode_position
from cdc_pipeline.sources.postgres.position import lsn_text
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.invariants import check, lake_rows, source_rows
from tests.crash.test_rebuild import INFINITE, replay_all
from tests.crash.test_rivals import SessionsLake
from tests.crash.world import (
    World,
    apply_all,
    go_on,
    lake_tables,
    memory_lake,
    register_changes,
    take_snapshot,
)
from tests.support.memory_lake import MemoryLake
from tests.support.streams import run_sql


def rows(pipeline: Pipeline, table: LakeTable) -> list[str]:
    """With every column of ours; copies of one row of a bag differ in nothing but which of them was told when."""
    found = memory_lake(pipeline).rows(table)
    if table.schema.is_keyless:
        found = [{name: row[name] for name in table.schema.names} for row in found]
    return sorted(map(str, found))


def position(pipeline: Pipeline, table: LakeTable) -> str:
    place = pipeline.store.lake_positions.lake_position(pipeline.store.tables.table(table.name).table_id).position
    assert place is not None
    return place


def last_before_slices(world: World, place: str) -> str:
    """The last cut that a table set back to the position still equals: a cut without slices may lie between."""
    ((found,),) = world.store_query(
        "SELECT max(position) FROM cdc.boundary WHERE position < (SELECT min(position) FROM cdc.boundary"
        f" JOIN cdc.slice USING (boundary_id) WHERE position > '{place}')"
    )
    assert isinstance(found, str)
    return found


def apply_changes(world: World) -> None:
    register_changes(world)
    with world.process() as pipeline:
        apply_all(pipeline)


def test_a_table_set_back_equals_what_it_was_and_its_slices_bring_it_forward_to_the_same_bytes(world: World) -> None:
    apply_changes(world)
    with world.process() as pipeline:
        tables = lake_tables(pipeline)
        place, then = position(pipeline, tables[0]), [rows(pipeline, table) for table in tables]
    apply_changes(world)
    apply_changes(world)
    with world.process() as pipeline:
        latest = [rows(pipeline, table) for table in tables]
        found = [pipeline.rewind().run(table.name, lsn_text(decode_position(place))) for table in tables]
        assert [rows(pipeline, table) for table in tables] == then != latest
        assert [back.position for back in found] == [place] * len(tables)
        assert [position(pipeline, table) for table in tables] == [last_before_slices(world, place)] * len(tables)
        assert all(back.slices_waiting > 0 for back in found)
        again = [pipeline.rewind().run(table.name, place) for table in tables]
        assert [back.position for back in again] == [place] * len(tables)
        apply_all(pipeline)
        assert [rows(pipeline, table) for table in tables] == latest
    check(world)
    apply_changes(world)
    check(world)


def test_a_table_that_was_idle_for_longer_than_slices_are_kept_is_set_back_behind_its_newest_slices(
    world: World,
) -> None:
    apply_changes(world)
    with world.process() as pipeline:
        tables, moment = lake_tables(pipeline), pipeline.store.snapshot_history.now()
        places, then = [position(pipeline, table) for table in tables], [rows(pipeline, table) for table in tables]
        for table in tables:
            pipeline.lake.keep_fence(table, older_than=timedelta())
            pipeline.lake.optimize(table)
    world.make_lake = lambda objects, on_step: MemoryLake(
        store=objects, clock=lambda: datetime.now(UTC) + timedelta(days=8), on_step=on_step
    )
    apply_changes(world)
    with world.process() as pipeline:
        pipeline.cleanup().clean(now=moment + pipeline.settings.keep.slices)
        assert all(pipeline.store.tables.table(table.name).forgotten_through > 0 for table in tables)
        for table, place in zip(tables, places, strict=True):
            assert pipeline.rewind().run(table.name, place).position == place
        assert [rows(pipeline, table) for table in tables] == then
    go_on(world)
    check(world)


def test_a_rewind_that_dies_leaves_a_table_that_goes_on(world: World) -> None:
    for name, moment in product(("lake_table.rewind", "rewind.reopen"), (Moment.BEFORE, Moment.AFTER)):
        apply_changes(world)
        with world.process() as pipeline:
            table = lake_tables(pipeline)[0]
            place = position(pipeline, table)
        apply_changes(world)
        with pytest.raises(Crash), world.process(Failpoint(Site(name, moment, 1))) as pipeline:
            pipeline.rewind().run(table.name, place)
        go_on(world)
        check(world)


def test_a_rewind_applies_nothing_of_a_claim_that_a_dead_worker_left_open_and_cancels_it(world: World) -> None:
    apply_changes(world)
    with world.process() as pipeline:
        table = lake_tables(pipeline)[0]
        place, then = position(pipeline, table), rows(pipeline, table)
    apply_changes(world)
    register_changes(world)
    cancelled = list[object]()
    world.make_lake = lambda objects, on_step: SessionsLake(objects, on_step, table.name, cancelled)
    dies = Failpoint(Site("lake_table.merge", Moment.BEFORE, 1))
    with pytest.raises(Crash), world.process(dies) as pipeline:
        pipeline.slice_worker().slice_to_lake(table.name)
    world.bury_the_dead()
    ((claim,),) = world.store_query("SELECT claim_id FROM cdc.claim WHERE state = 'claimed'")

    def merges_nothing(name: str, _moment: Moment) -> None:
        if name == "lake_table.merge":
            raise LakeError("the claim fails each time")

    with world.process(merges_nothing) as pipeline:
        assert pipeline.rewind().run(table.name, place).position == place
        assert rows(pipeline, table) == then
    assert cancelled == [("outlives", str(claim), True)]
    go_on(world)
    check(world)


def test_after_a_rewind_that_died_before_the_store_knew_of_it_verify_applies_again_what_is_missing(
    world: World,
) -> None:
    apply_changes(world)
    with world.process() as pipeline:
        table = lake_tables(pipeline)[0]
        place = position(pipeline, table)
    apply_changes(world)
    dies = Failpoint(Site("lake_table.rewind", Moment.AFTER, 1))
    with pytest.raises(Crash), world.process(dies) as pipeline:
        pipeline.rewind().run(table.name, place)
    world.bury_the_dead()
    with world.process() as pipeline:
        (found,) = pipeline.verification().verify([table.name])
    assert found.is_equal, found
    check(world)


def test_maintenance_beside_a_rewind_that_died_keeps_the_tombstones_that_a_replayed_event_meets_again(
    world: World,
) -> None:
    """The store still calls the late slice applied. The lake lacks it, and it inserts a row that was deleted since."""
    run_sql(world.source_url, INFINITE.format(5000), "DELETE FROM things WHERE id = 5000")
    apply_changes(world)
    ((place,),) = world.store_query("SELECT max(position) FROM cdc.boundary")
    apply_changes(world)
    replay_all(world)
    with world.process() as pipeline:
        apply_all(pipeline)
    things, dies = world.tables[0], Failpoint(Site("rewind.reopen", Moment.BEFORE, 1))
    with pytest.raises(Crash), world.process(dies) as pipeline:
        pipeline.rewind().run(things, place)
    world.bury_the_dead()
    with world.process() as pipeline:
        assert pipeline.maintenance().maintain(things)["ended"] == "done"
    go_on(world)
    with world.process() as pipeline:
        for table in lake_tables(pipeline):
            assert lake_rows(pipeline, table) == source_rows(world, table)


def test_a_table_can_be_set_back_to_its_snapshot_and_not_behind_it(world: World) -> None:
    with world.process() as pipeline:
        table = lake_tables(pipeline)[0]
        snapshot = rows(pipeline, table)
        cutoff = pipeline.store.tables.table(table.name)
    apply_changes(world)
    with world.process() as pipeline:
        before = rows(pipeline, table)
        with pytest.raises(UsageError, match=r"nothing of .* was applied at or before"):
            pipeline.rewind().run(table.name, "0/1")
        assert rows(pipeline, table) == before
        assert cutoff.cutoff_time is not None
        pipeline.rewind().run(table.name, cutoff.cutoff_time.isoformat())
        assert rows(pipeline, table) == snapshot
    go_on(world)
    check(world)


NO_TARGETS = [
    *("", "yesterday", "2026-01-31T12:00:00", "0001-01-01T00:00:00+23:59", "٢026-01-31T12:00:00Z"),
    *("0/xyz", "0/-5", "FFFFFFFFFF/0", "0/FFFFFFFFFF", "0/1_0", "0/0x10", " 0/10", "0/10\n", "0/٢", "0/", "/", "1/2/3"),
    *("00000000000000_1", "0x00000000000010", "000000000000001٢"),
]


@pytest.mark.parametrize("text", NO_TARGETS)
def test_a_place_that_is_none_is_refused_by_what_was_given(text: str) -> None:
    with pytest.raises(UsageError, match="is no position or time to go back to"):
        parse_target(text)


@pytest.mark.parametrize("text", ["20260131T120000Z", "2026-01-31T12:00:00Z", "20260131T1300+01"])
def test_a_time_may_be_written_in_any_way_of_iso_8601_with_its_zone(text: str) -> None:
    assert parse_target(text) == (None, datetime(2026, 1, 31, 12, tzinfo=UTC))


def remove_slice_file(world: World, _pipeline: Pipeline) -> None:
    ((path,),) = world.store_query(
        "SELECT path FROM cdc.slice WHERE path IS NOT NULL AND table_id = 1 ORDER BY number DESC LIMIT 1"
    )
    (world.settings.folder / world.settings.lake / path).unlink()


def keep_the_lease(_world: World, pipeline: Pipeline) -> None:
    pipeline.store.leases.acquire(1, owner="a worker", duration=timedelta(minutes=1))


@pytest.mark.parametrize(("spoil", "error"), [(remove_slice_file, SliceDamaged), (keep_the_lease, LeaseBusy)])
def test_a_rewind_that_is_refused_changes_nothing(
    world: World, spoil: Callable[[World, Pipeline], Any], error: type[CdcError]
) -> None:
    apply_changes(world)
    with world.process() as pipeline:
        (table, *_) = lake_tables(pipeline)
        assert pipeline.store.tables.table(table.name).table_id == 1
        place, before = position(pipeline, table), pipeline.lake.read_version(table)
    apply_changes(world)
    with world.process() as pipeline:
        before = pipeline.lake.read_version(table)
        spoil(world, pipeline)
        with pytest.raises(error):
            pipeline.rewind().run(table.name, place)
        assert pipeline.lake.read_version(table) == before
        assert position(pipeline, table) > place


def test_what_a_rewind_says(world: World) -> None:
    apply_changes(world)
    with world.process() as pipeline:
        table = lake_tables(pipeline)[0]
        found = pipeline.rewind().run(table.name, position(pipeline, table))
    assert isinstance(found, Rewound)
    assert found.slices_waiting == 0


def test_no_rewind_goes_to_a_snapshot_whose_commit_the_log_no_longer_has(world: World) -> None:
    """As after a rebuild from a log that was cleaned: nobody knows which version of the lake it made."""
    apply_changes(world)
    table = world.tables[0]
    cutoff = world.store_query(
        "UPDATE cdc.snapshot SET lake_version = NULL FROM cdc.source_table AS source WHERE snapshot.table_id ="
        f" source.table_id AND table_name = '{table.table}' RETURNING source.cutoff_offset"
    )[0][0]
    world.store_query("COMMIT")
    with world.process() as pipeline, pytest.raises(UsageError, match=r"nothing of .* was applied at or before"):
        pipeline.rewind().run(table, str(cutoff))
    go_on(world)
    check(world)


def test_maintenance_deletes_no_file_while_a_snapshot_is_under_way(world: World) -> None:
    """It may have been killed a week ago, and resumes with the files that it has written."""
    with (
        pytest.raises(Crash),
        world.process(Failpoint(Site("snapshot.publish", Moment.BEFORE, 1))) as pipeline,
    ):
        take_snapshot(pipeline, world.tables[:1])
    world.bury_the_dead()
    with world.process() as pipeline:
        report = pipeline.maintenance().maintain(world.tables[0])
        assert "no file is deleted: a snapshot is under way" in str(report["ended"])
        assert pipeline.maintenance().maintain(world.tables[1])["ended"] == "done"
        take_snapshot(pipeline, world.tables[:1])
    go_on(world)
    check(world)
