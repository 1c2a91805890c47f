"""A table of the source that somebody locks, as a migration does, stops no other table and is not waited for."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Thread

import psycopg2
import pytest

from cdc_pipeline.errors import SourceBusy
from cdc_pipeline.sources.postgres.publication import read_publication
from cdc_pipeline.sources.postgres.session import answering, bound_waits, connect
from tests.support.command_line import query
from tests.support.eventually import eventually
from tests.support.guarded import BOTH, begin_again, go_on, in_lake, in_source, world_of
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
