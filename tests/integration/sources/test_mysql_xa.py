"""The rows of an XA transaction that is committed behind a snapshot are never missing without a word.

The servers are of these tests alone: a commit whose rows a stream has not seen makes all tables of that stream stale.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pymysql.err import MySQLError

from cdc_pipeline.errors import SourceAway, SourceError
from cdc_pipeline.wiring import Pipeline
from tests.support.event_files import events_of
from tests.support.mariadb import connected, fresh_mysql_database, started_mariadb
from tests.support.mysql8 import started_mysql
from tests.support.mysql_source import MysqlShop, documented_reader, opened_stream, read_copy, read_stream
from tests.support.pipelines import consume

pytestmark = pytest.mark.xdist_group("own MySQL")
LISTED = ("orders", "other")


@pytest.fixture(scope="module", params=[started_mariadb, started_mysql], ids=["mariadb", "mysql8"])
def own_server(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param() as url:
        yield url


@pytest.fixture
def shop(own_server: str, store_url: str, tmp_path: Path) -> Iterator[MysqlShop]:
    with fresh_mysql_database(own_server) as name:
        shop = MysqlShop(folder=tmp_path, url=own_server, database=name, store_url=store_url)
        for table in (*LISTED, "unlisted"):
            shop.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, note TEXT)")
        yield shop


class Session:
    """One XA transaction in a session of its own. Its name has a quote and the database, so it is unique."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self._xid = f"'{name}''', 'branch', 7"

    def prepare(self, *statements: str) -> None:
        self._run(f"XA START {self._xid}", *statements, f"XA END {self._xid}", f"XA PREPARE {self._xid}")

    def commit(self) -> None:
        self._run(f"XA COMMIT {self._xid}")

    def roll_back(self) -> None:
        self._run(f"XA ROLLBACK {self._xid}")

    def commit_in_one_phase(self, *statements: str) -> None:
        self._run(f"XA START {self._xid}", *statements, f"XA END {self._xid}", f"XA COMMIT {self._xid} ONE PHASE")

    def _run(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


@contextmanager
def session(shop: MysqlShop) -> Iterator[Session]:
    """A prepared transaction that a failed test leaves would keep its tables locked."""
    with closing(connected(shop.url, shop.database)) as connection:
        xa = Session(connection, shop.database)
        try:
            yield xa
        finally:
            with suppress(MySQLError):
                xa.roll_back()


def stale(pipeline: Pipeline, shop: MysqlShop) -> list[str]:
    """Reads everything, and names the tables that are not read any more then."""
    consume(pipeline)
    known = pipeline.registered_stream().tables()
    return [name for name in LISTED if known[shop.name(name)].published_as is None]


def test_what_was_prepared_before_the_stream_began_makes_every_table_stale_once(shop: MysqlShop) -> None:
    """The log does not show any more which tables it changed: `other` may be one of them."""
    with session(shop) as xa, shop.opened(*LISTED) as pipeline:
        xa.prepare("INSERT INTO orders VALUES (1, 'x')")
        pipeline.source_setup().set_up()
        assert stale(pipeline, shop) == []
        assert read_copy(pipeline, shop.name("orders"))[0].num_rows == 0
        xa.commit()
        assert stale(pipeline, shop) == ["orders", "other"]
        pipeline.source_setup().set_up(begin_again=pipeline.table_names())
        assert stale(pipeline, shop) == []
        assert read_copy(pipeline, shop.name("orders"))[0].num_rows == 1


@pytest.mark.parametrize("is_cut_between", [True, False])
def test_a_commit_behind_the_snapshot_makes_the_tables_stale_that_it_changes(
    shop: MysqlShop, *, is_cut_between: bool
) -> None:
    with session(shop) as xa, shop.opened(*LISTED) as pipeline:
        pipeline.source_setup().set_up()
        xa.prepare("INSERT INTO orders VALUES (1, 'x')")
        assert stale(pipeline, shop) == ["orders"]
        pipeline.source_setup().set_up(begin_again=pipeline.table_names())
        if is_cut_between:
            shop.run("INSERT INTO orders VALUES (2, 'later')")
            assert stale(pipeline, shop) == []
        assert read_copy(pipeline, shop.name("orders"))[0].column("id").to_pylist() == [2][: int(is_cut_between)]
        xa.commit()
        assert stale(pipeline, shop) == ["orders"]
        reason = pipeline.store.tables.table(shop.name("orders")).state_reason
        assert "XA transaction that was prepared earlier" in str(reason)


@pytest.mark.parametrize("is_cut_between", [True, False])
def test_transactions_of_other_tables_stop_nothing(shop: MysqlShop, *, is_cut_between: bool) -> None:
    with session(shop) as xa, shop.opened(*LISTED) as pipeline:
        pipeline.source_setup().set_up()
        xa.prepare("INSERT INTO unlisted VALUES (1, 'x')")
        if is_cut_between:
            shop.run("INSERT INTO orders VALUES (1, 'between')", "INSERT INTO other VALUES (1, 'between')")
            assert stale(pipeline, shop) == []
        xa.commit()
        shop.run("INSERT INTO orders VALUES (2, 'after')")
        assert stale(pipeline, shop) == []
        assert [event["id"] for event in events_of(pipeline, shop.name("orders"))] == [1, 2][-1 - is_cut_between :]


@pytest.mark.parametrize(
    ("end", "mend", "error"),
    [
        ("ALTER USER {} ACCOUNT LOCK", "ALTER USER {} ACCOUNT UNLOCK", SourceAway),
        ("REVOKE REPLICATION SLAVE ON *.* FROM {}", "GRANT REPLICATION SLAVE ON *.* TO {}", SourceError),
    ],
    ids=["no login", "no right"],
)
def test_a_refusal_of_a_login_or_right_behind_the_prepare_makes_no_table_stale(
    shop: MysqlShop, end: str, mend: str, error: type[SourceError]
) -> None:
    user = f"{shop.database.replace('shop', 'reader')}@'127.0.0.1'"
    with session(shop) as xa, documented_reader(shop) as reader, shop.opened(*LISTED, source=reader) as pipeline:
        pipeline.source_setup().set_up()
        xa.prepare("INSERT INTO unlisted VALUES (1, 'x')")
        shop.run("INSERT INTO orders VALUES (1, 'between')")
        assert stale(pipeline, shop) == []
        with opened_stream(pipeline, pipeline.registered_stream().progress()) as stream:
            shop.run(end.format(user))
            xa.commit()
            with pytest.raises(error) as refused:
                _ = [stream.read(timedelta(seconds=1)) for _ in range(5)]
        assert type(refused.value) is error
        shop.run(mend.format(user))
        assert stale(pipeline, shop) == []


def test_a_table_that_is_listed_between_prepare_and_commit_becomes_stale(shop: MysqlShop) -> None:
    with session(shop) as xa:
        with shop.opened("other") as pipeline:
            pipeline.source_setup().set_up()
            xa.prepare("INSERT INTO orders VALUES (1, 'x')")
            shop.run("INSERT INTO other VALUES (1, 'a cut')")
            consume(pipeline)
        with shop.opened(*LISTED) as pipeline:
            pipeline.source_setup().set_up()
            assert stale(pipeline, shop) == []
            xa.commit()
            assert stale(pipeline, shop) == ["orders"]


def test_what_was_prepared_before_the_stream_and_rolled_back_stops_nothing(shop: MysqlShop) -> None:
    with session(shop) as xa, shop.opened(*LISTED) as pipeline:
        xa.prepare("INSERT INTO orders VALUES (1, 'x')")
        pipeline.source_setup().set_up()
        xa.roll_back()
        shop.run("INSERT INTO orders VALUES (2, 'after')")
        assert stale(pipeline, shop) == []
        assert [event["id"] for event in events_of(pipeline, shop.name("orders"))] == [2]


def test_a_commit_in_one_phase_is_read_like_any_other(shop: MysqlShop) -> None:
    with session(shop) as xa, shop.opened(*LISTED) as pipeline:
        pipeline.source_setup().set_up()
        xa.commit_in_one_phase("INSERT INTO orders VALUES (1, 'x')")
        shop.run("INSERT INTO orders VALUES (2, 'after')")
        assert read_stream(pipeline).rows(shop.name("orders")).column("id").to_pylist() == [1, 2]
        assert stale(pipeline, shop) == []
