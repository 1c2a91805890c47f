"""Statements that MariaDB and MySQL log as text are read as the server read them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.record import OPERATION
from tests.support.event_files import events_of
from tests.support.mariadb import connected, fresh_mysql_database, started_mariadb
from tests.support.mysql8 import started_mysql
from tests.support.mysql_source import MysqlShop, states
from tests.support.pipelines import consume


@pytest.mark.parametrize(
    ("table", "charset"), [("a#b", "utf8mb4"), ("it's -- mine", "utf8mb4"), ("bücher", "latin1"), ("表", "gbk")]
)
def test_a_truncate_empties_its_table_whatever_its_name_and_the_clients_character_set(
    shop: MysqlShop, table: str, charset: str
) -> None:
    shop.run(f"CREATE TABLE `{table}` (id INT PRIMARY KEY)")
    with shop.opened(table) as pipeline:
        pipeline.source_setup().set_up()
        shop.run(f"INSERT INTO `{table}` VALUES (1)")
        with closing(connected(shop.url, shop.database)) as connection, connection.cursor() as cursor:
            connection.set_character_set(charset)
            cursor.execute(f"TRUNCATE TABLE `{table}`")
        shop.run(f"INSERT INTO `{table}` VALUES (2)")
        consume(pipeline)
        assert sorted(event[OPERATION] for event in events_of(pipeline, shop.name(table))) == ["i", "i", "t"]
        assert states(pipeline, shop, table) == [TableState.REGISTERED]


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TEMPORARY TABLE orders (id INT)", "TRUNCATE TABLE orders", "DROP TEMPORARY TABLE orders"],
        ["CALL empties()"],
    ],
)
def test_a_truncate_that_may_be_of_a_temporary_table_empties_nothing_and_stops_that_table(
    shop: MysqlShop, statements: Sequence[str]
) -> None:
    """Both have the same event: a call of a procedure marks all its statements if one names a temporary table."""
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
    shop.run(
        "CREATE PROCEDURE empties() BEGIN CREATE TEMPORARY TABLE made (id INT); INSERT INTO made VALUES (1);"
        " TRUNCATE TABLE orders; END"
    )
    with shop.opened("orders", "other") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1)")
        shop.run("SET SESSION binlog_format = 'STATEMENT'", "SET SESSION autocommit = 1", *statements)
        shop.run("INSERT INTO other VALUES (1)")
        consume(pipeline)
        assert states(pipeline, shop, "orders", "other") == [TableState.STALE, TableState.REGISTERED]
        assert "t" not in [event[OPERATION] for event in events_of(pipeline, shop.name("orders"))]


@pytest.mark.parametrize(("started", "call"), [(started_mariadb, "SET @x = put(1)"), (started_mysql, "SELECT put(1)")])
def test_rows_that_a_stored_function_writes_without_events_stop_every_table(
    started: Callable[[], AbstractContextManager[str]], call: str, store_url: str, tmp_path: Path
) -> None:
    """The log has the call of the function alone, so it may have changed tables of other tests, too: own servers."""
    with started() as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        shop.run(
            "CREATE FUNCTION put(x INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
            " BEGIN INSERT INTO orders VALUES (x); RETURN 1; END"
        )
        with shop.opened("orders") as pipeline:
            pipeline.source_setup().set_up()
            shop.run("SET SESSION binlog_format = 'STATEMENT'", call)
            consume(pipeline)
            assert states(pipeline, shop, "orders") == [TableState.STALE]


def test_a_server_that_takes_names_in_any_case_truncates_and_renames_them_in_the_lake_too(
    store_url: str, tmp_path: Path
) -> None:
    """MariaDB alone: MySQL has such names only if its data were created so."""
    with started_mariadb("--lower-case-table-names=1") as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
        with shop.opened("orders", "other") as pipeline:
            pipeline.source_setup().set_up()
            shop.run("INSERT INTO orders VALUES (1)")
            shop.run("TRUNCATE TABLE ORDERS")
            shop.run(f"RENAME TABLE {database.upper()}.Other TO gone", "CREATE TABLE other (id INT PRIMARY KEY)")
            consume(pipeline)
            assert sorted(event[OPERATION] for event in events_of(pipeline, shop.name("orders"))) == ["i", "t"]
            assert states(pipeline, shop, "orders", "other") == [TableState.REGISTERED, TableState.STALE]
