"""The sessions on a PostgreSQL source have the options that they need, whatever the defaults of the server are."""

from collections.abc import Callable
from contextlib import closing

import psycopg2.extensions
import pytest

from cdc_pipeline.sources.postgres.session import connect, connect_for_replication
from tests.support.streams import database_of, run_sql

TIMEOUTS = ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout")


@pytest.mark.parametrize("opened", [connect, connect_for_replication])
def test_no_timeout_of_the_server_ends_them_and_options_of_the_url_are_kept(
    opened: Callable[[str], psycopg2.extensions.connection], database: str
) -> None:
    run_sql(database, *(f"ALTER DATABASE \"{database_of(database)}\" SET {name} = '7s'" for name in TIMEOUTS))
    options = "-c%20work_mem%3D77kB%20-c%20datestyle%3DGerman"
    with closing(opened(f"{database}?options={options}")) as connection, connection.cursor() as cursor:
        wanted = {**dict.fromkeys(TIMEOUTS, "0"), "work_mem": "77kB", "datestyle": "ISO, DMY"}
        for name, value in wanted.items():
            cursor.execute(f"SHOW {name}")
            assert (name, cursor.fetchone()) == (name, (value,))
