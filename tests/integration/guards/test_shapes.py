"""A table changes its columns, types or partitions, and the lake equals the source again without anybody's help."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from snapshot.wiring import snapshot_runs
from tests.crash.world import World
from tests.support.guarded import begin_again, go_on, in_lake, states, world_of
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

CREATE = (
    "CREATE TYPE mood AS ENUM ('calm', 'cross')",
    "CREATE TABLE orders (id int PRIMARY KEY, note text, price numeric(10,2), tag varchar(10), feels mood, old text)",
    "CREATE TABLE customers (id int, note text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE customers_low PARTITION OF customers FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE customers_high PARTITION OF customers FOR VALUES FROM (100) TO (200)",
    "INSERT INTO orders SELECT n, 'n' || n, n, 't' || n, 'calm', 'old' FROM generate_series(1, 8) AS n",
    "INSERT INTO customers SELECT n, 'c' || n FROM generate_series(1, 4) AS n",
    "INSERT INTO customers SELECT n, 'c' || n FROM generate_series(101, 104) AS n",
)
WRITES = (
    "INSERT INTO orders (id, note) VALUES (20, 'new')",
    "UPDATE orders SET id = id + 30 WHERE id = 1",
    "DELETE FROM orders WHERE id = 2",
    "INSERT INTO customers VALUES (20, 'new'), (120, 'new')",
)
Row = dict[str, Any]
SEEN_WITHOUT_EVENTS = {
    "a column added",
    "another type",
    "dropped and created again",
    "a partition attached with its rows",
}
"""Of the changes that no event tells of, those that `make test` takes: one of each way to notice and to answer them."""
NOTHING, FOLLOWED, RETAKEN = "nothing happens", "followed in place", "taken anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is done to the source, and what it asks of the pipeline."""

    answer: str
    statements: tuple[str, ...]
    table: str = "orders"


CHANGES = {
    "a column added": Change(answer=FOLLOWED, statements=("ALTER TABLE orders ADD size int",)),
    "a column with a constant default": Change(
        answer=FOLLOWED, statements=("ALTER TABLE orders ADD size text NOT NULL DEFAULT 'it''s, \"large\"'",)
    ),
    "a column with the moment as default": Change(
        answer=FOLLOWED, statements=("ALTER TABLE orders ADD made timestamptz DEFAULT now()",)
    ),
    "a column of arrays with a default": Change(
        answer=FOLLOWED, statements=("ALTER TABLE orders ADD sizes int[] DEFAULT '{1,NULL,3}'",)
    ),
    "a serial column": Change(answer=RETAKEN, statements=("ALTER TABLE orders ADD number serial",)),
    "an identity column": Change(
        answer=RETAKEN, statements=("ALTER TABLE orders ADD number int GENERATED ALWAYS AS IDENTITY",)
    ),
    "a column with a volatile default": Change(
        answer=RETAKEN, statements=("ALTER TABLE orders ADD chance float8 DEFAULT random()",)
    ),
    "a column renamed": Change(answer=FOLLOWED, statements=("ALTER TABLE orders RENAME note TO words",)),
    "two columns with each other's names": Change(
        answer=FOLLOWED,
        statements=(
            """BEGIN; ALTER TABLE orders RENAME note TO middle; ALTER TABLE orders RENAME old TO note;
            ALTER TABLE orders RENAME middle TO old; COMMIT""",
        ),
    ),
    "a column dropped": Change(answer=FOLLOWED, statements=("ALTER TABLE orders DROP old",)),
    "a column dropped and added again": Change(
        answer=RETAKEN, statements=("ALTER TABLE orders DROP old", "ALTER TABLE orders ADD old text")
    ),
    "wider numbers and texts": Change(
        answer=FOLLOWED,
        statements=("ALTER TABLE orders ALTER price TYPE numeric(12,2)", "ALTER TABLE orders ALTER tag TYPE text"),
    ),
    "wider integers": Change(
        answer=RETAKEN,
        statements=("ALTER TABLE orders ADD size int DEFAULT 7", "ALTER TABLE orders ALTER size TYPE bigint"),
    ),
    "values computed anew in the same type": Change(
        answer=RETAKEN, statements=("ALTER TABLE orders ALTER note TYPE text USING upper(note)",)
    ),
    "another type": Change(answer=RETAKEN, statements=("ALTER TABLE orders ALTER price TYPE int USING length(note)",)),
    "an enum value renamed": Change(answer=RETAKEN, statements=("ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'",)),
    "an enum value added": Change(answer=NOTHING, statements=("ALTER TYPE mood ADD VALUE 'happy'",)),
    "what rows do not depend on": Change(
        answer=NOTHING,
        statements=(
            "ALTER TABLE orders ALTER note SET NOT NULL",
            "ALTER TABLE orders ADD CHECK (id > 0)",
            "COMMENT ON COLUMN orders.note IS 'words'",
            "ALTER TABLE orders ALTER note SET STATISTICS 5",
            "CREATE INDEX ON orders (tag)",
            "ANALYZE orders",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
        ),
    ),
    "files written anew": Change(answer=NOTHING, statements=("VACUUM FULL orders", "CLUSTER orders USING orders_pkey")),
    "emptied": Change(answer=NOTHING, statements=("TRUNCATE orders RESTART IDENTITY CASCADE",)),
    "another key": Change(
        answer=RETAKEN,
        statements=("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD PRIMARY KEY (id, note)"),
    ),
    "the key renamed": Change(
        answer=RETAKEN, statements=("ALTER TABLE orders RENAME id TO number", "ALTER TABLE orders RENAME number TO id")
    ),
    "dropped and created again": Change(
        answer=RETAKEN,
        statements=(
            "DROP TABLE orders",
            "CREATE TABLE orders (id int PRIMARY KEY, note text)",
            "INSERT INTO orders VALUES (77, 'of the other table')",
        ),
    ),
    "an empty partition created": Change(
        answer=NOTHING,
        table="customers",
        statements=("CREATE TABLE customers_more PARTITION OF customers FOR VALUES FROM (200) TO (300)",),
    ),
    "a partition attached with its rows": Change(
        answer=RETAKEN,
        table="customers",
        statements=(
            "CREATE TABLE customers_more (id int NOT NULL PRIMARY KEY, note text)",
            "INSERT INTO customers_more VALUES (250, 'was there before')",
            "ALTER TABLE customers ATTACH PARTITION customers_more FOR VALUES FROM (200) TO (300)",
        ),
    ),
    "a partition filled and attached in one transaction": Change(
        answer=RETAKEN,
        table="customers",
        statements=(
            """BEGIN; CREATE TABLE customers_more (id int NOT NULL PRIMARY KEY, note text);
            INSERT INTO customers_more VALUES (250, 'was there before');
            ALTER TABLE customers ATTACH PARTITION customers_more FOR VALUES FROM (200) TO (300); COMMIT""",
        ),
    ),
    "a partition detached": Change(
        answer=RETAKEN,
        table="customers",
        statements=(
            "ALTER TABLE customers DETACH PARTITION customers_low",
            "INSERT INTO customers_low VALUES (50, 'x')",
        ),
    ),
    "a partition dropped": Change(answer=RETAKEN, table="customers", statements=("DROP TABLE customers_high",)),
    "a partition emptied": Change(answer=RETAKEN, table="customers", statements=("TRUNCATE customers_high",)),
    "a column added to all partitions": Change(
        answer=FOLLOWED, table="customers", statements=("ALTER TABLE customers ADD size int DEFAULT 3",)
    ),
}
"""The key renamed and back again is nothing at all: between two looks nobody could tell."""
CHANGES["the key renamed"] = Change(answer=NOTHING, statements=CHANGES["the key renamed"].statements)


@pytest.fixture
def world(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[World]:
    run_sql(database, *CREATE)
    with fresh_store(postgres) as store_url:
        world = world_of(tmp_path, database, store_url)
        begin_again(world)
        run_sql(database, "UPDATE orders SET note = 'first' WHERE id = 3", "UPDATE customers SET note = 'first'")
        assert go_on(world) == {}
        yield world


def both(world: World, table: str) -> tuple[list[Row], list[Row]]:
    """Rows of lake and source, by id, in the columns that the source has: a dropped one is kept in the lake."""
    with (
        closing(psycopg2.connect(world.source_url, options="-c timezone=UTC")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f'SELECT * FROM {table} ORDER BY id::text COLLATE "C"')
        names = [column.name for column in cursor.description or ()]
        in_source = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [{name: row[name] for name in names} for row in in_lake(world, table)], in_source


def snapshots(world: World) -> int:
    return int(world.store_query("SELECT count(*) FROM cdc.snapshot WHERE state = 'published'")[0][0])


def take_due(world: World) -> None:
    with world.process() as pipeline:
        wanted = snapshot_runs(pipeline).wanted(pipeline.table_names())
    if wanted:
        begin_again(world, wanted)


def possible(world: World, statements: tuple[str, ...]) -> None:
    """What is written to tables as they are now; a statement for a partition that is gone does nothing."""
    columns = {name for (name,) in world.query("SELECT attname FROM pg_attribute WHERE attrelid = 'orders'::regclass")}
    for statement in statements:
        if "(id, note)" in statement and "note" not in columns:
            run_sql(world.source_url, statement.replace("(id, note)", "(id)").partition(",")[0] + ")")
        elif "customers" in statement:
            bounds = {
                low
                for (low,) in world.query(
                    "SELECT relname FROM pg_class JOIN pg_inherits ON inhrelid = oid"
                    " WHERE inhparent = 'customers'::regclass"
                )
            }
            if "customers_low" in bounds:
                run_sql(world.source_url, "INSERT INTO customers VALUES (20, 'new')")
            if "customers_high" in bounds:
                run_sql(world.source_url, "INSERT INTO customers VALUES (120, 'new')")
        else:
            run_sql(world.source_url, statement)


@pytest.mark.parametrize(
    ("kind", "with_events"),
    [
        *(pytest.param(kind, True, id=f"{kind}, with events behind it") for kind in CHANGES),
        *(
            pytest.param(kind, False, id=kind, marks=() if kind in SEEN_WITHOUT_EVENTS else pytest.mark.nightly)
            for kind in CHANGES
        ),
    ],
)
def test_the_lake_equals_the_source_after_each_change(world: World, kind: str, *, with_events: bool) -> None:
    change = CHANGES[kind]
    before = snapshots(world)
    run_sql(world.source_url, "INSERT INTO orders (id, note, old) VALUES (9, 'before', 'old')")
    run_sql(world.source_url, *change.statements)
    if with_events:
        possible(world, WRITES)
    stopped = go_on(world)
    assert list(stopped) == ([change.table] if change.answer == RETAKEN else [])
    take_due(world)
    assert snapshots(world) - before == (change.answer == RETAKEN)
    assert go_on(world) == {}
    for table in ("orders", "customers"):
        lake, source = both(world, table)
        assert lake == source
    assert {state for state, _ in states(world).values()} == {"live"}
    possible(world, ("INSERT INTO orders (id, note) VALUES (60, 'later')", "DELETE FROM orders WHERE id IN (3, 60)"))
    assert go_on(world) == {}
    lake, source = both(world, "orders")
    assert lake == source
