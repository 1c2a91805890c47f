"""A log that began again is noticed, also where it has passed the numbers that are registered."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import SourceGap
from cdc_pipeline.metadata_store.states import TableState
from tests.support.event_files import events_of
from tests.support.eventually import eventually
from tests.support.mariadb import fresh_mysql_database, is_mariadb, reset_log, started_mariadb
from tests.support.mysql8 import started_mysql
from tests.support.mysql_source import MysqlShop, states
from tests.support.pipelines import consume

ANOTHER_TIME = "SET timestamp = 1700000000"


@pytest.fixture(params=[started_mariadb, started_mysql])
def own(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Iterator[MysqlShop]:
    """A server of the test alone, whose log it changes, with a table."""
    started: Callable[[], AbstractContextManager[str]] = request.param
    with started() as url, fresh_mysql_database(url) as name:
        shop = MysqlShop(folder=tmp_path, url=url, database=name, store_url=store_url)
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        yield shop


def ids(pipeline: Any, shop: MysqlShop) -> list[int]:
    return [event["id"] for event in events_of(pipeline, shop.name("orders"))]


def test_a_log_that_began_again_and_has_passed_the_registered_number_stops_the_stream(own: MysqlShop) -> None:
    with own.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        own.run("INSERT INTO orders VALUES (1)")
        consume(pipeline)
        reset_log(own.url)
        for number in range(100, 140):
            own.run(ANOTHER_TIME, f"INSERT INTO orders VALUES ({number})")
        with pytest.raises(SourceGap, match="another transaction of the number"):
            consume(pipeline)
        assert ids(pipeline, own) == [1]
        pipeline.source_setup().begin_stream_again()
        consume(pipeline)
        assert states(pipeline, own, "orders") == [TableState.STALE]


def test_a_stream_that_began_again_at_the_same_number_of_another_log_goes_on(own: MysqlShop) -> None:
    with own.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        consume(pipeline)
        last = _last_number(own)
        reset_log(own.url)
        for number in range(last):
            own.run(ANOTHER_TIME, f"INSERT INTO orders VALUES ({number})")
        assert _last_number(own) == last
        pipeline.source_setup().begin_stream_again()
        consume(pipeline)
        assert states(pipeline, own, "orders") == [TableState.STALE]


def test_a_log_whose_read_files_are_deleted_is_read_on(own: MysqlShop) -> None:
    with own.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        consume(pipeline)
        own.run("FLUSH BINARY LOGS")

        def is_purged() -> bool:
            """The server keeps a file a little longer, until the engine has noted its end."""
            own.run("PURGE BINARY LOGS TO 'binlog.000002'")
            return bool(own.run("SHOW BINARY LOGS")[0][0] == "binlog.000002")

        assert eventually(is_purged)
        own.run("INSERT INTO orders VALUES (1)")
        consume(pipeline)
        assert ids(pipeline, own) == [1]


def _last_number(shop: MysqlShop) -> int:
    variable = "@@gtid_binlog_pos" if is_mariadb(shop.url) else "@@GLOBAL.gtid_executed"
    return int(str(shop.run(f"SELECT {variable}")[0][0]).rpartition("-")[2])
