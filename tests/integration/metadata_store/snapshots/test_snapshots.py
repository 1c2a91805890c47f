"""A snapshot goes forward only, its tasks go to one slot each, and its publication is one transaction."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from cdc_pipeline.errors import SnapshotError, StaleEpoch
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.operations.rebuild_from_lake import KnownSnapshot, RebuildFromLake
from cdc_pipeline.metadata_store.snapshots.records import SnapshotTask
from cdc_pipeline.metadata_store.snapshots.snapshot_tasks import NewTask
from cdc_pipeline.metadata_store.snapshots.snapshots import SnapshotPublication
from cdc_pipeline.metadata_store.states import SliceState, SnapshotState, TableState, TaskKind, TaskState
from cdc_pipeline.record import encode_position
from tests.support.metadata_store import MINUTE, MORNING, Shop, opened_shop
from tests.support.streams import run_sql

ALREADY_OVER = timedelta(seconds=-1)
EXPORTS = tuple(NewTask(kind=TaskKind.EXPORT, ordinal=number, input={"first_page": number}) for number in range(3))


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        yield shop


@pytest.fixture
def exporting(shop: Shop) -> Shop:
    shop.store.snapshots.create_snapshot(shop.new_snapshot(3))
    shop.store.snapshot_tasks.add_tasks("first", EXPORTS)
    return shop


def take(shop: Shop, slot: str, *, duration: timedelta = MINUTE) -> SnapshotTask | None:
    return shop.store.snapshot_tasks.claim_task(
        slot=slot, duration=duration, snapshot_ids=["first"], kinds=[TaskKind.EXPORT, TaskKind.STAGE]
    )


def taken(shop: Shop, slot: str, *, duration: timedelta = MINUTE) -> SnapshotTask:
    task = take(shop, slot, duration=duration)
    assert task is not None
    return task


def states(shop: Shop) -> list[SliceState]:
    return [row.state for row in shop.store.slices.slices(shop.orders.table_id, 1, 100)]


def test_a_snapshot_is_created_once_and_its_table_says_so(shop: Shop) -> None:
    first = shop.store.snapshots.create_snapshot(shop.new_snapshot(3))
    assert shop.store.snapshots.create_snapshot(shop.new_snapshot(3)) == first
    assert shop.store.snapshots.active_snapshot(shop.orders.table_id) == first
    assert shop.store.tables.table_by_id(shop.orders.table_id).state is TableState.SNAPSHOTTING


def test_a_second_snapshot_of_the_table_is_refused_by_the_name_of_the_first(shop: Shop) -> None:
    shop.store.snapshots.create_snapshot(shop.new_snapshot(3))
    with pytest.raises(SnapshotError, match="the snapshot first of table 1 is under way"):
        shop.store.snapshots.create_snapshot(shop.new_snapshot(4, snapshot_id="second"))


def test_a_snapshot_goes_forward_only(shop: Shop) -> None:
    snapshots = shop.store.snapshots
    snapshots.create_snapshot(shop.new_snapshot(3))
    snapshots.set_snapshot_state("first", SnapshotState.COMPACTING)
    assert snapshots.set_snapshot_state("first", SnapshotState.COMPACTING).state is SnapshotState.COMPACTING
    with pytest.raises(SnapshotError, match="is compacting and cannot become staging"):
        snapshots.set_snapshot_state("first", SnapshotState.STAGING)
    with pytest.raises(SnapshotError, match="cannot become published"):
        snapshots.set_snapshot_state("first", SnapshotState.PUBLISHED)


def test_a_snapshot_that_somebody_else_has_moved_stays_as_it_is(shop: Shop) -> None:
    snapshots = shop.store.snapshots
    snapshots.create_snapshot(shop.new_snapshot(3))
    snapshots.set_snapshot_state("first", SnapshotState.PUBLISHING)
    for state in (SnapshotState.COMPACTING, SnapshotState.FAILED):
        seen = snapshots.set_snapshot_state("first", state, error="late", seen=SnapshotState.STAGING)
        assert (seen.state, seen.error) == (SnapshotState.PUBLISHING, None)
    failed = snapshots.set_snapshot_state("first", SnapshotState.FAILED, error="no", seen=SnapshotState.PUBLISHING)
    assert (failed.state, failed.error) == (SnapshotState.FAILED, "no")


def test_an_abandoned_snapshot_gives_the_table_back_and_another_may_begin(shop: Shop) -> None:
    snapshots = shop.store.snapshots
    snapshots.create_snapshot(shop.new_snapshot(3))
    abandoned = snapshots.set_snapshot_state("first", SnapshotState.ABANDONED, error="the exported snapshot is gone")
    assert abandoned.error == "the exported snapshot is gone"
    assert shop.store.tables.table_by_id(shop.orders.table_id).state is TableState.REGISTERED
    assert snapshots.create_snapshot(shop.new_snapshot(4, snapshot_id="second")).state is SnapshotState.EXPORTING


def test_tasks_are_added_once(exporting: Shop) -> None:
    exporting.store.snapshot_tasks.add_tasks("first", EXPORTS)
    assert [task.ordinal for task in exporting.store.snapshot_tasks.tasks("first", TaskKind.EXPORT)] == [0, 1, 2]


def test_another_plan_for_the_same_tasks_is_refused(exporting: Shop) -> None:
    other = replace(EXPORTS[1], input={"first_page": 99})
    with pytest.raises(SnapshotError, match="the export task 1 of snapshot first is already there"):
        exporting.store.snapshot_tasks.add_tasks("first", [other])


def test_many_slots_at_once_get_different_tasks(exporting: Shop) -> None:
    with ThreadPoolExecutor(4) as pool:
        tasks = list(pool.map(lambda slot: take(exporting, f"slot {slot}"), range(4)))
    assert sorted(task.ordinal for task in tasks if task is not None) == [0, 1, 2]


def test_a_slot_never_waits_for_a_task_that_another_one_is_taking(exporting: Shop) -> None:
    with exporting.engine.begin() as busy:
        busy.exec_driver_sql("SELECT FROM cdc.snapshot_task WHERE ordinal = 0 FOR UPDATE")
        assert taken(exporting, "slot").ordinal == 1


def test_a_dead_slots_task_is_taken_again_and_its_late_result_is_refused(exporting: Shop) -> None:
    dead = taken(exporting, "dead", duration=ALREADY_OVER)
    alive = taken(exporting, "alive")
    assert (alive.ordinal, alive.attempt) == (dead.ordinal, 2)
    with pytest.raises(StaleEpoch, match="no longer attempt 1 of dead"):
        exporting.store.snapshot_tasks.finish_task(dead, output={}, rows=1, bytes_=1)
    with pytest.raises(StaleEpoch):
        exporting.store.snapshot_tasks.renew_task(dead, duration=MINUTE)


def test_a_task_that_ends_each_slot_fails_after_five_attempts(exporting: Shop) -> None:
    attempts = [taken(exporting, f"slot {number}", duration=ALREADY_OVER) for number in range(5)]
    assert [(task.ordinal, task.attempt) for task in attempts] == [(0, number) for number in range(1, 6)]
    assert taken(exporting, "slot").ordinal == 1
    lost, *_ = exporting.store.snapshot_tasks.tasks("first", TaskKind.EXPORT)
    assert (lost.state, lost.attempt, lost.slot) == (TaskState.FAILED, 5, "slot 4")
    assert "attempt 5 was lost with its worker slot" in str(lost.error)
    with pytest.raises(StaleEpoch):
        exporting.store.snapshot_tasks.finish_task(attempts[-1], output={}, rows=1, bytes_=1)


def test_the_last_attempt_of_a_slot_that_lives_is_left_to_it(exporting: Shop) -> None:
    for number in range(4):
        taken(exporting, f"slot {number}", duration=ALREADY_OVER)
    last = taken(exporting, "alive")
    assert (last.attempt, taken(exporting, "slot").ordinal) == (5, 1)
    done = exporting.store.snapshot_tasks.finish_task(last, output={}, rows=1, bytes_=1)
    assert done.state is TaskState.DONE


def test_an_earlier_try_of_the_same_slot_is_refused_too(exporting: Shop) -> None:
    earlier = taken(exporting, "slot", duration=ALREADY_OVER)
    taken(exporting, "slot")
    with pytest.raises(StaleEpoch, match="no longer attempt 1 of slot"):
        exporting.store.snapshot_tasks.finish_task(earlier, output={}, rows=1, bytes_=1)


def test_a_renewed_task_stays_with_its_slot(exporting: Shop) -> None:
    task = taken(exporting, "slow", duration=ALREADY_OVER)
    exporting.store.snapshot_tasks.renew_task(task, duration=MINUTE)
    assert taken(exporting, "other").ordinal != task.ordinal


def test_finishing_a_task_keeps_its_output_and_may_be_repeated(exporting: Shop) -> None:
    task = taken(exporting, "slot")
    for _ in range(2):
        done = exporting.store.snapshot_tasks.finish_task(task, output={"path": "a"}, rows=10, bytes_=200)
    assert (done.state, done.output, done.rows) == (TaskState.DONE, {"path": "a"}, 10)


def test_a_failed_task_waits_for_another_try_or_stays_failed(exporting: Shop) -> None:
    tasks = exporting.store.snapshot_tasks
    tasks.fail_task(taken(exporting, "slot"), error="timeout", again=True)
    again = taken(exporting, "slot")
    assert (again.ordinal, again.attempt, again.error) == (0, 2, "timeout")
    tasks.fail_task(again, error="no such column", again=False)
    assert taken(exporting, "slot").ordinal == 1


def test_progress_counts_tasks_by_kind_and_state(exporting: Shop) -> None:
    tasks = exporting.store.snapshot_tasks
    tasks.finish_task(taken(exporting, "slot"), output={}, rows=10, bytes_=200)
    taken(exporting, "slot")
    (row,) = exporting.store.inspection.run("snapshots")
    counts = [row[f"tasks_{state}"] for state in ("waiting", "claimed", "done", "failed")]
    assert (row["kind"], counts, row["rows_done"], row["bytes_done"]) == ("export", [1, 1, 1, 0], 10, 200)
    assert row["cutoff_lsn"] == "0/3"


def test_publication_supersedes_what_the_cutoff_holds_and_makes_the_table_live(shop: Shop) -> None:
    shop.register_orders(3)
    shop.publish(shop.acquire(), 2)
    table = shop.store.tables.table_by_id(shop.orders.table_id)
    assert (table.state, table.cutoff_version) == (TableState.LIVE, "0000000000000002-00000000")
    assert states(shop) == [SliceState.SUPERSEDED] * 4 + [SliceState.REGISTERED] * 2
    assert shop.store.snapshots.snapshot("first").fence_number == 4


@pytest.mark.parametrize(("cutoff", "stays"), [(3, False), (2, True)])
def test_a_killed_repair_ends_with_a_snapshot_that_is_not_older(shop: Shop, cutoff: int, *, stays: bool) -> None:
    """What is still to be registered of a repair at position 3 has a version before the cutoff, or one behind it."""
    shop.register_orders(3, requested=True)
    lease = shop.acquire()
    shop.store.tables.begin_repair(lease)
    shop.register_orders(1, start=3)
    shop.publish(lease, cutoff)
    assert shop.store.tables.table_by_id(shop.orders.table_id).under_repair is stays


def test_publishing_again_changes_nothing(shop: Shop) -> None:
    shop.register_orders(3)
    lease = shop.acquire()
    shop.publish(lease, 2)
    shop.apply(lease, after=4, lake_version=5)
    publication = SnapshotPublication(fence_number=4, lake_version=1, rows=100, files=2, bytes=1000)
    shop.store.snapshots.publish_snapshot(lease, "first", publication)
    assert states(shop)[4:] == [SliceState.APPLIED] * 2


def test_a_new_snapshot_of_a_live_table_takes_back_what_only_the_old_lake_held(shop: Shop) -> None:
    shop.register_orders(4)
    lease = shop.acquire()
    shop.publish(lease, 1)
    shop.apply(lease, after=2, most_slices=4, lake_version=2)
    left = shop.claim(lease, after=6)
    shop.publish(lease, 2, snapshot_id="second", lake_version=8)
    assert states(shop)[4:] == [SliceState.REGISTERED] * 4
    assert shop.store.claims.open_claim(shop.orders.table_id) is None
    failed = shop.store.inspection.run("claims")[0]
    assert (failed["claim_id"], failed["error"]) == (left.claim_id, "the snapshot second replaced the lake's table")


def test_a_fence_over_a_slice_behind_the_cutoff_is_refused(shop: Shop) -> None:
    shop.register_orders(3)
    lease = shop.acquire()
    shop.store.snapshots.create_snapshot(shop.new_snapshot(2))
    shop.store.snapshots.set_snapshot_state("first", SnapshotState.PUBLISHING)
    publication = SnapshotPublication(fence_number=5, lake_version=1, rows=1, files=1, bytes=1)
    with pytest.raises(SnapshotError, match="covers slice 5, which reaches behind"):
        shop.store.snapshots.publish_snapshot(lease, "first", publication)
    assert shop.store.tables.table_by_id(shop.orders.table_id).state is TableState.SNAPSHOTTING


def test_whoever_lost_the_lease_publishes_nothing(shop: Shop) -> None:
    lease = shop.acquire(duration=ALREADY_OVER)
    shop.acquire("other")
    with pytest.raises(StaleEpoch):
        shop.publish(lease, 2)
    assert shop.store.snapshots.snapshot("first").state is SnapshotState.PUBLISHING


def test_the_newest_snapshot_is_the_one_that_was_published_last_whatever_clocks_say(shop: Shop) -> None:
    """Also if the lake was deleted between the two, so that its versions begin again."""
    lease, newest = shop.acquire(), shop.store.snapshot_history.published_snapshot
    shop.publish(lease, 1, snapshot_id="first", lake_version=7)
    run_sql(shop.url, "UPDATE cdc.snapshot SET finished_at = finished_at + interval '1 hour'")
    shop.publish(lease, 2, snapshot_id="second", lake_version=1)
    assert newest(shop.orders.table_id) == "second"
    target = shop.store.rewinds.target(shop.orders.table_id)
    assert target is not None
    assert target.lake_version == 1


def test_a_rebuild_keeps_the_order_of_the_log_whatever_the_writers_clocks_said(shop: Shop) -> None:
    rebuild = RebuildFromLake(database=Database(engine=shop.engine))
    for _ in range(2):
        for number, hours in enumerate((9, 7, 8)):
            found = KnownSnapshot(
                snapshot_id=str(number),
                cutoff_offset=encode_position(number),
                cutoff_version="",
                cutoff_time=MORNING,
                schema_id=shop.schema_id,
                fence_number=0,
                lake_version=number + 1,
                rows=1,
                files=1,
                bytes=1,
                finished_at=MORNING + timedelta(hours=hours),
            )
            rebuild.publish(shop.orders.table_id, found)
        ended = [found.finished_at for found in shop.store.snapshot_history.snapshots(shop.orders.table_id)]
        assert sorted(each - MORNING for each in ended if each) == [
            timedelta(hours=9, microseconds=number) for number in range(3)
        ]
        assert shop.store.snapshot_history.published_snapshot(shop.orders.table_id) == "2"
