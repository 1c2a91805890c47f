"""A server that begins or stops to write checksums is read on, without a row that is missing or cut."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from tests.support.event_files import events_of
from tests.support.mariadb import fresh_mysql_database, started_mariadb
from tests.support.mysql8 import started_mysql
from tests.support.mysql_source import MysqlShop
from tests.support.pipelines import consume

STATES = ("NONE", "CRC32", "NONE")


@pytest.mark.parametrize("started", [started_mariadb, started_mysql])
def test_each_file_of_the_log_is_read_with_its_checksums_or_without(
    started: Callable[[], AbstractContextManager[str]], store_url: str, tmp_path: Path
) -> None:
    """The rows are shorter than a checksum: one that is cut off although it is not there takes a whole row along."""
    with started() as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run("CREATE TABLE small (id SMALLINT PRIMARY KEY, v TINYINT NOT NULL)")
        written = list[int]()

        def write(state: str) -> None:
            shop.run(f"SET GLOBAL binlog_checksum = '{state}'")
            numbers = range(len(written), len(written) + 3)
            shop.run(f"INSERT INTO small VALUES {', '.join(f'({number}, 1)' for number in numbers)}")
            written.extend(numbers)

        with shop.opened("small") as pipeline:
            pipeline.source_setup().set_up()
            for state in STATES:
                write(state)
            consume(pipeline)
            assert sorted(event["id"] for event in events_of(pipeline, shop.name("small"))) == written
            with pipeline.consumer_runs().open() as consumer:
                for state in reversed(STATES):
                    write(state)
                    stream_to_slices_until_idle(consumer)
                write("CRC32")
                stream_to_slices_until_idle(consumer)
            for state in STATES:
                write(state)
                consume(pipeline)
            assert sorted(event["id"] for event in events_of(pipeline, shop.name("small"))) == written
