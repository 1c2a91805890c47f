"""A table of the source that somebody locks, as a migration does, stops no other table and is not waited for."""

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread

import psycopg2
import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import SourceBusy, StreamMoved
from cdc_pipeline.sources.postgres.publication import read_publication
from cdc_pipeline.sources.postgres.session import answering, bound_waits, connect
from cdc_pipeline.wiring import Pipeline
from tests.support.command_line import query
from tests.support.eventually import eventually
from tests.support.guarded import BOTH, begin_again, go_on, in_lake, in_source, states, world_of
from tests.support.postgres import fresh_database, started_server
from tests.support.streams import database_of, run_sql

CREATE = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE customers (id int PRIMARY KEY, note text)",
    "CREATE TABLE unread (id int PRIMARY KEY)",
)
SUMS = "CREATE TABLE sums (id int PRIMARY KEY, price int, total int GENERATED ALWAYS AS (price + 1) STORED)"
CHANGES = ("RENAME price TO cost", "ALTER total SET EXPRESSION AS (price * 2)", "ALTER total DROP EXPRESSION")
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
WAITS_FOR_STANDBY = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
LOCK = "LOCK TABLE orders, customers, unread, sums IN ACCESS EXCLUSIVE MODE"
ALL = 'CREATE PUBLICATION "{}" FOR ALL TABLES WITH (publish_via_partition_root = true)'


@pytest.mark.parametrize("publish", [(), (ALL,)], ids=["each table published", "all tables published"])
def test_the_stream_is_opened_read_and_registered_while_tables_are_locked(
    publish: Sequence[str], database: str, store_url: str, tmp_path: Path
) -> None:
    run_sql(database, *CREATE, SUMS, *(statement.format(database_of(database)) for statement in publish))
    world = world_of(tmp_path, database, store_url, (*BOTH, {"name": "public.sums"}))
    begin_again(world)
    with closing(psycopg2.connect(database)) as migration, migration.cursor() as cursor:
        cursor.execute(LOCK)
        cursor.execute("INSERT INTO orders VALUES (1, 'a')")
        cursor.execute("INSERT INTO sums VALUES (1, 1)")
        migration.commit()
        cursor.execute(LOCK)
        assert go_on(world) == {}
    for table in ("orders", "sums"):
        assert in_lake(world, table) == in_source(world, table) != []


@pytest.mark.parametrize("change", CHANGES)
def test_an_expression_that_changed_is_asked_for_again(
    change: str, database: str, store_url: str, tmp_path: Path
) -> None:
    run_sql(database, SUMS)
    world = world_of(tmp_path, database, store_url, ({"name": "public.sums"},))
    begin_again(world)
    run_sql(database, "INSERT INTO sums VALUES (1, 1)", f"ALTER TABLE sums {change}")
    assert "sums" in go_on(world)
    begin_again(world)
    run_sql(database, "INSERT INTO sums VALUES (2, 5)")
    assert go_on(world) == {}
    assert in_lake(world, "sums") == in_source(world, "sums")


@pytest.mark.parametrize("change", ["ADD added int", "RENAME note TO words"])
def test_a_column_that_is_committed_while_the_stream_is_opened_is_followed(
    change: str, database: str, store_url: str, tmp_path: Path
) -> None:
    run_sql(database, *CREATE)
    world = world_of(tmp_path, database, store_url, BOTH)
    begin_again(world)
    run_sql(database, "INSERT INTO customers VALUES (1)")
    stopped: list[dict[str, str]] = []
    with closing(psycopg2.connect(database)) as migration, migration.cursor() as cursor:
        cursor.execute(f"ALTER TABLE customers {change}")
        opening = Thread(target=lambda: stopped.append(go_on(world)))
        opening.start()
        assert eventually(lambda: bool(query(database, WAITING)) or not opening.is_alive())
        migration.commit()
        opening.join()
    assert stopped == [{}]
    run_sql(database, "INSERT INTO customers VALUES (2)")
    assert go_on(world) == {}
    assert in_lake(world, "customers") == in_source(world, "customers")


def test_a_column_of_a_transaction_that_waits_for_a_standby_is_followed(store_url: str, tmp_path: Path) -> None:
    """The server sends such a transaction before it shows it to others."""
    with started_server(dict(os.environ)) as server, fresh_database(server) as database:
        run_sql(database, *CREATE)
        world = world_of(tmp_path, database, store_url, BOTH)
        begin_again(world)
        run_sql(database, f'ALTER DATABASE "{database_of(database)}" SET synchronous_commit = local')
        run_sql(database, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        assert eventually(lambda: query(database, "SHOW synchronous_standby_names") == [("nobody",)])
        with closing(psycopg2.connect(database)) as migration, migration.cursor() as cursor, ExitStack() as commit:
            cursor.execute("SET synchronous_commit = on")
            cursor.execute("ALTER TABLE customers ADD added int")
            cursor.execute("INSERT INTO customers VALUES (1, 'a', 1)")
            committing = Thread(target=migration.commit)
            committing.start()
            commit.callback(
                run_sql, database, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"
            )
            commit.callback(committing.join)
            commit.callback(migration.cancel)
            assert eventually(lambda: bool(query(database, WAITS_FOR_STANDBY)))
            with world.process() as pipeline, pytest.raises(StreamMoved, match="other columns than when its stream"):
                read_once(pipeline)
            assert states(world)["customers"] == ("live", None)
        assert go_on(world) == {}
        assert in_lake(world, "customers") == in_source(world, "customers") != []


def read_once(pipeline: Pipeline) -> None:
    with pipeline.consumer_runs().open() as consumer:
        stream_to_slices_until_idle(consumer)


def test_a_lock_that_is_not_given_in_time_is_named_and_tried_again(database: str) -> None:
    run_sql(database, *CREATE)
    with closing(connect(database)) as waiting, closing(psycopg2.connect(database)) as migration:
        bound_waits(waiting)
        with migration.cursor() as cursor, waiting.cursor() as waits:
            cursor.execute("LOCK TABLE orders")
            waits.execute("SET lock_timeout = '1ms'")
            with pytest.raises(SourceBusy, match=r"the source is in use: .*lock timeout.*pg_locks"), answering():
                waits.execute("SELECT FROM orders")


PARTED = (
    "CREATE SCHEMA other",
    "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
    "CREATE TABLE other.high PARTITION OF orders FOR VALUES FROM (1000) TO (3000) PARTITION BY RANGE (id)",
    "CREATE TABLE higher PARTITION OF other.high FOR VALUES FROM (1000) TO (2000)",
    "CREATE TABLE other.highest PARTITION OF other.high FOR VALUES FROM (2000) TO (3000)",
    "CREATE TABLE child () INHERITS (unread)",
)
PUBLISHED = (
    "FOR ALL TABLES",
    "FOR TABLE customers, unread",
    "FOR TABLE orders, low, ONLY unread",
    "FOR TABLE other.high",
    "FOR TABLE low, higher WHERE (id > 1), other.highest (id)",
    "FOR TABLES IN SCHEMA other",
    "FOR TABLE customers, TABLES IN SCHEMA public, other",
    "",
)
VIEW = """
SELECT t.schemaname::text, t.tablename::text, t.rowfilter IS NOT NULL,
       (SELECT array_agg(a.attname::text ORDER BY attnum) FROM pg_attribute AS a WHERE attrelid = c.oid AND attnum > 0)
       <> t.attnames::text[]
FROM pg_publication_tables AS t JOIN pg_namespace AS n ON n.nspname = t.schemaname
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename WHERE t.pubname = 'of'
"""


@pytest.mark.parametrize("via_root", ["true", "false"])
def test_a_publication_holds_what_the_view_shows_that_takes_locks(via_root: str, database: str) -> None:
    run_sql(database, *CREATE, *PARTED)
    with closing(connect(database)) as connection:
        connection.autocommit = True
        for tables in PUBLISHED:
            run_sql(database, f'CREATE PUBLICATION "of" {tables} WITH (publish_via_partition_root = {via_root})')
            found = read_publication(connection, "of")
            with connection.cursor() as cursor:
                cursor.execute(VIEW)
                shown = {(schema, name): (rows, columns) for schema, name, rows, columns in cursor.fetchall()}
            assert found is not None
            assert {
                name: (table.has_row_filter, table.hides((1, 2) if name[1] != "unread" else (1,)))
                for name, table in found.tables.items()
            } == shown, tables
            run_sql(database, 'DROP PUBLICATION "of"')
