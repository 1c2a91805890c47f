"""Generated columns are in the lake as the source has them, though its stream leaves them out."""

import os
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from snapshot.wiring import snapshot_runs
from tests.crash.world import World
from tests.support.guarded import begin_again, go_on, in_lake, in_source, name_of, states, world_of
from tests.support.pipelines import POLL
from tests.support.postgres import fresh_database, fresh_store, started_server
from tests.support.postgres_versions import locked_versions, unpacked_binaries
from tests.support.streams import database_of, run_sql

CREATE = (
    """CREATE TABLE orders (id int PRIMARY KEY, note text, price numeric(10,2), amount int, day date, tags text[],
        letter "char", pad char(5), address inet, body text,
        total numeric(12,1) GENERATED ALWAYS AS (price * amount) STORED,
        loud text GENERATED ALWAYS AS (upper(note)) STORED,
        next_day date GENERATED ALWAYS AS (day + 1) STORED,
        first_tag text GENERATED ALWAYS AS (tags[1]) STORED,
        more_tags text[] GENERATED ALWAYS AS (tags || 'one, "more"'::text) STORED,
        is_many boolean GENERATED ALWAYS AS (amount > 5) STORED,
        same_letter "char" GENERATED ALWAYS AS (letter) STORED,
        padded char(8) GENERATED ALWAYS AS (pad) STORED,
        network inet GENERATED ALWAYS AS (set_masklen(address, 32)) STORED,
        seven int GENERATED ALWAYS AS (7) STORED,
        words tsvector GENERATED ALWAYS AS (to_tsvector('english', note)) STORED,
        "odd "" name" bigint GENERATED ALWAYS AS (amount::bigint + 1) STORED,
        body_length text GENERATED ALWAYS AS (id % 2 || '/' || length(body)) STORED)""",
    "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL",
    "CREATE TABLE customers (id int, note text, twice text GENERATED ALWAYS AS (note || note) STORED, last text)",
    "ALTER TABLE customers REPLICA IDENTITY FULL",
    "ALTER TABLE customers ALTER note SET STORAGE EXTERNAL",
    r"""INSERT INTO orders SELECT n, E'it''s \\ n' || n, n, n, '2024-01-31', ARRAY['a' || n, NULL, ''], '\001', 'p',
        '10.1.2.3/8', repeat('b', 3000) FROM generate_series(1, 9) AS n""",
    "INSERT INTO customers (id, note, last) SELECT n, repeat('n', 3000), 'x' FROM generate_series(1, 4) AS n",
)
WRITES = (
    r"""INSERT INTO orders SELECT n, E'it''s \\ "n", \n' || n, n, n, '2024-02-28', ARRAY['b', 'c"'], '\377', 'q',
        '10.1.2.4/16', repeat('c', 3000) FROM generate_series(20, 29) AS n""",
    "INSERT INTO orders (id, note) VALUES (30, NULL), (31, '')",
    "UPDATE orders SET amount = amount + 7, note = note || '!' WHERE id IN (1, 20)",
    "UPDATE orders SET body = repeat('d', 4000) WHERE id = 2",
    "UPDATE orders SET id = id + 50, body = 'short' WHERE id IN (3, 21)",
    "BEGIN; UPDATE orders SET price = 8.15 WHERE id = 4; UPDATE orders SET id = 54, body = '' WHERE id = 4; COMMIT",
    "DELETE FROM orders WHERE id IN (5, 22)",
    "INSERT INTO customers VALUES (20, 'new'), (21, NULL)",
    "UPDATE customers SET last = 'changed' WHERE id IN (1, 20)",
    "UPDATE customers SET note = 'short' WHERE id = 2",
    "DELETE FROM customers WHERE id IN (3, 21)",
)


BY_KEY = "ALTER TABLE customers ADD PRIMARY KEY (id), REPLICA IDENTITY DEFAULT"


@pytest.fixture
def world(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[World]:
    with fresh_store(postgres) as store_url:
        yield taken(tmp_path, database, store_url, CREATE)


@pytest.fixture
def untold(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[World]:
    """Its publication, made by somebody else, leaves generated columns out, as all did before PostgreSQL 18."""
    run_sql(database, f'CREATE PUBLICATION "{database_of(database)}"')
    with fresh_store(postgres) as store_url:
        yield taken(tmp_path, database, store_url, (*CREATE, BY_KEY))


def taken(folder: Path, source_url: str, store_url: str, create: tuple[str, ...]) -> World:
    run_sql(source_url, *create)
    world = world_of(folder, source_url, store_url)
    begin_again(world)
    assert_equal(world)
    return world


def assert_equal(world: World) -> None:
    for table in ("orders", "customers"):
        assert [written(row) for row in in_lake(world, table)] == in_source(world, table)


def written(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, date) else float(value) if isinstance(value, Decimal) else value
        for name, value in row.items()
    }


def follow(world: World, *statements: str) -> None:
    run_sql(world.source_url, *statements)
    assert go_on(world) == {}
    assert_equal(world)


def taken_anew(world: World, table: str) -> None:
    assert list(go_on(world)) == [table]
    with world.process() as pipeline:
        snapshot_runs(pipeline, poll_interval=POLL).take_wanted(pipeline.table_names(), slots=1)
    assert go_on(world) == {}
    assert {state for state, _ in states(world).values()} == {"live"}
    assert_equal(world)


def test_they_are_equal_after_every_kind_of_change(world: World) -> None:
    follow(world, *WRITES)
    follow(world, "TRUNCATE orders", "INSERT INTO orders (id, amount) VALUES (1, 2)", "DELETE FROM customers")


def test_virtual_ones_are_computed_too(world: World) -> None:
    run_sql(world.source_url, "ALTER TABLE orders ADD twice int GENERATED ALWAYS AS (amount * 2) VIRTUAL")
    taken_anew(world, "orders")
    follow(world, *WRITES)


def test_what_the_publication_leaves_out_is_computed(untold: World) -> None:
    more_than_one_statement = "SELECT n, repeat('e', 4000) FROM generate_series(1000, 2999) AS n"
    follow(untold, *WRITES, f"INSERT INTO orders (id, body) {more_than_one_statement}")


def test_an_expression_sees_the_collation_of_its_inputs(untold: World) -> None:
    run_sql(
        untold.source_url,
        "CREATE DOMAIN title AS varchar(9) COLLATE pg_c_utf8",
        """ALTER TABLE orders ADD utf8 text COLLATE pg_c_utf8, ADD c text COLLATE "C", ADD named title,
        ADD small_utf8 text GENERATED ALWAYS AS (lower(utf8)) STORED, ADD small_c text GENERATED ALWAYS AS (lower(c))
        STORED, ADD small_named text GENERATED ALWAYS AS (lower(named)) STORED""",
    )
    taken_anew(untold, "orders")
    follow(untold, "INSERT INTO orders (id, utf8, c, named) VALUES (60, 'É', 'É', 'É'), (61, NULL, 'é', 'É')")


def test_a_partition_whose_old_rows_are_not_whole_though_those_of_its_table_are(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    parts = (
        f"""CREATE TABLE {table} (id int PRIMARY KEY, n int, body text, size int GENERATED ALWAYS AS ({size}) STORED)
        PARTITION BY RANGE (id);
        CREATE TABLE {table}_low PARTITION OF {table} FOR VALUES FROM (0) TO (1000);
        ALTER TABLE {table}_low ALTER body SET STORAGE EXTERNAL;
        ALTER TABLE {table} REPLICA IDENTITY FULL;
        INSERT INTO {table} VALUES (1, 0, repeat('x', 9000))"""
        for table, size in (("orders", "length(body)"), ("customers", "length(body) + n"))
    )
    via_root = "WITH (publish_via_partition_root = true)"
    run_sql(database, f'CREATE PUBLICATION "{database_of(database)}" {via_root}', *parts)
    with fresh_store(postgres) as store_url:
        world = world_of(tmp_path, database, store_url)
        begin_again(world)
        run_sql(database, "UPDATE orders SET id = 3", "UPDATE customers SET n = 1")
        assert "from which size is computed" in go_on(world).pop("customers")
        assert in_lake(world, "orders") == in_source(world, "orders")


def test_a_large_input_that_did_not_change_is_named_with_what_helps(world: World) -> None:
    run_sql(world.source_url, "ALTER TABLE orders ADD size text GENERATED ALWAYS AS (id % 2 || body) VIRTUAL")
    taken_anew(world, "orders")
    run_sql(world.source_url, "UPDATE orders SET id = 57 WHERE id = 7")
    (reason,) = go_on(world).values()
    assert "leaves out a large value that did not change, from which size is computed" in reason
    assert "make size STORED" in reason
    taken_anew(world, "orders")


def test_an_event_before_a_new_beginning_is_not_computed_though_the_same_read_shows_later_ones(world: World) -> None:
    publication = f'ALTER PUBLICATION "{database_of(world.source_url)}"'
    run_sql(world.source_url, "ALTER TABLE orders ADD size text GENERATED ALWAYS AS (id % 2 || body) VIRTUAL")
    taken_anew(world, "orders")
    run_sql(
        world.source_url,
        "UPDATE orders SET id = 57 WHERE id = 7",
        f"{publication} DROP TABLE orders",
        f"{publication} ADD TABLE orders",
    )
    begin_again(world, [name_of(world, "orders")])
    follow(world, "INSERT INTO orders (id, body) VALUES (60, 'later')")


def test_a_table_that_could_not_be_written_any_more_is_not_published(world: World) -> None:
    name = name_of(world, "customers")
    publication = f'ALTER PUBLICATION "{database_of(world.source_url)}"'
    run_sql(
        world.source_url,
        f"{publication} DROP TABLE customers",
        f"{publication} SET (publish_generated_columns = none)",
    )
    with world.process() as pipeline:
        refused = pipeline.source_setup().set_up(begin_again=[name]).refused[name]
        assert "PostgreSQL refuses its updates and deletes" in str(refused)
        assert f"{publication} SET (publish_generated_columns = stored)" in pipeline.source_setup().missing_sql()
    run_sql(world.source_url, "ALTER TABLE customers ADD virtual int GENERATED ALWAYS AS (id) VIRTUAL")
    with world.process() as pipeline:
        refused = pipeline.source_setup().set_up(begin_again=[name]).refused[name]
    assert "virtual generated columns" in str(refused)


def test_what_the_source_does_not_compute_stops_that_table_alone(untold: World) -> None:
    run_sql(
        untold.source_url,
        "CREATE FUNCTION risky(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 10 / $1'",
        "ALTER TABLE orders ADD risk int GENERATED ALWAYS AS (risky(id)) STORED",
    )
    taken_anew(untold, "orders")
    run_sql(
        untold.source_url,
        "INSERT INTO orders (id) VALUES (60)",
        "INSERT INTO customers VALUES (60)",
        "CREATE OR REPLACE FUNCTION risky(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1 / ($1 - $1)'",
    )
    (reason,) = go_on(untold).values()
    assert "division by zero" in reason
    assert in_lake(untold, "customers") == in_source(untold, "customers")


@pytest.mark.parametrize("unread", [0, 1], ids=["all read before", "an event before"])
@pytest.mark.parametrize("kind", ["world", "untold"])
def test_one_that_is_dropped_or_renamed_is_followed(request: pytest.FixtureRequest, kind: str, unread: int) -> None:
    world: World = request.getfixturevalue(kind)
    before = ["INSERT INTO orders (id, note) SELECT max(id) + 1, 'before' FROM orders"] * unread
    later = "INSERT INTO orders (id, note) VALUES (60, 'later')"
    follow(world, *before, "ALTER TABLE orders RENAME loud TO louder", later)
    drop = "ALTER TABLE orders DROP louder"
    run_sql(world.source_url, *before, drop, "INSERT INTO orders (id, note) VALUES (65, 'last')")
    assert go_on(world) == {}
    rows = [written({name: row[name] for name in row if name != "louder"}) for row in in_lake(world, "orders")]
    assert rows == in_source(world, "orders")


def test_a_function_that_takes_the_name_of_another_one_computes_in_another_way(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    run_sql(database, f'CREATE PUBLICATION "{database_of(database)}"')
    function = "CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * {}'"
    tables = (
        "CREATE TABLE orders (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (f(a)) STORED)",
        "CREATE TABLE customers (id int PRIMARY KEY)",
    )
    with fresh_store(postgres) as store_url:
        world = taken(tmp_path, database, store_url, (function.format(2), *tables))
        run_sql(database, "ALTER FUNCTION f(int) RENAME TO other", function.format(1000))
        run_sql(database, "INSERT INTO orders VALUES (2, 2)")
        go_on(world)
        assert {name: state for name, (state, _) in states(world).items()} == {"orders": "stale", "customers": "live"}


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (
            ("CREATE TABLE customers (n int, id int GENERATED ALWAYS AS (n + 1) STORED PRIMARY KEY)",),
            "generated column 'id'",
        ),
        (
            (
                """CREATE TABLE customers (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id + 1) STORED)
                PARTITION BY RANGE (id)""",
                """CREATE TABLE customers_low PARTITION OF customers (n GENERATED ALWAYS AS (id + 2) STORED)
                FOR VALUES FROM (0) TO (100)""",
            ),
            "compute n otherwise than itself",
        ),
    ],
    ids=["the id", "of a partition"],
)
def test_what_an_event_cannot_tell_is_refused(world: World, statements: tuple[str, ...], reason: str) -> None:
    run_sql(world.source_url, "DROP TABLE customers", *statements)
    with world.process() as pipeline:
        refused = pipeline.source_setup().set_up(begin_again=pipeline.table_names()).refused
    assert reason in str(refused[name_of(world, "customers")])


@pytest.mark.parametrize("version", ["14", "17"])
def test_older_versions_compute_all_of_them(version: str, tmp_path: Path) -> None:
    """PostgreSQL 14 notes what an expression depends on elsewhere than later ones."""
    binaries = unpacked_binaries(locked_versions()[version])
    with (
        started_server({**os.environ, "CDC_POSTGRES_BIN": str(binaries)}) as server,
        fresh_database(server) as database,
        fresh_store(server) as store_url,
    ):
        world = taken(tmp_path, database, store_url, CREATE)
        follow(world, *WRITES)
        run_sql(database, "UPDATE orders SET id = 57 WHERE id = 7")
        (reason,) = go_on(world).values()
        assert "run ALTER TABLE" in reason
        assert "REPLICA IDENTITY FULL" in reason
        run_sql(database, "ALTER TABLE orders REPLICA IDENTITY FULL")
        taken_anew(world, "orders")
        follow(world, "UPDATE orders SET id = 58 WHERE id = 8", "TRUNCATE customers")
