"""A time of the far future, which any session of MariaDB and MySQL can give its transactions."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc_pipeline.record import COMMIT_TIME
from tests.support.command_line import query
from tests.support.event_files import events_of
from tests.support.mariadb import fresh_mysql_database, started_mariadb
from tests.support.mysql8 import started_mysql
from tests.support.mysql_source import MysqlShop
from tests.support.pipelines import consume

YEAR_2038 = "SET timestamp = 2147483000"


@pytest.mark.parametrize("started", [started_mariadb, started_mysql])
def test_a_time_that_a_session_set_spoils_no_label(
    started: Callable[[], AbstractContextManager[str]], store_url: str, tmp_path: Path
) -> None:
    """In a server of its own: other tests read the log of the server that they share."""
    with started() as url, fresh_mysql_database(url) as name:
        shop = MysqlShop(folder=tmp_path, url=url, database=name, store_url=store_url)
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        with shop.opened("orders") as pipeline:
            pipeline.source_setup().set_up()
            shop.run(YEAR_2038, "INSERT INTO orders VALUES (1)")
            consume(pipeline)
            shop.run("INSERT INTO orders VALUES (2)")
            consume(pipeline)
            times = [event[COMMIT_TIME].year for event in events_of(pipeline, shop.name("orders"))]
    assert (times[0], len(times)) == (2038, 2)
    soon = datetime.now(UTC) + timedelta(hours=2)
    assert [start < soon for (start,) in query(store_url, "SELECT label_start FROM cdc.slice")] == [True, True]
