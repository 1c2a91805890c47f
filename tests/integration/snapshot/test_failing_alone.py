"""A table whose snapshot cannot go on fails alone: its neighbours are published in the same run."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import get_ident

import pytest

from cdc_pipeline.errors import LakeAway, LakeError, ObjectStoreAway, UsageError
from cdc_pipeline.lake.protocol import Compaction, DataFile, LakePublication, LakeTable, always
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.steps import Moment, OnStep
from cdc_pipeline.wiring import LakeFactory
from snapshot.wiring import snapshot_runs
from snapshot.worker import SnapshotWorker
from tests.crash.invariants import check, source_rows
from tests.crash.world import World, go_on, new_world, take_snapshot
from tests.support.delta_rows import seen
from tests.support.eventually import eventually
from tests.support.mariadb import BinlogServerOfTests, run_mysql
from tests.support.memory_lake import MemoryLake
from tests.support.pipelines import POLL, consume, mysql_settings, set_up_and_consume, stored_rows
from tests.support.streams import run_sql


class RefusingLake(MemoryLake):
    """Has no room for the table `things`, so many times."""

    def __init__(self, objects: ObjectStore, on_step: OnStep, error: Exception, times: int) -> None:
        super().__init__(store=objects, clock=lambda: datetime.now(UTC), on_step=on_step)
        self._error, self._times = error, times

    def create_table(self, table: LakeTable, *, snapshot_id: str | None = None) -> None:
        if table.name.table == "things" and self._times:
            self._times -= 1
            raise self._error
        super().create_table(table, snapshot_id=snapshot_id)


class BreakingLake(MemoryLake):
    """Compacting the table `things` meets an error that nobody foresaw, so many times."""

    def __init__(self, objects: ObjectStore, on_step: OnStep, times: int) -> None:
        super().__init__(store=objects, clock=lambda: datetime.now(UTC), on_step=on_step)
        self._times = times

    def compact(self, table: LakeTable, compaction_work: Compaction) -> tuple[DataFile, ...]:
        if table.name.table == "things" and self._times:
            self._times -= 1
            raise TypeError("no order")
        return super().compact(table, compaction_work)


class ForgetfulLake(MemoryLake):
    """Publishing the table `things` fails so many times, before its commit or behind it, as a history does."""

    def __init__(self, objects: ObjectStore, on_step: OnStep, times: int, *, commits: bool) -> None:
        super().__init__(store=objects, clock=lambda: datetime.now(UTC), on_step=on_step)
        self._times, self._commits = times, commits

    def publish(self, table: LakeTable, content: LakePublication, *, may_commit: Callable[[], None] = always) -> int:
        fails = table.name.table == "things" and self._times > 0
        version = super().publish(table, content, may_commit=may_commit) if self._commits or not fails else 0
        if fails:
            self._times -= 1
            raise LakeError("Spark failed")
        return version


class TakenOverLake(MemoryLake):
    """Another process had the lease of the table `things` while it was published, once."""

    def __init__(self, objects: ObjectStore, on_step: OnStep, store_url: str) -> None:
        super().__init__(store=objects, clock=lambda: datetime.now(UTC), on_step=on_step)
        self._store_urls = [store_url]

    def publish(self, table: LakeTable, content: LakePublication, *, may_commit: Callable[[], None] = always) -> int:
        version = super().publish(table, content, may_commit=may_commit)
        if table.name.table == "things" and self._store_urls:
            taken = "SET epoch = epoch + 1, expires_at = clock_timestamp()"
            run_sql(self._store_urls.pop(), f"UPDATE cdc.lease {taken} WHERE table_id = 1")
        return version


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    with new_world(postgres, tmp_path) as world:
        yield world


def test_a_table_that_is_removed_meanwhile_fails_alone(world: World) -> None:
    removed = world.tables[2]
    left = [removed]

    def is_unleased() -> bool:
        return world.store_query("SELECT count(*) FROM cdc.lease WHERE expires_at > clock_timestamp()") == [(0,)]

    def remove(name: str, moment: Moment) -> None:
        if (name, moment) == ("snapshot_task.finish", Moment.AFTER) and left:
            assert eventually(is_unleased)  # the orchestrator has begun the snapshot of every table
            with world.process() as other:
                world.silence_snapshots()
                assert other.store.removal.remove_table(other.settings.name, left.pop())

    with world.process() as pipeline:
        set_up_and_consume(pipeline)
    with world.process(remove) as pipeline:
        ended = snapshot_runs(pipeline, poll_interval=POLL).take(world.tables, slots=1)
    assert [found.state for found in ended] == ["published", "published", "failed"]
    assert "there is no snapshot" in str(ended[2].error)


def test_a_table_that_cannot_be_described_at_the_cutoff_fails_alone(
    binlog_server: BinlogServerOfTests, store_url: str, tmp_path: Path
) -> None:
    """The server shows no rows as of the position of a table that was truncated or rebuilt behind it."""
    url, database = binlog_server.url, binlog_server.database
    run_mysql(url, *(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in ("a", "b", "c")), database=database)

    def truncate(name: str, moment: Moment) -> None:
        if (name, moment) == ("position.hold", Moment.AFTER):
            run_mysql(url, "TRUNCATE TABLE b", database=database)

    settings = mysql_settings(tmp_path, url, database, [{"name": name} for name in ("a", "b", "c")])
    with closing(World(settings=settings, source_url=url, store_url=store_url)) as world:
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
        with world.process(truncate) as pipeline:
            ended = take_snapshot(pipeline, world.tables)
    assert [found.state for found in ended] == ["published", "failed", "published"]
    assert "definition has changed" in str(ended[1].error)


@pytest.mark.parametrize(("truncates", "state"), [("apply", "published"), ("ignore", "failed")])
def test_a_table_that_is_truncated_before_its_rows_are_copied_fails_alone_if_the_lake_is_to_keep_them(
    world: World, truncates: str, state: str
) -> None:
    """The server shows it empty to every older snapshot, also where one query copies it."""
    run_sql(world.source_url, "INSERT INTO parts VALUES (1, 'here', 1)")
    tables = [table.model_copy(update={"truncate": truncates}) for table in world.settings.tables]
    world.settings = world.settings.model_copy(update={"tables": tuple(tables)})
    left = ["TRUNCATE parts"]

    def truncate(name: str, moment: Moment) -> None:
        if (name, moment) == ("snapshot_task.finish", Moment.AFTER) and left:
            run_sql(world.source_url, left.pop())

    with world.process() as pipeline:
        set_up_and_consume(pipeline)
    with world.process(truncate) as pipeline:
        ended = take_snapshot(pipeline, world.tables)
        (again,) = take_snapshot(pipeline, world.tables[1:2])
    assert [found.state for found in (*ended, again)] == ["published", state, "published", "published"]
    assert ("a new file, as after VACUUM FULL, CLUSTER or TRUNCATE" in str(ended[1].error)) is (state == "failed")
    assert ("run cdc snapshot again" in str(ended[1].error)) is (state == "failed")


def snapshot_states(world: World, error: Exception, times: int) -> dict[str, tuple[str, str | None]]:
    """State and error by table."""
    return states_over(world, lambda objects, on_step: RefusingLake(objects, on_step, error, times))


def states_over(world: World, make_lake: LakeFactory) -> dict[str, tuple[str, str | None]]:
    with replace(world, make_lake=make_lake).process() as pipeline:
        set_up_and_consume(pipeline)
        ended = take_snapshot(pipeline, world.tables)
    return {name.table: (found.state, found.error) for name, found in zip(world.tables, ended, strict=True)}


@pytest.mark.parametrize("error", [UsageError("no such column"), LakeError("Spark failed")])
def test_a_table_that_the_lake_refuses_fails_alone(world: World, error: Exception) -> None:
    assert snapshot_states(world, error, times=9) == {
        "things": ("failed", str(error)),
        "parts": ("published", None),
        "notes": ("published", None),
    }


def test_a_table_that_the_lake_refuses_for_a_moment_is_published(world: World) -> None:
    states = snapshot_states(world, LakeError("Spark failed"), times=2)
    assert {state for state, _ in states.values()} == {"published"}


@pytest.mark.parametrize("error", [ObjectStoreAway("nobody answers"), LakeAway("nobody answers")])
def test_a_server_that_is_away_for_a_moment_costs_no_rows_that_others_export(world: World, error: Exception) -> None:
    states = snapshot_states(world, error, times=1)
    assert {state for state, _ in states.values()} == {"published"}
    assert world.store_query("SELECT count(*) FROM cdc.snapshot") == [(3,)]


def test_a_lease_that_was_taken_while_a_table_was_published_ends_no_run(world: World) -> None:
    states = states_over(world, lambda objects, on_step: TakenOverLake(objects, on_step, world.store_url))
    assert {state for state, _ in states.values()} == {"published"}
    assert world.store_query("SELECT count(*) FROM cdc.snapshot") == [(3,)]
    go_on(world)
    check(world)


@pytest.mark.parametrize("error", [ObjectStoreAway("nobody answers"), LakeAway("nobody answers")])
def test_a_server_that_stays_away_for_one_table_ends_the_run_once_the_others_are_exported(
    world: World, error: Exception
) -> None:
    """It fails no table, and the next run goes on with the rows that were exported."""
    with pytest.raises(type(error)):
        snapshot_states(world, error, times=10_000)
    ended = world.store_query("SELECT table_id, state FROM cdc.snapshot ORDER BY 1")
    assert ended == [(1, "staging"), (2, "published"), (3, "published")]
    with world.process() as pipeline:
        assert [found.state for found in take_snapshot(pipeline, world.tables[:1])] == ["published"]
    assert world.store_query("SELECT count(*) FROM cdc.snapshot") == [(3,)]


@pytest.mark.parametrize(("times", "state"), [(1, "published"), (5, "failed")])
def test_an_error_that_nobody_foresaw_fails_one_table_after_some_tries(world: World, times: int, state: str) -> None:
    states = states_over(world, lambda objects, on_step: BreakingLake(objects, on_step, times))
    assert {table: found for table, (found, _) in states.items()} == {
        "things": state,
        "parts": "published",
        "notes": "published",
    }
    assert ("TypeError: no order; expected no error" in str(states["things"][1])) is (state == "failed")


def test_a_plan_that_nobody_foresaw_to_fail_fails_one_table(world: World) -> None:
    states = snapshot_states(world, TypeError("no plan"), times=9)
    assert [states[name.table][0] for name in world.tables] == ["failed", "published", "published"]
    assert "TypeError: no plan; expected no error" in str(states["things"][1])


@pytest.mark.parametrize(
    ("times", "commits", "state"),
    [(2, True, "published"), (9, True, "publishing"), (2, False, "published"), (9, False, "failed")],
)
def test_a_snapshot_that_the_lake_shows_is_never_failed(world: World, times: int, *, commits: bool, state: str) -> None:
    states = states_over(world, lambda objects, on_step: ForgetfulLake(objects, on_step, times, commits=commits))
    assert [states[name.table][0] for name in world.tables] == [state, "published", "published"]
    assert ("the lake shows it" in str(states["things"][1])) is (state == "publishing")
    with world.process() as pipeline:
        things, *_ = take_snapshot(pipeline, world.tables[:1])
        assert things.state is SnapshotState.PUBLISHED
    if state == "publishing":
        assert world.store_query("SELECT count(*) FROM cdc.snapshot WHERE table_id = 1") == [(1,)]
    go_on(world)
    check(world)


def test_a_publication_that_is_repeated_behind_slices_of_before_its_cutoff_leaves_every_row(world: World) -> None:
    """They were registered after the lake's commit. A commit that removes and adds the same files shows no row."""
    forgetful = replace(world, make_lake=lambda objects, step: ForgetfulLake(objects, step, 9, commits=True))
    with forgetful.process() as pipeline:
        set_up_and_consume(pipeline)
        world.change(marks=1)
        assert take_snapshot(pipeline, world.tables[:1])[0].state is SnapshotState.PUBLISHING
        assert consume(pipeline)
    with world.process() as pipeline:
        things, *_ = take_snapshot(pipeline, world.tables[:1])
        assert things.state is SnapshotState.PUBLISHED
        assert pipeline.store.snapshots.fence_at(things.table_id, things.cutoff_offset) > (things.fence_number or 0)
        table = pipeline.lake_table(world.tables[0])
        rows = Counter(tuple(row.values()) for row in seen(stored_rows(pipeline, table.name)))
        assert rows == source_rows(world, table)
        take_snapshot(pipeline, world.tables[1:])
    go_on(world)
    check(world)


def test_each_worker_slot_works_with_the_lake_of_its_own_thread(world: World) -> None:
    """A Spark session that is lost in one slot, and closed, is not the one that another slot works with."""
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        runs, built = snapshot_runs(pipeline, poll_interval=POLL), list[int]()

        def slot(number: int) -> SnapshotWorker:
            built.append(get_ident())
            return runs.worker(number)

        ended = replace(runs, worker=slot).take(world.tables, slots=2)
    assert [snapshot.state for snapshot in ended] == [SnapshotState.PUBLISHED] * 3
    assert len(built) == 2
    assert get_ident() not in built
