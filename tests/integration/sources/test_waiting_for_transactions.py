"""A position waits for the transactions that run, and says which ones they are."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg2
import psycopg2.extensions
import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.sources.postgres.catalogue import rows
from cdc_pipeline.sources.postgres.position import hold_position, is_held, snapshot_connection
from cdc_pipeline.steps import no_step
from tests.support.command_line import query
from tests.support.eventually import eventually
from tests.support.postgres import encoded_database
from tests.support.streams import run_sql

CREATE = "CREATE TABLE items (id int PRIMARY KEY)"
OPEN = "INSERT INTO items VALUES (1)"
WAITS = "the snapshot's position waits for a transaction to end"


END_HOLDER = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND mode = 'ShareLock' AND database = (SELECT oid FROM pg_database
                                                                   WHERE datname = current_database())
"""
SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"


@pytest.fixture
def connection(database: str) -> Any:
    run_sql(database, CREATE)
    with closing(psycopg2.connect(database)) as opened, opened.cursor() as cursor:
        cursor.execute(OPEN)
        yield opened


def held_at(database: str) -> int:
    with hold_position(database, "waits", no_step, report_after=timedelta(milliseconds=50)) as held:
        return held.position


def reports_until(database: str, end: Callable[[], None]) -> list[Any]:
    """What is said while the position waits, until `end` ends the transaction."""
    with capture_logs() as logs, ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(held_at, database)
        try:
            assert eventually(lambda: any(said["event"] == WAITS for said in logs))
        finally:
            end()
        assert waiting.result() > 0
    return [said for said in logs if said["event"] == WAITS]


def test_the_session_that_holds_it_up_is_named_with_its_query(
    connection: psycopg2.extensions.connection, database: str
) -> None:
    (said, *_) = reports_until(database, connection.commit)
    pid = connection.info.backend_pid
    assert (said["pid"], said["user"], said["state"], said["query"]) == (pid, "cdc", "idle in transaction", OPEN)
    assert said["since"]
    assert said["remedy"] == f"end it, or run SELECT pg_terminate_backend({pid})"


def test_the_query_of_another_database_is_left_out_since_it_may_have_another_encoding(
    postgres: PostgresServer, database: str
) -> None:
    with encoded_database(postgres, "LATIN1") as other, closing(psycopg2.connect(other)) as writer:
        with writer.cursor() as cursor:
            cursor.execute("SELECT 'caf\u00e9', pg_current_xact_id()")
        (said, *_) = reports_until(database, writer.commit)
        assert (said["pid"], said["query"]) == (writer.info.backend_pid, None)


def test_a_prepared_transaction_that_holds_it_up_is_named(
    connection: psycopg2.extensions.connection, database: str
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("PREPARE TRANSACTION 'left behind'")
    (said, *_) = reports_until(database, lambda: run_sql(database, "COMMIT PREPARED 'left behind'"))
    assert (said["pid"], said["prepared"], said["user"]) == (None, "left behind", "cdc")
    assert said["remedy"] == "COMMIT PREPARED or ROLLBACK PREPARED 'left behind'"


def test_a_held_position_keeps_back_no_log(database: str) -> None:
    """Its slot would, for as long as a copy takes. The snapshot stays, and who asks sees that it is held."""
    run_sql(database, CREATE)
    with hold_position(database, "held", no_step) as held:
        assert eventually(lambda: query(database, SLOTS) == [(0,)])
        run_sql(database, OPEN)
        with snapshot_connection(database, held.exported) as copy:
            assert rows(copy, "SELECT * FROM items") == []
        assert is_held(database, "held")
        assert not is_held(database, "other")
    assert eventually(lambda: not is_held(database, "held"))
    with pytest.raises(SnapshotError, match="is gone"), snapshot_connection(database, held.exported):
        pass


def test_a_position_whose_session_the_server_ended_is_left_without_an_error(database: str) -> None:
    """Its last copy had ended well: each has a session of its own."""
    with hold_position(database, "held", no_step):
        assert query(database, END_HOLDER) == [(True,)]
        assert eventually(lambda: not is_held(database, "held"))
