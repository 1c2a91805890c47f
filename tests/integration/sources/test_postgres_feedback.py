"""What the server hears of a slot's reader: it never confirms what is not registered, and lives while its cut waits."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest

from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.postgres.session import connect
from cdc_pipeline.sources.postgres.setup import SourcePlan
from cdc_pipeline.sources.postgres.slot import replace_slot
from tests.support.command_line import query
from tests.support.eventually import eventually
from tests.support.streams import READ_WAIT, database_of, new_cutter, opened, prepare, read_marked, run_sql
from tests.support.tcp_proxy import Proxy, proxied

TIMEOUT = "?options=-c%20wal_sender_timeout%3D{}s"
ASKS_AFTER_SECONDS = 5
"""Half of the timeout of 10 s in these tests: then the server asks a reader that is silent whether it lives."""
SLOT = """
SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, active FROM pg_replication_slots
WHERE database = current_database()
"""
SHORTEST_SECONDS = 2
OTHERS_END = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
"""As at a shutdown, which leaves readers of the log alone at first."""
LARGE = "INSERT INTO items SELECT n, repeat('x', 8000) FROM generate_series(100, 5100) n"
"""More than one batch of the receiver and what the sockets hold."""


def prepared(database: str) -> tuple[PostgresSource, SourcePlan]:
    run_sql(database, "CREATE TABLE items (id int PRIMARY KEY, note text)")
    return prepare(database, [TableSettings(name=f"{database_of(database)}.public.items")])


@contextmanager
def through_proxy(source: PostgresSource, database: str) -> Iterator[tuple[Proxy, PostgresSource]]:
    port = urlsplit(database).port or 0
    with proxied(port) as proxy:
        url = database.replace(f":{port}/", f":{proxy.port}/") + TIMEOUT.format(2 * ASKS_AFTER_SECONDS)
        yield proxy, source.model_copy(update={"url": url})


def confirmed(database: str) -> Any:
    return query(database, SLOT)[0][0]


def confirmed_at_the_end(database: str) -> Any:
    """The server has then read every answer of the reader that left."""
    assert eventually(lambda: not query(database, SLOT)[0][1])
    return confirmed(database)


def test_an_answer_to_the_server_amid_a_long_transaction_confirms_nothing(database: str) -> None:
    source, plan = prepared(database)
    with through_proxy(source, database) as (proxy, slow), opened(slow, plan) as stream:
        cutter = new_cutter(source)
        with closing(psycopg2.connect(database)) as writer:
            writer.cursor().execute(LARGE)
            run_sql(database, "INSERT INTO items VALUES (1)")
            registered = read_marked(stream, cutter)
            assert registered.last_commit_position is not None
            stream.confirm(registered.last_commit_position)
            with proxy.held():
                run_sql(database, "INSERT INTO items VALUES (2)")
                writer.commit()
                Event().wait(ASKS_AFTER_SECONDS + 1)
        cut = read_marked(stream, cutter)
    assert sum(len(part.rows) for part in cut.slices.values()) > 5000
    assert confirmed_at_the_end(database) == registered.last_commit_position


@pytest.mark.parametrize("again", [False, True], ids=["setup-source", "setup-source --begin-again"])
def test_an_answer_to_the_server_before_the_first_change_confirms_nothing(*, again: bool, database: str) -> None:
    source, plan = prepared(database)
    if again:
        with closing(connect(database)) as connection:
            replace_slot(connection, source.slot)
    first = confirmed(database)
    with through_proxy(source, database) as (proxy, slow), opened(slow, plan) as stream:
        run_sql(database, "CREATE TABLE unpublished AS SELECT 1 AS id")
        stream.read(READ_WAIT)
        stream.confirm(first)
        with proxy.held():
            Event().wait(ASKS_AFTER_SECONDS + 1)
        read_marked(stream, new_cutter(source))
    assert confirmed_at_the_end(database) == first


def test_a_cut_that_takes_longer_than_the_servers_timeout_is_confirmed(database: str) -> None:
    source, plan = prepared(database)
    hasty = source.model_copy(update={"url": database + TIMEOUT.format(SHORTEST_SECONDS)})
    with opened(hasty, plan) as stream:
        run_sql(database, "INSERT INTO items VALUES (1)")
        cut = read_marked(stream, new_cutter(source))
        Event().wait(3 * SHORTEST_SECONDS)
        assert cut.last_commit_position is not None
        stream.confirm(cut.last_commit_position)
        assert eventually(lambda: confirmed(database) == cut.last_commit_position, 5)


def test_a_server_that_shuts_down_does_not_wait_for_the_end_of_a_cut(database: str) -> None:
    source, plan = prepared(database)
    hasty = source.model_copy(update={"url": database + TIMEOUT.format(SHORTEST_SECONDS)})
    with opened(hasty, plan):
        assert query(database, SLOT)[0][1]
        run_sql(database, OTHERS_END)
        assert eventually(lambda: not query(database, SLOT)[0][1], 5 * SHORTEST_SECONDS)
