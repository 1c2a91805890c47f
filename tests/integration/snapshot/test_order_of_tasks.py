"""Worker slots copy the rows of every table before they do anything else: the source holds its position until then."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from threading import Event

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store.states import SnapshotState
from snapshot.wiring import snapshot_orchestrator, snapshot_worker
from tests.crash.world import World, new_world
from tests.integration.snapshot.test_left_alone import Looks
from tests.support.pipelines import POLL, set_up_and_consume


class OneTask(Event):
    """Set from the second look on, and whenever somebody waits on it."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 1

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return True


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    with new_world(postgres, tmp_path) as world:
        yield world


def test_exports_of_every_table_come_before_other_tasks(world: World) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        since = pipeline.store.snapshot_history.now()
        worker = snapshot_worker(pipeline, "the only slot")
        orchestrator = snapshot_orchestrator(pipeline, poll_interval=POLL)
        turns = Looks(lambda number: worker.run(world.tables, since, OneTask()) < 0 or number > 100)
        assert {found.state for found in orchestrator.run(world.tables, turns)} == {SnapshotState.PUBLISHED}
    tasks = world.store_query("SELECT kind = 'export', snapshot_id FROM cdc.snapshot_task ORDER BY started_at")
    assert [is_export for is_export, _ in groupby(tasks, key=lambda task: task[0])] == [True, False]
    assert len({snapshot_id for is_export, snapshot_id in tasks if not is_export}) > 1
