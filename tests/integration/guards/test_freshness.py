"""An alert on `seconds_behind` alone finds every table that does not equal its source, and no other."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import CdcError, SourceGap
from cdc_pipeline.launcher.postgres import PostgresServer
from tests.crash.world import World, take_snapshot
from tests.support.guarded import begin_again, go_on, guarded_world, in_lake, in_source, name_of
from tests.support.pipelines import consume
from tests.support.postgres import fresh_store
from tests.support.streams import postgres_of, run_sql

DAY = "ALTER TABLE orders ADD COLUMN day date"


@pytest.fixture
def world(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[World]:
    with fresh_store(postgres) as store_url, guarded_world(tmp_path, database, store_url) as world:
        yield world


def source(*statements: str) -> Callable[[World], World]:
    def damage(world: World) -> World:
        name = postgres_of(world.settings).publication
        run_sql(world.source_url, *(statement.format(name=name) for statement in statements))
        return world

    return damage


def take_out_of_the_pipeline(world: World) -> World:
    left = tuple(table for table in world.settings.tables if table.table.table != "orders")
    return replace(world, settings=world.settings.model_copy(update={"tables": left}))


def lose_a_slice_file(world: World) -> World:
    run_sql(world.source_url, "INSERT INTO orders VALUES (4, 'four')")
    with world.process() as pipeline:
        consume(pipeline)
    name = str(name_of(world, "orders"))
    with world.process() as pipeline:
        rows = pipeline.store.inspection.run("slices", {"table": name})
        pipeline.objects.delete(next(row["path"] for row in rows if row["path"]))
    return world


def damage_by_half_a_snapshot(world: World) -> World:
    """It was dropped and made again, and its new snapshot does not come to its end."""
    run_sql(
        world.source_url,
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders VALUES (1, 'other')",
    )
    pass_time(world)
    with world.process() as pipeline:
        pipeline.source_setup().set_up(begin_again=[name_of(world, "orders")])
    return world


def snapshot_a_row_that_does_not_fit(world: World) -> World:
    run_sql(world.source_url, DAY, "UPDATE orders SET day = '2024-01-01'")
    pass_time(world)
    run_sql(world.source_url, "UPDATE orders SET day = 'infinity' WHERE id = 1")
    with world.process() as pipeline:
        take_snapshot(pipeline, [name_of(world, "orders")])
    return world


CASES: dict[str, tuple[Callable[[World], World], str]] = {
    "dropped": (source("DROP TABLE orders"), "was dropped from the source"),
    "renamed": (source("ALTER TABLE orders RENAME TO sold"), "is now called public.sold"),
    "taken out of the publication": (
        source('ALTER PUBLICATION "{name}" DROP TABLE orders', "INSERT INTO orders VALUES (9, 'unseen')"),
        "is not in the publication",
    ),
    "taken out of pipeline.yml": (take_out_of_the_pipeline, "was taken out of pipeline.yml"),
    "a slice file is gone": (lose_a_slice_file, "it failed"),
    "a row that does not fit": (
        source(DAY, "UPDATE orders SET day = 'infinity' WHERE id = 1"),
        "rows of it wait in quarantine",
    ),
    "a row of the snapshot that does not fit": (snapshot_a_row_that_does_not_fit, "rows of it wait in quarantine"),
    "its new snapshot is still to come": (damage_by_half_a_snapshot, "was made again"),
}


def pass_time(world: World) -> None:
    """The source goes on without the orders; what is registered is applied, as far as it can be."""
    run_sql(world.source_url, "UPDATE customers SET note = note || '.'")
    with world.process() as pipeline:
        consume(pipeline)
        for table in pipeline.table_names():
            try:
                pipeline.slice_worker().slice_to_lake(table)
            except CdcError:
                continue


def lag(world: World) -> dict[str, dict[str, Any]]:
    with world.process() as pipeline:
        return {row["source_table"].rpartition(".")[2]: row for row in pipeline.store.inspection.run("lag")}


def now(world: World) -> datetime:
    ((moment,),) = world.store_query("SELECT clock_timestamp()")
    assert isinstance(moment, datetime)
    return moment


@pytest.mark.parametrize("kind", CASES)
def test_the_alert_finds_the_table_and_leaves_its_neighbour_alone(world: World, kind: str) -> None:
    damage, reason = CASES[kind]
    pass_time(world)
    assert [row["reason"] for row in lag(world).values()] == [None, None]
    damaged_at = now(world)
    world = damage(world)
    for _ in range(2):
        pass_time(world)
    waited = (now(world) - damaged_at).total_seconds()
    found = lag(world)
    assert found["orders"]["seconds_behind"] >= waited
    assert reason in found["orders"]["reason"]
    assert found["customers"]["reason"] is None
    assert found["customers"]["lake_as_of"] > damaged_at
    assert found["customers"]["seconds_behind"] < waited


def test_a_table_that_comes_back_to_the_pipeline_is_stale_until_its_snapshot(world: World) -> None:
    pass_time(world)
    pass_time(take_out_of_the_pipeline(world))
    run_sql(world.source_url, "INSERT INTO orders VALUES (5, 'unseen')")
    pass_time(take_out_of_the_pipeline(world))
    left_at = lag(world)["orders"]["lake_as_of"]
    for _ in range(2):
        pass_time(world)
    row = lag(world)["orders"]
    assert (row["state"], row["lake_as_of"]) == ("stale", left_at)
    begin_again(world, [name_of(world, "orders")])
    assert go_on(world) == {}
    assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_stream_that_stopped_is_found_in_each_of_its_tables(world: World) -> None:
    pass_time(world)
    damaged_at = now(world)
    run_sql(world.source_url, f"SELECT pg_drop_replication_slot('{postgres_of(world.settings).slot}')")
    with pytest.raises(SourceGap):
        pass_time(world)
    waited = (now(world) - damaged_at).total_seconds()
    for row in lag(world).values():
        assert row["seconds_behind"] >= waited
        assert row["reason"].startswith("the stream stopped: SourceGap: the slot")


def test_after_a_new_snapshot_the_table_is_as_fresh_as_its_neighbour(world: World) -> None:
    run_sql(world.source_url, "DROP TABLE orders", "CREATE TABLE orders (id int PRIMARY KEY, note text)")
    pass_time(world)
    assert lag(world)["orders"]["reason"] is not None
    begin_again(world, [name_of(world, "orders")])
    assert go_on(world) == {}
    found = lag(world)
    assert found["orders"]["reason"] is None
    assert found["orders"]["lake_as_of"] == found["customers"]["lake_as_of"]
