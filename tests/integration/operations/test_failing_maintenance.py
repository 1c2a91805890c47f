"""An error of maintenance that nobody foresaw fails no run of slices, and keeps no tombstone and no unused file."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.decay import EVERYTHING, Optimization
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.work import MaintenanceSettings
from cdc_pipeline.steps import OnStep
from tests.crash.invariants import check
from tests.crash.world import World, waiting_world
from tests.support.memory_lake import MemoryLake


class LakeThatDecays(MemoryLake):
    """Its files cannot be rewritten. `done` is what the rest of maintenance did."""

    def __init__(self, store: ObjectStore, on_step: OnStep, done: list[tuple[str, TableName]]) -> None:
        super().__init__(store=store, clock=lambda: datetime.now(UTC), on_step=on_step)
        self._done = done

    def optimize(
        self, table: LakeTable, need: MaintenanceSettings = EVERYTHING, *, claimed_at: int | None = None
    ) -> Optimization:
        del table, need, claimed_at
        raise RuntimeError("the unforeseen")

    def purge(self, table: LakeTable, below_version: str) -> None:
        super().purge(table, below_version)
        self._done.append(("purge", table.name))

    def vacuum(self, table: LakeTable) -> None:
        super().vacuum(table)
        self._done.append(("vacuum", table.name))


@pytest.fixture
def done() -> list[tuple[str, TableName]]:
    return []


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path, done: list[tuple[str, TableName]]) -> Iterator[World]:
    with waiting_world(postgres, tmp_path) as world:
        world.make_lake = lambda store, on_step: LakeThatDecays(store, on_step, done)
        yield world


def test_slices_are_applied_although_files_cannot_be_rewritten(world: World) -> None:
    with world.process() as pipeline:
        assert [result.error for result in pipeline.slice_runs().apply(world.tables)] == [None] * len(world.tables)
    check(world)


def test_maintenance_waits_for_a_table_whose_claim_is_about_to_end(
    world: World, done: list[tuple[str, TableName]]
) -> None:
    things, *_ = world.tables
    with world.process() as pipeline:
        table_id = pipeline.store.tables.table(things).table_id
        pipeline.store.leases.acquire(table_id, owner="a claim", duration=timedelta(seconds=1))
        with pytest.raises(LakeError, match="the unforeseen"):
            pipeline.maintenance().maintain(things)
    assert done == [("purge", things), ("vacuum", things)]


def test_maintenance_that_cannot_rewrite_files_does_the_rest_and_fails(
    world: World, done: list[tuple[str, TableName]]
) -> None:
    things, *_ = world.tables
    with world.process() as pipeline, pytest.raises(LakeError, match="RuntimeError: the unforeseen"):
        pipeline.maintenance().maintain(things)
    assert done == [("purge", things), ("vacuum", things)]
