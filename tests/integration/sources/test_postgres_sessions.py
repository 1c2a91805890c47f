"""What others set on a PostgreSQL server or write to its log under the pipeline's prefix does not end the pipeline."""

from collections.abc import Callable
from contextlib import closing

import psycopg2.extensions
import pytest

from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.postgres.session import connect, connect_for_replication
from tests.support.streams import database_of, new_cutter, opened, prepare, read_marked, run_sql

TIMEOUTS = (
    "lock_timeout",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)


@pytest.mark.parametrize("connected", [connect, connect_for_replication])
def test_no_timeout_of_the_server_ends_them_and_options_of_the_url_are_kept(
    connected: Callable[[str], psycopg2.extensions.connection], database: str
) -> None:
    run_sql(database, *(f"ALTER DATABASE \"{database_of(database)}\" SET {name} = '7s'" for name in TIMEOUTS))
    options = "-c%20work_mem%3D77kB%20-c%20datestyle%3DGerman"
    with closing(connected(f"{database}?options={options}")) as connection, connection.cursor() as cursor:
        wanted = {**dict.fromkeys(TIMEOUTS, "0"), "work_mem": "77kB", "datestyle": "ISO, DMY"}
        for name, value in wanted.items():
            cursor.execute(f"SHOW {name}")
            assert (name, cursor.fetchone()) == (name, (value,))


@pytest.mark.parametrize("connected", [connect, connect_for_replication])
def test_the_server_notices_within_25_seconds_that_a_machine_is_gone(
    connected: Callable[[str], psycopg2.extensions.connection], database: str
) -> None:
    with closing(connected(database)) as connection, connection.cursor() as cursor:
        assert connection.info.host == "127.0.0.1"
        for name, value in {"idle": "10", "interval": "5", "count": "3"}.items():
            cursor.execute(f"SHOW tcp_keepalives_{name}")
            assert (name, cursor.fetchone()) == (name, (value,))


def test_a_message_of_somebody_else_under_the_pipelines_prefix_is_no_more_than_a_marker(database: str) -> None:
    run_sql(database, "CREATE TABLE items (id int PRIMARY KEY)")
    table = TableSettings(name=f"{database_of(database)}.public.items")
    source, plan = prepare(database, [table])
    with opened(source, plan) as stream:
        run_sql(
            database,
            r"SELECT pg_logical_emit_message(true, 'cdc_pipeline', '\xff'::bytea)",
            "INSERT INTO items VALUES (1)",
        )
        cut = read_marked(stream, new_cutter(source))
    (part,) = cut.slices.values()
    assert part.rows["id"].to_pylist() == [1]
