"""A table that fails pauses, parks and comes back by itself, and no other table notices."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from threading import Event
from uuid import UUID

import pytest

from cdc_pipeline.errors import (
    LakeAway,
    LakeError,
    LeaseBusy,
    ObjectStoreAway,
    SettingsError,
    SliceDamaged,
    StoreAway,
    TablePauses,
)
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import RequestState, TableState
from cdc_pipeline.operations.resident_worker import RunLines
from cdc_pipeline.steps import Moment, OnStep, no_step
from cdc_pipeline.wiring import Pipeline
from tests.crash.invariants import check
from tests.crash.world import World, apply_all, register_changes, waiting_world
from tests.support.streams import run_sql

EVERYTHING = "every event that is registered is applied"


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    with waiting_world(postgres, tmp_path) as world:
        yield world


def refusal(error: Exception, *, at: str = "lake_table.merge") -> OnStep:
    """Whatever is called at this step answers so."""

    def refuse(name: str, moment: Moment) -> None:
        if (name, moment) == (at, Moment.BEFORE):
            raise error

    return refuse


def time_passes(world: World, hours: float) -> None:
    names = ("failing_since", "failed_at", "next_try_at")
    shift = ", ".join(f"{name} = {name} - interval '{hours} hours'" for name in names)
    run_sql(world.store_url, f"UPDATE cdc.failing_table SET {shift}")


def pauses_last(world: World) -> None:
    """No pause ends before the test does, however slow the machine is."""
    run_sql(world.store_url, "UPDATE cdc.failing_table SET next_try_at = next_try_at + interval '1 hour'")


def states(pipeline: Pipeline) -> list[TableState]:
    return [pipeline.store.tables.table(name).state for name in pipeline.table_names()]


def test_a_failing_table_is_left_to_its_pause_while_the_others_go_on(world: World) -> None:
    file = files_of(world)[-1]
    content = file.read_bytes()
    file.unlink()
    with world.process() as pipeline:
        things, *others = world.tables
        with pytest.raises(SliceDamaged):
            pipeline.slice_runs().run(things)
        pauses_last(world)
        assert "things pauses, its next try comes at" in pipeline.slice_runs().run(things)["ended"]
        left, *applied = pipeline.slice_runs().apply([things, *others])
        assert (type(left.error), left.exit_code) == (TablePauses, 4)
        assert [result.error for result in applied] == [None] * len(others)
        file.write_bytes(content)
        assert pipeline.slice_runs().run(things)["claims"] == 0
        assert pipeline.slice_runs().run(things, by_hand=True)["ended"] == EVERYTHING
        assert pipeline.slice_runs().run(things)["ended"] == EVERYTHING
    check(world)


def test_a_table_that_fails_for_an_hour_is_parked_and_comes_back_by_itself(world: World) -> None:
    things, *_ = world.tables
    with world.process(refusal(LakeError("the value of no column can be read"))) as pipeline:
        with pytest.raises(LakeError):
            pipeline.slice_runs().run(things)
        time_passes(world, 1)
        with pytest.raises(LakeError):
            pipeline.slice_runs().run(things)
        assert states(pipeline) == [TableState.PARKED, TableState.LIVE, TableState.LIVE]
        assert "things is parked" in pipeline.slice_runs().run(things)["ended"]
        time_passes(world, 0.2)
        assert "things is parked" in pipeline.slice_runs().run(things)["ended"]
    register_changes(world)
    time_passes(world, 0.05)
    with world.process() as pipeline:
        assert pipeline.slice_runs().run(things)["ended"] == EVERYTHING
        assert states(pipeline) == [TableState.LIVE] * 3
        apply_all(pipeline)
    check(world)


def test_an_outage_pauses_every_table_and_parks_none(world: World) -> None:
    with world.process(refusal(LakeAway("nothing answers"))) as pipeline:
        for _ in range(3):
            results = pipeline.slice_runs().apply(world.tables)
            assert {type(result.error) for result in results} == {LakeAway}
            time_passes(world, 2)
        assert states(pipeline) == [TableState.LIVE] * 3
    with world.process() as pipeline:
        assert [result.error for result in pipeline.slice_runs().apply(world.tables)] == [None] * 3
        assert all(row["failures"] is None for row in pipeline.store.inspection.run("lag"))
    check(world)


def test_a_file_that_cannot_be_read_pauses_its_table_and_ends_no_run(world: World) -> None:
    things, *_ = world.tables
    with world.process(refusal(OSError("Input/output error"), at="slice_file.get")) as pipeline:
        (unread,) = pipeline.slice_runs().apply([things])
        assert isinstance(unread.error, ObjectStoreAway)
        (failure,) = (row["failure"] for row in pipeline.store.inspection.run("lag") if row["failures"])
        assert failure == "Input/output error"


def test_an_error_that_nobody_foresaw_is_a_failure_of_its_table(world: World) -> None:
    things, *_ = world.tables
    with world.process(refusal(RuntimeError("the unforeseen"))) as pipeline:
        (failed,) = pipeline.slice_runs().apply([things])
        assert isinstance(failed.error, LakeError)
        (failure,) = (row["failure"] for row in pipeline.store.inspection.run("lag") if row["failures"])
        assert failure == "RuntimeError: the unforeseen"
        pauses_last(world)
        assert "things pauses, its next try comes at" in pipeline.slice_runs().run(things)["ended"]


class Once:
    """The first call at this step ends with `error`, and all later ones succeed."""

    def __init__(self, error: Exception, *, at: str) -> None:
        self.refuses, self.is_left = refusal(error, at=at), True

    def __call__(self, name: str, moment: Moment) -> None:
        if self.is_left:
            try:
                self.refuses(name, moment)
            except Exception:
                self.is_left = False
                raise


ANY_ERRORS = [(OSError(5, "Input/output error"), "Input/output error"), (RuntimeError("unforeseen"), "unforeseen")]


def test_whatever_a_table_ends_with_the_others_are_compared(world: World) -> None:
    for error, found in ANY_ERRORS:
        register_changes(world)
        with world.process(Once(error, at="slice_file.get")) as pipeline:
            failed, *others = pipeline.verification().verify(world.tables)
        assert found in failed.problem
        assert [verdict.is_equal for verdict in others] == [True] * 2


def test_whatever_a_table_ends_with_the_others_are_repaired(world: World) -> None:
    first, *others = [table for table in world.tables if table.table != "notes"]
    for error, found in ANY_ERRORS:
        register_changes(world)
        with world.process(Once(error, at="slice_file.get")) as pipeline:
            failed, *repaired = pipeline.repair().run_each([first, *others])
        assert found in (failed.problem or "")
        assert repaired
        assert [table.problem for table in repaired] == [None] * len(others)


def test_a_failure_that_quotes_what_no_store_takes_pauses_its_table(world: World) -> None:
    things, *_ = world.tables
    for error, value in product((LakeError, RuntimeError), ("a\0b", "caf\udce9")):
        with world.process(refusal(error(f"no folder {value}"))) as pipeline:
            (failed,) = pipeline.slice_runs().apply([things])
            assert isinstance(failed.error, LakeError)
            (failure,) = (row["failure"] for row in pipeline.store.inspection.run("lag") if row["failures"])
            assert failure.endswith(f"no folder {value!r}".replace("'", ""))
            assert failure.startswith("RuntimeError: ") == (error is RuntimeError)
        time_passes(world, 0.1)


def test_a_lease_that_cannot_be_released_changes_nothing_of_how_a_run_ends(world: World) -> None:
    things, *_ = world.tables
    leave = refusal(StoreAway("nobody listens"), at="lease.release")
    for error in (LakeError("the value of no column can be read"), None):
        refuse = refusal(error) if error else no_step

        def on_step(name: str, moment: Moment, refuse: OnStep = refuse) -> None:
            refuse(name, moment)
            leave(name, moment)

        with world.process(on_step) as pipeline:
            (found,) = pipeline.slice_runs().apply([things])
            assert found.error is error
            (busy,) = pipeline.slice_runs().apply([things], by_hand=True)
            assert isinstance(busy.error, LeaseBusy), "until it expires"
        world.expire_leases()
        time_passes(world, 0.1)


def test_a_resident_worker_finishes_a_run_whose_metadata_store_was_away_for_a_moment(world: World) -> None:
    things, *_ = world.tables
    for number, step in enumerate(("claim.record", "claim.mark_applied"), 1):
        once = Once(StoreAway("nobody listens"), at=step)
        with world.process(once) as pipeline:
            requests = pipeline.store.slice_requests
            requests.ask(UUID(int=number), things, by_hand=False)
            pipeline.resident_worker(RunLines(str)).work(Event(), lambda: None, until_idle=True)
            found = requests.find(UUID(int=number))
            assert found is not None
            assert (found.state, found.attempts, once.is_left) == (RequestState.DONE, 2, False)
            apply_all(pipeline)
        check(world)
        register_changes(world)


def test_a_backfill_tries_tables_that_pause(world: World) -> None:
    with world.process(refusal(LakeAway("nothing answers"))) as pipeline:
        pipeline.slice_runs().apply(world.tables)
    with world.process() as pipeline:
        assert {report["ended"] for report in pipeline.slice_runs().backfill(world.tables)} == {EVERYTHING}


def test_a_backfill_up_to_a_time_says_that_it_left_later_slices(world: World) -> None:
    early = datetime(2000, 1, 1, tzinfo=UTC)
    with world.process() as pipeline:
        left = pipeline.slice_runs().backfill(world.tables, until=early)
        assert {report["ended"] for report in left} == {
            "slices from 2000-01-01T00:00:00+00:00 on are left, as asked for"
        }
        late = pipeline.slice_runs().backfill(world.tables, until=datetime(2999, 1, 1, tzinfo=UTC))
        assert {report["ended"] for report in late} == {EVERYTHING}
        done = pipeline.slice_runs().backfill(world.tables, until=early)
        assert {report["ended"] for report in done} == {EVERYTHING}


def test_a_backfill_that_tries_no_slice_forgets_no_failure(world: World) -> None:
    things, file = world.tables[0], files_of(world)[-1]
    content = file.read_bytes()
    file.unlink()
    with world.process() as pipeline:
        table_id = pipeline.store.tables.table(things).table_id
        with pytest.raises(SliceDamaged):
            pipeline.slice_runs().run(things)
        (left,) = pipeline.slice_runs().backfill([things], until=datetime(2000, 1, 1, tzinfo=UTC))
        assert "are left, as asked for" in left["ended"]
        assert pipeline.store.failures.failing(table_id) is not None
        file.write_bytes(content)
        assert pipeline.slice_runs().run(things, by_hand=True)["ended"] == EVERYTHING
        assert pipeline.store.failures.failing(table_id) is None


def test_a_table_that_has_left_the_pipeline_fails_its_runs_by_name_and_does_not_pause(world: World) -> None:
    things, *_ = world.tables
    whole = world.settings
    world.settings = whole.model_copy(update={"tables": whole.tables[1:]})
    with world.process() as pipeline:
        with pytest.raises(SettingsError, match=r"lists no table '.*\.things'"):
            pipeline.slice_run(things, by_hand=False)
        with pytest.raises(SettingsError, match=r"lists no table '.*\.things'"):
            pipeline.maintenance().maintain(things)
    world.settings = whole
    with world.process() as pipeline:
        assert pipeline.slice_run(things, by_hand=False)["ended"] == EVERYTHING
        apply_all(pipeline)
    check(world)


def test_every_damaged_file_of_a_claim_is_known_by_name_until_the_right_object_is_back(world: World) -> None:
    *_, first, second = files = files_of(world)
    contents = {file: file.read_bytes() for file in files}
    first.write_bytes(contents[second])
    second.unlink()
    with world.process() as pipeline:
        things, *_ = world.tables
        with pytest.raises(SliceDamaged):
            pipeline.slice_runs().run(things)
        damaged = pipeline.store.inspection.run("damaged")
        assert [str(first).endswith(damaged[0]["path"]), str(second).endswith(damaged[1]["path"])] == [True, True]
        assert damaged[1]["found"].endswith("has no content: the object is gone")
        first.write_bytes(contents[first])
        second.write_bytes(contents[second])
        assert pipeline.slice_runs().run(things, by_hand=True)["claims"] == 1
        assert pipeline.store.inspection.run("damaged") == []
        apply_all(pipeline)
    check(world)


def files_of(world: World) -> list[Path]:
    paths = world.store_query("SELECT path FROM cdc.slice WHERE table_id = 1 AND rows > 0 ORDER BY number")
    return [world.settings.folder / world.settings.lake / str(path) for (path,) in paths]
