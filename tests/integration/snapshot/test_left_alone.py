"""An orchestrator without worker slots, and a worker slot without an orchestrator, end as soon as they are told."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import SnapshotState
from snapshot.wiring import snapshot_runs
from tests.crash.world import World, new_world, take_snapshot
from tests.support.pipelines import POLL, set_up_and_consume


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


def test_neither_ends_while_it_has_work(world: World) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        assert {found.state for found in take_snapshot(pipeline, world.tables)} == {SnapshotState.PUBLISHED}
        since = pipeline.store.snapshot_history.now() - timedelta(hours=1)
        worker = snapshot_runs(pipeline).worker(0)
        assert worker.run(world.tables, since, Event(), gone) == 0
        assert snapshot_runs(pipeline).orchestrator.run((), Event(), gone) == ()
