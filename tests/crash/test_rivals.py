"""Two at once: workers, zombies, consumers and orchestrators that meet in the middle of their work."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest

from cdc_pipeline.apply.claim_work import ClaimLimits
from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError, LeaseBusy, SnapshotError, SourceAway, StaleEpoch
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment, OnStep
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.invariants import check, lake_rows, source_rows
from tests.crash.world import World, apply_all, go_on, lake_tables, memory_lake, register_changes, take_snapshot
from tests.support.eventually import eventually
from tests.support.memory_lake import MemoryLake
from tests.support.pipelines import consume
from tests.support.streams import postgres_of, run_sql


@dataclass(slots=True)
class Meanwhile:
    """Right before the first step of this name something else happens; then the process goes on."""

    name: str
    happens: Callable[[], object]
    has_happened: bool = False

    def __call__(self, name: str, moment: Moment) -> None:
        if name == self.name and moment is Moment.BEFORE and not self.has_happened:
            self.has_happened = True
            self.happens()


def test_a_second_worker_leaves_at_once_while_the_lease_is_held(world: World) -> None:
    register_changes(world)

    def rival() -> None:
        with world.process() as pipeline, pytest.raises(LeaseBusy, match="held by"):
            pipeline.slice_worker().slice_to_lake(world.tables[0])

    meanwhile = Meanwhile("lake_table.merge", rival)
    with world.process(meanwhile) as pipeline:
        apply_all(pipeline)
    assert meanwhile.has_happened
    check(world)


def test_the_next_worker_takes_over_with_the_same_bounds_once_the_lease_has_expired(world: World) -> None:
    register_changes(world)
    with pytest.raises(Crash), world.process(Failpoint(Site("lake_table.merge", Moment.BEFORE, 1))) as pipeline:
        apply_all(pipeline)
    open_claim = "SELECT claim_id, first_number, last_number FROM cdc.claim WHERE state = 'claimed'"
    (left,) = world.store_query(open_claim)
    register_changes(world)
    with world.process() as pipeline, pytest.raises(LeaseBusy):
        apply_all(pipeline)
    world.bury_the_dead()
    with world.process() as pipeline:
        apply_all(pipeline)
    resumed = f"SELECT first_number, last_number, attempt, state FROM cdc.claim WHERE claim_id = '{left[0]}'"
    assert world.store_query(resumed) == [(*left[1:], 2, "applied")]
    check(world)


def test_a_claim_that_the_lake_has_already_is_marked_and_not_merged_again(world: World) -> None:
    register_changes(world)
    with pytest.raises(Crash), world.process(Failpoint(Site("claim.mark_applied", Moment.BEFORE, 1))) as pipeline:
        apply_all(pipeline)
    with world.process() as pipeline:
        things, *_ = lake_tables(pipeline)
        before = pipeline.lake.read_version(things)
    world.bury_the_dead()
    with world.process() as pipeline:
        assert pipeline.slice_worker().slice_to_lake(things.name).outcomes == ()
        assert pipeline.lake.read_version(things) == before
        apply_all(pipeline)
    check(world)


def test_a_worker_that_wakes_up_after_its_lease_was_taken_changes_nothing(world: World) -> None:
    def rival() -> None:
        register_changes(world)
        world.bury_the_dead()
        with world.process() as pipeline:
            apply_all(pipeline)

    for place in (
        "slice.read_next",
        "claim.record",
        "slice_file.get",
        "lake_schema.read",
        "lake_file.put",
        "lake_table.merge",
        "claim.mark_applied",
    ):
        register_changes(world)
        meanwhile = Meanwhile(place, rival)
        with world.process(meanwhile) as pipeline, pytest.raises((StaleEpoch, LakeError)):
            pipeline.slice_worker().slice_to_lake(world.tables[0])
        assert meanwhile.has_happened
        check(world)


def test_rows_of_a_keyless_table_that_a_zombie_added_twice_are_taken_back(world: World) -> None:
    """Its claim was lost with the store's last transactions; what goes on ends earlier, so Delta lets it pass."""
    notes = world.tables[2]

    def rival() -> None:
        world.bury_the_dead()
        run_sql(world.store_url, "DELETE FROM cdc.claim WHERE state = 'claimed'")
        with world.process() as pipeline:
            worker = replace(pipeline.slice_worker(), limits=ClaimLimits(slices=1, rows=1))
            with pytest.raises(Crash), world.process(Failpoint(Site("claim.record", Moment.BEFORE, 2))) as dying:
                replace(worker, work=dying.table_work).slice_to_lake(notes)

    register_changes(world)
    meanwhile = Meanwhile("lake_schema.read", rival)
    with world.process(meanwhile) as pipeline, pytest.raises(StaleEpoch):
        pipeline.slice_worker().slice_to_lake(notes)
    assert meanwhile.has_happened
    with world.process() as pipeline:
        table = pipeline.lake_table(notes)
        assert lake_rows(pipeline, table) != source_rows(world, table)
    go_on(world)
    check(world)


def test_a_worker_that_could_not_renew_in_time_stops_by_its_own_clock() -> None:
    minute = timedelta(minutes=1)
    LeaseKeeper(lambda: None, minute, sent=time.monotonic(), what="a table").check()
    with pytest.raises(StaleEpoch, match="could not be renewed"):
        LeaseKeeper(lambda: None, minute, sent=time.monotonic() - 60, what="a table").check()


def test_a_consumer_whose_stream_was_taken_over_registers_nothing_more(world: World) -> None:
    def rival() -> None:
        world.change(marks=2)
        cut_off(world)
        with world.process() as pipeline:
            consume(pipeline)

    for place in ("source.mark", "slice_file.put", "cut_file.put", "registry.register", "slot.confirm"):
        world.change(marks=2)
        meanwhile = Meanwhile(place, rival)
        with world.process(meanwhile) as pipeline, pytest.raises((StaleEpoch, SourceAway)):
            consume(pipeline)
        assert meanwhile.has_happened
        go_on(world)
        check(world)


def cut_off(world: World) -> None:
    """The source gives up the connection of whoever reads the slot."""
    slot = f"FROM pg_replication_slots WHERE slot_name = '{postgres_of(world.settings).slot}' AND active"
    with closing(psycopg2.connect(world.source_url)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_terminate_backend(active_pid) {slot}")
    assert eventually(lambda: not world.query(f"SELECT 1 {slot}"))


def test_a_second_orchestrator_refuses_a_table_that_is_being_exported(world: World) -> None:
    def rival() -> None:
        with world.process() as pipeline, pytest.raises(SnapshotError, match="another orchestrator"):
            take_snapshot(pipeline, world.tables)

    meanwhile = Meanwhile("snapshot_file.put", rival)
    with world.process(meanwhile) as pipeline:
        take_snapshot(pipeline, world.tables)
    assert meanwhile.has_happened
    go_on(world)
    check(world)


def test_a_worker_slot_that_wakes_up_after_its_task_was_done_changes_nothing(world: World) -> None:
    parts = next(table for table in world.tables if table.table == "parts")
    for place in ("staging_file.put", "lake_file.put"):
        meanwhile = Meanwhile(place, lambda: finish_snapshot(world, parts))
        with world.process(meanwhile) as pipeline:
            (snapshot,) = take_snapshot(pipeline, [parts])
        assert meanwhile.has_happened
        assert snapshot.state is SnapshotState.PUBLISHED
        go_on(world)
        check(world)


def test_two_orchestrators_that_publish_at_once_publish_once(world: World) -> None:
    meanwhile = Meanwhile("snapshot.publish", lambda: finish_snapshot(world, world.tables[0]))
    with world.process(meanwhile) as pipeline:
        (snapshot,) = take_snapshot(pipeline, world.tables[:1])
    assert (meanwhile.has_happened, snapshot.state) == (True, SnapshotState.PUBLISHED)
    with world.process() as pipeline:
        things, *_ = lake_tables(pipeline)
        commits = memory_lake(pipeline).commits(things)
    assert len([commit for commit in commits if "snapshot_id" in commit.user_metadata]) == 2
    go_on(world)
    check(world)


@pytest.mark.parametrize("is_published", [True, False])
def test_an_orchestrator_that_wakes_up_behind_another_one_leaves_the_snapshot_to_it(
    world: World, *, is_published: bool
) -> None:
    def rival() -> None:
        if is_published:
            finish_snapshot(world, world.tables[0])
            return
        died = Failpoint(Site("snapshot.publish", Moment.BEFORE, 1))
        with pytest.raises(Crash), world.process(died) as pipeline:
            take_snapshot(pipeline, world.tables[:1])
        world.expire_leases()

    meanwhile = Meanwhile("lake_table.create", rival)
    with world.process(meanwhile) as pipeline:
        snapshots = take_snapshot(pipeline, [world.tables[0], world.tables[2]])
    assert meanwhile.has_happened
    assert [snapshot.state for snapshot in snapshots] == [SnapshotState.PUBLISHED] * 2
    go_on(world)
    check(world)


class SessionsLake(MemoryLake):
    """Works in a session that outlives its client. `cancelled`: each with whether a table was there then."""

    def __init__(self, objects: ObjectStore, on_step: OnStep, table: TableName, cancelled: list[object]) -> None:
        super().__init__(store=objects, clock=lambda: datetime.now(UTC), on_step=on_step)
        self.log, self.cancelled = DeltaLog(objects, lake_key(table)), cancelled

    def open(self) -> str:
        return "outlives"

    def cancel(self, session: str, claim_id: str) -> None:
        self.cancelled.append((session, claim_id, self.log.exists(0)))


def test_a_removal_with_the_lake_first_cancels_what_a_dead_worker_left_running(world: World) -> None:
    register_changes(world)
    whole, gone, cancelled = world.settings, world.tables[0], list[object]()
    world.make_lake = lambda objects, on_step: SessionsLake(objects, on_step, gone, cancelled)
    died = Failpoint(Site("lake_table.merge", Moment.BEFORE, 1))
    with pytest.raises(Crash), world.process(died) as pipeline:
        pipeline.slice_worker().slice_to_lake(gone)
    world.bury_the_dead()
    ((claim,),) = world.store_query("SELECT claim_id FROM cdc.claim WHERE state = 'claimed'")
    world.settings = whole.model_copy(update={"tables": whole.tables[1:]})
    with world.process() as pipeline:
        pipeline.removal().remove_table(gone, with_lake=True)
    assert cancelled == [("outlives", str(claim), True)]


def test_slices_behind_the_cutoff_wait_while_a_snapshot_is_taken(world: World) -> None:
    def rival() -> None:
        register_changes(world)
        with world.process() as pipeline:
            for table in world.tables:
                assert "waits for it" in pipeline.slice_worker().slice_to_lake(table).ended

    for place in ("snapshot_file.put", "staging_file.put", "lake_file.put"):
        meanwhile = Meanwhile(place, rival)
        with world.process(meanwhile) as pipeline:
            snapshots = take_snapshot(pipeline, world.tables)
        assert meanwhile.has_happened
        assert {snapshot.state for snapshot in snapshots} == {SnapshotState.PUBLISHED}
        go_on(world)
        check(world)


def test_a_snapshot_fixes_its_cutoff_only_when_the_worker_has_left(world: World) -> None:
    with world.process() as pipeline:
        table_id = pipeline.store.tables.table(world.tables[0]).table_id
        lease = pipeline.store.leases.acquire(table_id, owner="a worker", duration=timedelta(seconds=1))
        (snapshot,) = take_snapshot(pipeline, world.tables[:1])
    assert snapshot.state is SnapshotState.PUBLISHED
    assert snapshot.cutoff_time >= lease.expires_at


def finish_snapshot(world: World, table: TableName) -> None:
    """Another process takes everything over, as it may once task leases and lease have expired."""
    world.expire_leases()
    with world.process() as pipeline:
        (snapshot,) = take_snapshot(pipeline, [table])
    assert snapshot.state is SnapshotState.PUBLISHED
