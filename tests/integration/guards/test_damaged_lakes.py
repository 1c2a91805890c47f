"""A lake table that was damaged or taken away stops alone, by name, and says what brings it back."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import CdcError, FenceMismatch, LakeError
from cdc_pipeline.lake.protocol import Fence, LakeTable
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.steps import OnStep
from tests.crash.world import World
from tests.support.guarded import begin_again, guarded_world, in_lake, in_source, name_of
from tests.support.memory_lake import MemoryLake
from tests.support.pipelines import consume
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql


@pytest.fixture
def world(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[World]:
    with fresh_store(postgres) as store_url, guarded_world(tmp_path, database, store_url) as world:
        yield world


def newest_commit(folder: Path) -> Path:
    return max((folder / "_delta_log").glob("*.json"))


def write_into_the_newest_commit(content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        newest_commit(folder).write_bytes(content)

    return damage


def applied(world: World) -> dict[str, CdcError | None]:
    run_sql(world.source_url, "UPDATE orders SET note = 'later'", "UPDATE customers SET note = 'later'")
    with world.process() as pipeline:
        consume(pipeline)
        return {found.table.table: found.error for found in pipeline.slice_runs().apply(pipeline.table_names())}


@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        (shutil.rmtree, FenceMismatch, "the lake has no table.*run cdc snapshot"),
        (write_into_the_newest_commit(b"\xff\xfe\x00"), LakeError, "is no commit of a Delta log.*from a copy"),
        (write_into_the_newest_commit(b'{"add": {'), LakeError, "is no commit of a Delta log.*from a copy"),
        (write_into_the_newest_commit(b""), LakeError, "is no commit of a Delta log.*from a copy"),
    ],
    ids=["taken away", "no text", "cut off", "emptied"],
)
def test_a_damaged_lake_table_stops_alone_and_says_what_to_do(
    world: World, damage: Callable[[Path], None], kind: type[CdcError], words: str
) -> None:
    damage(world.settings.folder / world.settings.lake / lake_key(name_of(world, "orders")))
    errors = applied(world)
    with pytest.raises(kind, match=words):
        raise errors["orders"] or AssertionError
    assert errors["customers"] is None
    assert in_lake(world, "customers") == in_source(world, "customers")


@pytest.mark.parametrize("damage", [shutil.rmtree, write_into_the_newest_commit(b"\xff")])
def test_a_damaged_lake_table_is_filled_again_by_a_snapshot(world: World, damage: Callable[[Path], None]) -> None:
    folder = world.settings.folder / world.settings.lake / lake_key(name_of(world, "orders"))
    damage(folder)
    assert applied(world)["orders"] is not None
    shutil.rmtree(folder, ignore_errors=True)
    begin_again(world, [name_of(world, "orders")])
    assert applied(world) == {"customers": None, "orders": None}
    assert in_lake(world, "orders") == in_source(world, "orders")


class UnforeseenLake(MemoryLake):
    """Fails for one table as no code of ours does."""

    def read_fence(self, table: LakeTable) -> Fence | None:
        if table.name.table == "orders":
            raise ZeroDivisionError(table.name)
        return super().read_fence(table)


def test_a_fault_that_nobody_foresaw_stops_its_table_alone(world: World) -> None:
    def make_lake(objects: ObjectStore, on_step: OnStep) -> MemoryLake:
        return UnforeseenLake(store=objects, clock=lambda: datetime.now(UTC), on_step=on_step)

    errors = applied(replace(world, make_lake=make_lake))
    assert isinstance(errors["orders"], LakeError)
    assert "ZeroDivisionError" in str(errors["orders"])
    assert errors["customers"] is None
