"""The demo's source: seeded once, written to in every way, left without a trace of the writers."""

from collections.abc import Iterator
from contextlib import closing
from importlib.resources import as_file, files
from pathlib import Path
from random import Random
from threading import active_count
from urllib.parse import urlsplit

import psutil
import psycopg2
import pytest

from cdc_pipeline.demo.seed import Scale, seed
from cdc_pipeline.demo.transactions import KINDS, LONG
from cdc_pipeline.demo.workload import PGBENCH, Workload
from cdc_pipeline.errors import SetupError, SourceAway
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.settings.file import load_settings
from tests.support.eventually import eventually
from tests.support.pipelines import pipeline_settings
from tests.support.postgres import fresh_database
from tests.support.streams import prepare, run_sql

SMALL = Scale(customers=200, products=50, orders=500, lines=3)
SHOP = ("customers", "products", "orders", "order_items")
TABLES = (*SHOP, "pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
EVERY_KIND = {*(kind.name for kind in (*KINDS, LONG)), PGBENCH}


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> Iterator[str]:
    """The name of a seeded database, which nobody else writes to: 100,000 rows of pgbench take a second to make."""
    with fresh_database(postgres) as url:
        seed(url, SMALL)
        yield urlsplit(url).path.removeprefix("/")


@pytest.fixture
def seeded(postgres: PostgresServer, template: str) -> Iterator[str]:
    """The URL of a seeded database of this test."""
    with fresh_database(postgres, template=template) as url:
        yield url


def count(url: str, query: str) -> int:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        (number,) = cursor.fetchone() or (0,)
        return int(number)


def rows(url: str, table: str) -> int:
    return count(url, f"SELECT count(*) FROM {table}")


def connections(url: str) -> int:
    """Apart from the one that asks."""
    return count(
        url,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
    )


def test_a_second_seed_leaves_everything_as_it_is(database: str) -> None:
    seed(database, SMALL)
    first = [rows(database, table) for table in TABLES]
    assert first == [200, 50, 500, 1500, 100_000, 1, 10, 0]
    run_sql(database, "DELETE FROM orders WHERE order_id = 1", "UPDATE pgbench_tellers SET tbalance = 7")
    seed(database, SMALL)
    assert [rows(database, table) for table in TABLES] == [200, 50, 499, 1497, 100_000, 1, 10, 0]
    assert rows(database, "pgbench_tellers WHERE tbalance = 7") == 10


def test_a_seed_that_was_killed_in_pgbench_is_repaired_by_the_next(database: str) -> None:
    seed(database, SMALL)
    run_sql(database, "ALTER TABLE pgbench_accounts DROP CONSTRAINT pgbench_accounts_pkey", "TRUNCATE pgbench_accounts")
    seed(database, SMALL)
    assert rows(database, "pgbench_accounts") == 100_000


def test_texts_of_products_are_long_and_lie_out_of_line(seeded: str) -> None:
    assert rows(seeded, "products WHERE length(description) NOT BETWEEN 5000 AND 20000") == 0
    toast = "SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'products'"
    with closing(psycopg2.connect(seeded)) as connection, connection.cursor() as cursor:
        cursor.execute(toast)
        ((name,),) = cursor.fetchall()
    assert count(seeded, f"SELECT count(DISTINCT chunk_id) FROM {name}") == 50


def test_every_kind_of_transaction_really_happens_and_nothing_of_the_writers_stays(seeded: str) -> None:
    threads, children = active_count(), set(psutil.Process().children())
    workload = Workload(seeded, chance=Random(1), transactions_per_second=400)
    workload.start()
    try:
        assert eventually(lambda: workload.counts().keys() >= EVERY_KIND)
    finally:
        counts = workload.stop()
    assert min(counts.values()) > 0
    assert active_count() == threads
    assert set(psutil.Process().children()) == children
    assert eventually(lambda: connections(seeded) == 0)
    assert rows(seeded, "customers WHERE customer_id < 0") == 0
    assert rows(seeded, "pgbench_history") >= counts[PGBENCH]


def test_the_password_of_the_source_is_not_in_the_list_of_processes(postgres: PostgresServer, seeded: str) -> None:
    workload = Workload(seeded, chance=Random(1))
    workload.start()
    try:
        commands = [process.cmdline() for process in psutil.Process().children()]
    finally:
        workload.stop()
    assert [command for command in commands if "--client=2" in command]
    assert postgres.password not in str(commands)


def test_a_workload_that_is_stopped_ends_its_long_transactions_early(seeded: str) -> None:
    workload = Workload(seeded, chance=Random(1))
    workload.start()
    counts = workload.stop()
    assert sum(counts.values()) < 1000


def test_one_session_that_breaks_stops_them_all_and_is_told_at_the_stop(seeded: str) -> None:
    workload = Workload(seeded, chance=Random(1))
    workload.start()
    assert eventually(lambda: connections(seeded) >= 5)
    sessions = (
        "FROM pg_stat_activity WHERE datname = current_database() AND application_name = '' AND pid <> pg_backend_pid()"
    )
    run_sql(seeded, f"SELECT pg_terminate_backend(pid) {sessions} ORDER BY backend_start LIMIT 1")
    assert eventually(lambda: count(seeded, f"SELECT count(*) {sessions}") == 0)
    with pytest.raises(SourceAway):
        workload.stop()


def test_pgbench_that_ended_by_itself_is_told_at_the_stop(seeded: str) -> None:
    before = set(psutil.Process().children())
    workload = Workload(seeded, chance=Random(1))
    workload.start()
    (pgbench,) = set(psutil.Process().children()) - before
    run_sql(seeded, "DROP TABLE pgbench_tellers")
    assert eventually(lambda: pgbench.status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(SetupError, match="pgbench ended by itself"):
        workload.stop()


def test_the_template_fits_the_seeded_source(seeded: str, tmp_path: Path) -> None:
    with as_file(files("cdc_pipeline.demo") / "pipeline.yml") as template:
        settings = load_settings(template, {})
    assert tuple(table.table.table for table in settings.tables) == TABLES
    assert {table.table.database for table in settings.tables} == {"shop"}
    named = [table.model_dump() | {"name": f"public.{table.table.table}"} for table in settings.tables]
    _, plan = prepare(seeded, pipeline_settings(tmp_path, seeded, named).tables)
    keys = {table.name.table: table.schema.key for table in plan.tables}
    assert keys["order_items"] == ("order_id", "line_no")
    assert keys["pgbench_accounts"] == ("aid",)
    assert keys["pgbench_history"] == ()


def test_the_shop_shows_every_family_of_types(seeded: str) -> None:
    query = (
        "SELECT count(DISTINCT atttypid) FROM pg_attribute"
        " JOIN pg_class ON pg_class.oid = attrelid AND relkind = 'r' AND relname !~ '^pg'"
        " JOIN pg_namespace ON pg_namespace.oid = relnamespace AND nspname = 'public'"
        " WHERE attnum > 0 AND atttypid = ANY ('{numeric,timestamptz,jsonb,uuid,boolean,order_status,text[],date,"
        "smallint,bigint,bytea,double precision}'::regtype[])"
    )
    assert count(seeded, query) == 12
