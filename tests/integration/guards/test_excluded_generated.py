"""A generated column that pipeline.yml excludes is not computed, so nothing about it stops its table."""

import os
from pathlib import Path

from tests.crash.world import World
from tests.support.guarded import begin_again, go_on, in_lake, in_source, world_of
from tests.support.postgres import fresh_database, fresh_store, started_server
from tests.support.postgres_versions import locked_versions, unpacked_binaries
from tests.support.streams import run_sql

TABLES = tuple({"name": f"public.{table}", "exclude_columns": ["size"]} for table in ("orders", "customers"))
SIZE = "size int GENERATED ALWAYS AS (length(body) + n)"
WRITES = tuple(
    statement.format(table)
    for table in ("orders", "customers")
    for statement in (
        "UPDATE {} SET n = 2 WHERE id = 1",
        "UPDATE {} SET id = 20 WHERE id = 2",
        "INSERT INTO {} (id, n, body) VALUES (30, 3, repeat('c', 3000))",
        "DELETE FROM {} WHERE id = 3",
    )
)


def large_rows(table: str, columns: str) -> tuple[str, ...]:
    return (
        f"CREATE TABLE {table} ({columns})",
        f"ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO {table} (id, n, body) SELECT n, n, repeat('b', 3000) FROM generate_series(1, 4) AS n",
    )


def keyless_and_keyed(kind: str) -> tuple[str, ...]:
    """`kind`: that of the excluded column in the table with a key. In the keyless table it is stored."""
    return (
        *large_rows("orders", f"id int PRIMARY KEY, n int, body text, {SIZE} {kind}"),
        *large_rows("customers", f"id int, n int, {SIZE} STORED, body text"),
        "ALTER TABLE customers REPLICA IDENTITY FULL",
    )


def assert_followed(world: World, *statements: str) -> None:
    run_sql(world.source_url, *statements)
    assert go_on(world) == {}
    for table in ("orders", "customers"):
        rows = [{name: row[name] for name in row if name != "size"} for row in in_source(world, table)]
        assert in_lake(world, table) == rows


def test_an_update_that_leaves_out_a_large_input_is_followed(database: str, store_url: str, tmp_path: Path) -> None:
    run_sql(database, *keyless_and_keyed("VIRTUAL"))
    world = world_of(tmp_path, database, store_url, TABLES)
    begin_again(world)
    assert_followed(world, *WRITES)


def test_of_a_server_that_publishes_no_generated_columns(tmp_path: Path) -> None:
    binaries = unpacked_binaries(locked_versions()["17"])
    with (
        started_server({**os.environ, "CDC_POSTGRES_BIN": str(binaries)}) as server,
        fresh_database(server) as database,
        fresh_store(server) as store_url,
    ):
        run_sql(database, *keyless_and_keyed("STORED"))
        world = world_of(tmp_path, database, store_url, TABLES)
        begin_again(world)
        assert_followed(world, *WRITES, "TRUNCATE customers")


def test_of_partitions_that_compute_it_otherwise(database: str, store_url: str, tmp_path: Path) -> None:
    run_sql(
        database,
        f"CREATE TABLE orders (id int PRIMARY KEY, n int, body text, {SIZE} STORED) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders (size GENERATED ALWAYS AS (n) STORED) FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF orders FOR VALUES FROM (10) TO (100)",
        "INSERT INTO orders (id, n, body) SELECT n, n, repeat('b', 9000) FROM generate_series(1, 4) AS n",
        *keyless_and_keyed("STORED")[3:],
    )
    world = world_of(tmp_path, database, store_url, TABLES)
    begin_again(world)
    assert_followed(world, *WRITES)
