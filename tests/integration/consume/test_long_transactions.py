"""Transactions that are open for long, prepared, or rolled back in part: the lake equals what the source shows."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.crash.world import World, apply_all, lake_tables, memory_lake, take_snapshot
from tests.support.delta_rows import seen
from tests.support.pipelines import consume, pipeline_settings, set_up_and_consume
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

CREATE = (
    "CREATE TABLE items (id int PRIMARY KEY, note text)",
    "INSERT INTO items SELECT n, 'old' FROM generate_series(1, 5) AS n",
)
OPENED = (
    "INSERT INTO items VALUES (10, 'long')",
    "UPDATE items SET note = 'long' WHERE id = 1",
    "DELETE FROM items WHERE id = 2",
)
MEANWHILE = ("UPDATE items SET note = 'meanwhile' WHERE id = 3", "INSERT INTO items VALUES (11, 'meanwhile')")
SUBTRANSACTIONS = """
BEGIN;
INSERT INTO items VALUES (20, 'kept');
SAVEPOINT first;
INSERT INTO items VALUES (21, 'gone'); UPDATE items SET note = 'gone' WHERE id = 1; DELETE FROM items WHERE id = 4;
SAVEPOINT second;
INSERT INTO items VALUES (22, 'gone');
RELEASE second;
ROLLBACK TO first;
UPDATE items SET note = 'kept' WHERE id = 4;
SAVEPOINT third;
INSERT INTO items VALUES (21, 'kept');
RELEASE third;
COMMIT
"""
MANY_SUBTRANSACTIONS = """
DO $$ BEGIN
    FOR n IN 100 .. 299 LOOP
        BEGIN
            INSERT INTO items VALUES (n, 'part');
            UPDATE items SET note = note || n WHERE id = 5;
            IF n % 3 = 0 THEN RAISE EXCEPTION 'not this one'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END LOOP;
END $$
"""


@pytest.fixture
def world(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[World]:
    run_sql(database, *CREATE)
    settings = pipeline_settings(tmp_path, database, [{"name": "public.items"}], source={"slice_rows": 3})
    with (
        fresh_store(postgres) as store_url,
        closing(World(settings=settings, source_url=database, store_url=store_url)) as world,
    ):
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
            take_snapshot(pipeline, world.tables)
        yield world


@pytest.fixture
def session(database: str) -> Iterator[Any]:
    """A session that leaves its transaction open."""
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        yield cursor


def check_equal(world: World) -> None:
    with world.process() as pipeline:
        consume(pipeline)
        apply_all(pipeline)
        (table,) = lake_tables(pipeline)
        found = sorted(tuple(row.values()) for row in seen(memory_lake(pipeline).rows(table)))
    assert found == world.query("SELECT id, note FROM items ORDER BY id")


def test_a_transaction_that_stays_open_holds_up_nobody_and_comes_whole(world: World, session: Any) -> None:
    for statement in OPENED:
        session.execute(statement)
        run_sql(world.source_url, *MEANWHILE[:1])
        check_equal(world)
    run_sql(world.source_url, *MEANWHILE[1:])
    check_equal(world)
    session.connection.commit()
    check_equal(world)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_prepared_transaction_comes_when_it_is_committed_and_never_when_not(
    world: World, session: Any, end: str
) -> None:
    for statement in OPENED:
        session.execute(statement)
    session.execute("PREPARE TRANSACTION 'both phases'")
    run_sql(world.source_url, *MEANWHILE)
    check_equal(world)
    run_sql(world.source_url, f"{end} PREPARED 'both phases'", "UPDATE items SET note = 'behind' WHERE id = 5")
    check_equal(world)


@pytest.mark.parametrize("changes", [SUBTRANSACTIONS, MANY_SUBTRANSACTIONS])
def test_what_a_savepoint_took_back_never_comes(world: World, changes: str) -> None:
    run_sql(world.source_url, changes)
    check_equal(world)
