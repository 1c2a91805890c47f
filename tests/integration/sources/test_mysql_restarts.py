"""A server that was started again, in order or after a crash, is read on: nothing is lost, nothing of others comes."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.metadata_store.states import TableState
from tests.support.event_files import events_of
from tests.support.mariadb import ServerProcess, fresh_mysql_database, mariadb_process
from tests.support.mysql8 import mysql_process
from tests.support.mysql_source import MysqlShop, states
from tests.support.pipelines import consume

OTHERS = ("a", "b", "c", "d", "e", "f", "g", "h")
END_BYTES = 31
"""The size of the event that ends a transaction in MariaDB's log."""


@contextmanager
def shop_on(server: ServerProcess, folder: Path, store_url: str) -> Iterator[MysqlShop]:
    with fresh_mysql_database(server.url) as database:
        yield MysqlShop(folder=folder, url=server.url, database=database, store_url=store_url)


def start_again(server: ServerProcess, how: signal.Signals = signal.SIGTERM) -> None:
    server.stop(how)
    server.start()


@pytest.mark.parametrize("started", [mariadb_process, mysql_process])
@pytest.mark.parametrize("before", ["INSERT INTO orders VALUES (2, 'ours')", "UPDATE cdc_marker SET sent = sent + 1"])
def test_rows_of_an_unlisted_table_never_count_as_rows_of_a_listed_one(
    started: Callable[[], AbstractContextManager[ServerProcess]], before: str, store_url: str, tmp_path: Path
) -> None:
    """A server numbers its tables anew when it is started: another table gets the number of the one written before."""
    with started() as server, shop_on(server, tmp_path, store_url) as shop:
        for name in ("orders", *OTHERS):
            shop.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, note TEXT)")
        with shop.opened("orders") as pipeline:
            pipeline.source_setup().set_up()
            start_again(server)
            shop.run("INSERT INTO orders VALUES (1, 'ours')")
            consume(pipeline)
            shop.run(before)
            start_again(server)
            for name in OTHERS:
                shop.run(f"INSERT INTO {name} VALUES (9, 'of another table')")
            consume(pipeline)
            assert {event["note"] for event in events_of(pipeline, shop.name("orders"))} == {"ours"}
            assert states(pipeline, shop, "orders") == [TableState.REGISTERED]


def test_a_server_with_a_version_of_its_own_is_read(store_url: str, tmp_path: Path) -> None:
    with mariadb_process("--version=10.11_patched-MariaDB") as server, shop_on(server, tmp_path, store_url) as shop:
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        with shop.opened("orders") as pipeline:
            pipeline.source_setup().set_up()
            shop.run("INSERT INTO orders VALUES (1)")
            consume(pipeline)
            assert [event["id"] for event in events_of(pipeline, shop.name("orders"))] == [1]


def test_a_transaction_that_a_crash_left_without_its_end_is_left_out(store_url: str, tmp_path: Path) -> None:
    """MariaDB gives its number to the next one. The row is deleted here as the engine's recovery would undo it."""
    with (
        mariadb_process("--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1") as server,
        shop_on(server, tmp_path, store_url) as shop,
    ):
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        with shop.opened("orders") as pipeline:
            pipeline.source_setup().set_up()
            shop.run("INSERT INTO orders VALUES (1)")
            shop.run("INSERT INTO orders VALUES (2)")
            server.stop(signal.SIGKILL)
            log = max(server.data.glob("binlog.0*"))
            os.truncate(log, log.stat().st_size - END_BYTES)
            server.start()
            shop.run("SET SESSION sql_log_bin = 0", "DELETE FROM orders WHERE id = 2")
            shop.run("INSERT INTO orders VALUES (3)")
            consume(pipeline)
            assert [event["id"] for event in events_of(pipeline, shop.name("orders"))] == [1, 3]


def test_a_marker_message_that_cannot_be_read_stops_the_stream_with_a_typed_error(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("ALTER TABLE cdc_marker ADD added VARCHAR(9) CHARACTER SET latin1 NOT NULL DEFAULT 0x81")
        with pytest.raises(DecodeError, match="the columns that cdc setup-source gave it"):
            consume(pipeline)
