"""Values that the lake's type cannot hold, in columns that are to be kept as text: every row is there, and equal."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import SourceError
from cdc_pipeline.launcher.postgres import PostgresServer
from tests.crash.world import World, apply_all, lake_tables, memory_lake, take_snapshot
from tests.support.delta_rows import seen
from tests.support.guarded import begin_again, go_on
from tests.support.pipelines import consume, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_store
from tests.support.streams import database_of, run_sql

CREATE = """
CREATE TABLE odd (id int PRIMARY KEY, day date, at timestamptz, local timestamp, price numeric(5,2), list int[]);
INSERT INTO odd VALUES
    (1, 'infinity', '-infinity', '0044-03-15 BC', 'NaN', '{{1,2},{3,4}}'),
    (2, '2024-01-01', '2024-01-01 12:00+02', '10000-01-01', 1.5, '{1,NULL}'),
    (3, NULL, NULL, NULL, NULL, NULL)
"""
AS_TEXT = ("day", "at", "local", "price", "list")
CHANGES = (
    "INSERT INTO odd VALUES (4, '5874897-12-31', '4713-01-01 BC', '-infinity', 'NaN', '[0:1]={1,2}')",
    "UPDATE odd SET day = '-infinity', price = 'NaN', list = '{}' WHERE id = 2",
    "UPDATE odd SET day = '2025-01-01', at = 'infinity' WHERE id = 1",
)
TAGGED = """
CREATE TABLE tagged (k int[] PRIMARY KEY, note text);
INSERT INTO tagged VALUES ('{1,2}', 'a'), ('{3}', 'b');
CREATE TABLE plain (id int PRIMARY KEY)
"""
REFUSED = "the column k in the id of {}.public.tagged is of the type int4[]"
STATES = "SELECT state FROM cdc.quarantine"
WITHHELD = "SELECT count(*) FROM cdc.quarantine"


@pytest.fixture
def world(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[World]:
    run_sql(database, CREATE)
    settings = pipeline_settings(tmp_path, database, [{"name": "public.odd", "as_text": AS_TEXT}])
    with fresh_store(postgres) as store_url:
        yield World(settings=settings, source_url=database, store_url=store_url)


def in_lake(world: World) -> list[tuple[Any, ...]]:
    with world.process() as pipeline:
        (table,) = lake_tables(pipeline)
        rows = seen(memory_lake(pipeline).rows(table))
    return sorted(tuple(row.values()) for row in rows)


def in_source(world: World, as_text: Sequence[str] = AS_TEXT) -> list[tuple[Any, ...]]:
    columns = ", ".join(f"CASE WHEN {name} IS NOT NULL THEN {name}::text END" for name in as_text)
    return world.query(f"SET timezone TO 'UTC'; SELECT id, {columns} FROM odd ORDER BY id")


def test_columns_as_text_hold_every_value_by_snapshot_and_by_stream(world: World) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, world.tables)
    assert in_lake(world) == in_source(world)
    run_sql(world.source_url, *CHANGES)
    with world.process() as pipeline:
        consume(pipeline)
        apply_all(pipeline)
    assert in_lake(world) == in_source(world)
    assert ("infinity" in str(in_lake(world)), "NaN" in str(in_lake(world))) == (True, True)
    assert world.store_query(WITHHELD) == [(0,)]


def test_a_column_that_is_not_there_is_refused_by_name(world: World) -> None:
    run_sql(world.source_url, "ALTER TABLE odd DROP COLUMN list")
    with world.process() as pipeline, pytest.raises(SourceError, match=r"has no column 'list'.*as_text"):
        pipeline.source_setup().set_up()


def test_one_that_is_dropped_later_is_followed_and_one_that_is_renamed_is_asked_for_by_name(world: World) -> None:
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, world.tables)
    run_sql(world.source_url, "ALTER TABLE odd DROP list", "UPDATE odd SET day = 'infinity' WHERE id = 3")
    assert go_on(world) == {}
    assert [row[:-1] for row in in_lake(world)] == in_source(world, AS_TEXT[:-1])
    run_sql(world.source_url, "ALTER TABLE odd RENAME day TO until")
    assert "has no column 'day'; expected one of at, id, local, price, until" in go_on(world)["odd"]
    as_text = ("until", *AS_TEXT[1:-1])
    world.settings = pipeline_settings(
        world.settings.folder, world.source_url, [{"name": "public.odd", "as_text": as_text}]
    )
    begin_again(world)
    assert in_lake(world) == in_source(world, as_text)


@pytest.mark.parametrize("is_read_first", [True, False], ids=["the consumer starts first", "the snapshot starts first"])
def test_one_that_is_listed_later_takes_a_new_snapshot_which_drops_the_event(
    world: World, *, is_read_first: bool
) -> None:
    """As docs/how-to/quarantine.md says."""
    listed, folder = world.settings, world.settings.folder
    world.settings = pipeline_settings(folder, world.source_url, [{"name": "public.odd"}])
    run_sql(world.source_url, "DELETE FROM odd WHERE id = 1", "UPDATE odd SET local = NULL")
    with world.process() as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, world.tables)
    run_sql(world.source_url, "UPDATE odd SET day = 'infinity', price = 'NaN' WHERE id = 3")
    assert go_on(world) == {}
    assert world.store_query(STATES) == [("waiting",)]
    world.settings = listed
    if is_read_first:
        assert "the column 'day' was date and is text(date)" in go_on(world)["odd"]
    begin_again(world)
    assert go_on(world) == {}
    assert in_lake(world) == in_source(world)
    assert world.store_query(STATES) == [("dropped",)]


def test_an_array_in_the_id_is_refused_alone_and_taken_as_text(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    run_sql(database, TAGGED)
    tables: list[dict[str, Any]] = [{"name": "public.tagged"}, {"name": "public.plain"}]
    with fresh_store(postgres) as store_url:
        settings = pipeline_settings(tmp_path, database, tables)
        world = World(settings=settings, source_url=database, store_url=store_url)
        with world.process() as pipeline:
            refused = pipeline.source_setup().set_up().refused
            assert {name.table: error.found for name, error in refused.items()} == {
                "tagged": REFUSED.format(database_of(database))
            }
            consume(pipeline)
            take_snapshot(pipeline, [name for name in world.tables if name not in refused])
        tables = [{"name": "public.tagged", "as_text": ["k"]}, {"name": "public.plain"}]
        world.settings = pipeline_settings(tmp_path, database, tables)
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
            take_snapshot(pipeline, world.tables)
        run_sql(database, "UPDATE tagged SET note = 'new' WHERE k = '{1,2}'; INSERT INTO tagged VALUES ('{}', 'none')")
        with world.process() as pipeline:
            consume(pipeline)
            apply_all(pipeline)
            rows = seen(memory_lake(pipeline).rows(lake_tables(pipeline)[0]))
    assert sorted(tuple(row.values()) for row in rows) == [("{1,2}", "new"), ("{3}", "b"), ("{}", "none")]
