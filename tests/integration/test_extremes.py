"""As many columns as a table can have, values as large as they come: by snapshot and by stream."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.types import TABLE
from tests.crash.world import World, apply_all, lake_tables, memory_lake, take_snapshot
from tests.support.command_line import query
from tests.support.delta_rows import seen
from tests.support.pipelines import consume, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

MOST_COLUMNS = 1600
OTHERS = [f"c{number}" for number in range(1, MOST_COLUMNS)]
WIDE = f"CREATE TABLE items (id int PRIMARY KEY, {', '.join(f'{name} smallint' for name in OTHERS)})"
WIDE_ROW = f"INSERT INTO items SELECT {{id}}, {', '.join('n % 7' for _ in OTHERS)} FROM generate_series(1, 1) AS n"
FIFTY_MEGABYTES = 50_000_000
LARGE = "CREATE TABLE items (id int PRIMARY KEY, body text, octets bytea, note text)"
LARGE_ROW = f"""
INSERT INTO items SELECT {{id}}, repeat(E'é"\\\\\\n,', {FIFTY_MEGABYTES} / 6),
    decode(repeat('00ff5c0a', {FIFTY_MEGABYTES} / 4), 'hex'), 'new'
"""
BUILT_IN = """
SELECT typname FROM pg_type
WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm') AND typcategory NOT IN ('A', 'Z')
"""
"""Category Z: for the server's own use."""


@contextmanager
def snapshotted(postgres: PostgresServer, source_url: str, folder: Path, *statements: str) -> Iterator[World]:
    run_sql(source_url, *statements)
    settings = pipeline_settings(folder, source_url, [{"name": "public.items"}])
    with fresh_store(postgres) as store_url:
        world = World(settings=settings, source_url=source_url, store_url=store_url)
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
            take_snapshot(pipeline, world.tables)
        yield world


def in_lake(world: World) -> list[tuple[Any, ...]]:
    with world.process() as pipeline:
        consume(pipeline)
        apply_all(pipeline)
        (table,) = lake_tables(pipeline)
        return sorted(tuple(row.values()) for row in seen(memory_lake(pipeline).rows(table)))


def in_source(world: World) -> list[tuple[Any, ...]]:
    rows = world.query("SELECT * FROM items ORDER BY id")
    return [tuple(bytes(value) if isinstance(value, memoryview) else value for value in row) for row in rows]


def test_a_table_of_sixteen_hundred_columns_comes_whole(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    with snapshotted(postgres, database, tmp_path, WIDE, WIDE_ROW.format(id=1), WIDE_ROW.format(id=2)) as world:
        assert in_lake(world) == in_source(world)
        run_sql(database, WIDE_ROW.format(id=3), "UPDATE items SET c1599 = NULL WHERE id = 1")
        assert in_lake(world) == in_source(world)


def test_values_of_fifty_megabytes_come_whole_and_stay_where_they_did_not_change(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    with snapshotted(postgres, database, tmp_path, LARGE, LARGE_ROW.format(id=1)) as world:
        assert in_lake(world) == in_source(world)
        run_sql(database, LARGE_ROW.format(id=2), "UPDATE items SET note = 'changed'")
        assert in_lake(world) == in_source(world)


def test_every_built_in_type_of_the_server_is_on_the_page(database: str) -> None:
    listed = {name for rule in TABLE for name in rule.names}
    found = {"boolean" if name == "bool" else name for (name,) in query(database, BUILT_IN)}
    assert found - listed == set()
