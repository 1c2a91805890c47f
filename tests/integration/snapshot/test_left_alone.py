"""An orchestrator without worker slots, and a worker slot without an orchestrator, end as soon as they are told."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from cdc_pipeline.errors import LeaseBusy, SnapshotError, StoreAway
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.steps import Moment, OnStep
from snapshot.wiring import export_at, snapshot_orchestrator, snapshot_runs
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.world import World, apply_all, new_world, register_changes, take_snapshot
from tests.support.exports import ExportedTables, named
from tests.support.pipelines import POLL, set_up_and_consume
from tests.support.streams import run_sql


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    with new_world(postgres, tmp_path) as world:
        yield world


def gone() -> None:
    raise SnapshotError("the others are gone", expected="others", remedy="begin again")


def test_a_worker_slot_ends_red_without_its_orchestrator(world: World) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        runs = snapshot_runs(pipeline)
        (order,) = runs.begin([], 1)
        with pytest.raises(SnapshotError, match="the others are gone"):
            runs.work(order, gone)


def test_an_orchestrator_ends_red_without_worker_slots_and_another_run_publishes(world: World) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        runs = snapshot_runs(pipeline, poll_interval=POLL)
        orders = runs.begin([], 1)
        with pytest.raises(SnapshotError, match="the others are gone"):
            runs.orchestrate(orders, gone)
        assert {found.state for found in take_snapshot(pipeline, world.tables)} == {SnapshotState.PUBLISHED}


def test_an_orchestrator_that_waits_for_a_lease_ends_red_without_worker_slots(world: World) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        runs = snapshot_runs(pipeline, poll_interval=POLL)
        busy = pipeline.store.tables.table(world.tables[0]).table_id
        with pipeline.repair().work.leased(busy), pytest.raises(SnapshotError, match="the others are gone"):
            runs.orchestrate(runs.begin([], 1), gone)


def test_a_live_table_goes_on_after_a_run_that_ended_before_its_rows_were_copied(world: World) -> None:
    """The run held the position of the rows; no other run can copy them as of that position."""
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        assert {found.state for found in take_snapshot(pipeline, world.tables)} == {SnapshotState.PUBLISHED}
        runs = snapshot_runs(pipeline, poll_interval=POLL)
        with pytest.raises(SnapshotError, match="the others are gone"):
            runs.orchestrate(runs.begin([], 1), gone)
        register_changes(world)
        apply_all(pipeline)
        for name in world.tables:
            row = pipeline.store.tables.table(name)
            fence = pipeline.lake.read_fence(pipeline.lake_table(name))
            assert fence is not None
            assert (fence.number, pipeline.store.snapshots.active_snapshot(row.table_id)) == (
                row.next_slice_number - 1,
                None,
            )


def test_neither_ends_while_it_has_work(world: World) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        assert {found.state for found in take_snapshot(pipeline, world.tables)} == {SnapshotState.PUBLISHED}
        since = pipeline.store.snapshot_history.now() - timedelta(hours=1)
        worker = snapshot_runs(pipeline).worker(0)
        assert worker.run(world.tables, since, Event(), gone) == 0
        assert snapshot_runs(pipeline).orchestrator.run((), Event(), gone) == ()


class Looks(Event):
    """Calls `look` whenever the orchestrator waits, with the number of waits so far; set as soon as that says so."""

    def __init__(self, look: Callable[[int], bool]) -> None:
        super().__init__()
        self.look, self.number, self.pauses = look, 0, list[float]()

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        self.number += 1
        return self.look(self.number)


def test_a_run_that_waits_for_a_busy_table_leaves_the_others_alone(world: World) -> None:
    held = []

    def look(number: int) -> bool:
        if number in {5, 30}:
            held.append({str(owner).split(":")[0] for (owner,) in world.held_leases()})
        if number == 40:
            world.expire_leases()
        return number > 40

    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        busy = pipeline.store.tables.table(max(world.tables)).table_id
        pipeline.store.leases.acquire(busy, owner="a long claim", duration=timedelta(hours=1))
        begun = snapshot_runs(pipeline).orchestrator.run(world.tables, Looks(look))
        assert held == [{"a long claim", pipeline.owner.split(":")[0]}, {"a long claim"}]
        assert {found.state for found in begun} == {SnapshotState.EXPORTING}


def away_at(step: str, *numbers: int) -> OnStep:
    """The metadata store does not answer these calls of a step, of which the first is 1."""
    calls = count(1)

    def away(name: str, moment: Moment) -> None:
        if (name, moment) == (step, Moment.BEFORE) and next(calls) in numbers:
            raise StoreAway("nobody answers")

    return away


def test_a_metadata_store_that_is_away_for_a_moment_costs_no_exported_rows(world: World) -> None:
    with world.process(away_at("snapshot_task.count", 1, 3)) as pipeline:
        set_up_and_consume(pipeline)
        assert {found.state for found in take_snapshot(pipeline, world.tables)} == {SnapshotState.PUBLISHED}
    assert world.store_query("SELECT count(*) FROM cdc.snapshot") == [(3,)]


def test_a_worker_slot_begins_again_behind_a_metadata_store_that_was_away(world: World) -> None:
    with world.process(away_at("snapshot_task.claim", 1, 3)) as pipeline:
        set_up_and_consume(pipeline)
        ended = snapshot_runs(pipeline, poll_interval=POLL).take(world.tables, slots=1)
    assert {found.state for found in ended} == {SnapshotState.PUBLISHED}
    assert world.store_query("SELECT count(*) FROM cdc.snapshot") == [(3,)]


def test_a_worker_slot_of_airflow_does_so_too_and_spends_no_retry(world: World) -> None:
    with world.process(away_at("snapshot_task.claim", 1, 3)) as pipeline, ThreadPoolExecutor() as threads:
        set_up_and_consume(pipeline)
        runs = snapshot_runs(pipeline, poll_interval=POLL)
        (order,) = runs.begin([], 1)
        slot = threads.submit(runs.work, order)

        def goes_on() -> None:
            if slot.done():
                slot.result()

        assert len(runs.orchestrate([order], goes_on)) == len(world.tables)
        assert slot.result() > 0
    assert world.store_query("SELECT count(*) FROM cdc.snapshot") == [(3,)]


def test_a_worker_slot_whose_metadata_store_stays_away_ends_the_run(world: World) -> None:
    with world.process(away_at("snapshot_task.claim", 1)) as pipeline:
        set_up_and_consume(pipeline)
        runs = replace(snapshot_runs(pipeline, poll_interval=POLL), longest_away=timedelta(0))
        with pytest.raises(StoreAway):
            runs.take(world.tables, slots=1)


def test_a_metadata_store_that_stays_away_ends_the_run(world: World) -> None:
    with world.process(away_at("snapshot_task.count", 1)) as pipeline:
        set_up_and_consume(pipeline)
        orchestrator = replace(snapshot_orchestrator(pipeline, poll_interval=POLL), longest_away=timedelta(0))
        with pytest.raises(StoreAway):
            orchestrator.run(world.tables, Event())


def test_a_pause_between_two_looks_is_no_time_for_which_the_metadata_store_was_away(world: World) -> None:
    """The look before was longer ago than the store may be away. The next one comes soon."""
    looks = Looks(lambda number: number > 4)
    with world.process(away_at("snapshot_task.count", 4)) as pipeline:
        set_up_and_consume(pipeline)
        orchestrator = snapshot_orchestrator(pipeline, poll_interval=timedelta(minutes=10))
        orchestrator = replace(orchestrator, longest_away=timedelta(microseconds=1))
        assert {found.state for found in orchestrator.run(world.tables, looks)} == {SnapshotState.EXPORTING}
    before, behind = looks.pauses[1:3]
    assert (before < 1, behind) == (True, 10)


def test_a_run_whose_tables_are_busy_by_turns_begins_all_the_same(world: World) -> None:
    def look(number: int) -> bool:
        if number % 50 == 1:
            run_sql(world.store_url, "UPDATE cdc.lease SET expires_at = clock_timestamp() WHERE owner = 'a long claim'")
            with suppress(LeaseBusy):
                table_id = pipeline.store.tables.table(world.tables[number // 50 % 2]).table_id
                pipeline.store.leases.acquire(table_id, owner="a long claim", duration=timedelta(hours=1))
        assert number < 1_000
        return bool(pipeline.store.snapshots.active_snapshots([1, 2, 3]))

    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        table_id = pipeline.store.tables.table(world.tables[1]).table_id
        pipeline.store.leases.acquire(table_id, owner="a long claim", duration=timedelta(hours=1))
        begun = snapshot_runs(pipeline).orchestrator.run(world.tables, Looks(look))
        assert {found.state for found in begun} == {SnapshotState.EXPORTING}


def test_a_second_run_leaves_one_that_copies_exported_files_alone(tmp_path: Path, store_url: str) -> None:
    tables = ExportedTables(folder=tmp_path, store_url=store_url, source={"format": "upserts", "order_by": ["n"]})
    tables.write("export/a.csv", "id,name,amount\n77,Ada,1.50\n")
    orders, export = named("orders"), export_at(str(tmp_path / "export"), "start")
    with tables.opened() as pipeline:
        pipeline.source_setup().set_up()
    claimed = Failpoint(Site("snapshot_task.claim", Moment.AFTER, 1))
    with pytest.raises(Crash), tables.opened(claimed) as pipeline:
        take_snapshot(pipeline, [orders], export=export)
    run_sql(store_url, "UPDATE cdc.lease SET expires_at = clock_timestamp()")
    with tables.opened() as pipeline:
        with pytest.raises(SnapshotError, match="is being exported by another orchestrator"):
            take_snapshot(pipeline, [orders], export=export)
        run_sql(store_url, "UPDATE cdc.snapshot_task SET lease_expires_at = clock_timestamp()")
        (taken,) = take_snapshot(pipeline, [orders], export=export)
        assert taken.state is SnapshotState.PUBLISHED
