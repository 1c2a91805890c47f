"""Transactions that were rolled back and that the log has all the same leave nothing in the lake."""

from collections.abc import Sequence
from contextlib import closing

import pytest

from cdc_pipeline.metadata_store.states import TableState
from tests.support.event_files import events_of
from tests.support.mariadb import connected
from tests.support.mysql_source import MysqlShop, read_stream, shown, states
from tests.support.pipelines import consume

INSERT, UPDATE = "INSERT INTO orders VALUES (1, 'rolled back')", "UPDATE orders SET note = 'rolled back'"
TEMPORARY = "CREATE TEMPORARY TABLE made (a INT)"


@pytest.mark.parametrize(
    "statements",
    [
        [INSERT, TEMPORARY, "ROLLBACK"],
        [TEMPORARY, UPDATE, "ROLLBACK"],
        [INSERT, "CREATE TEMPORARY TABLE made SELECT * FROM orders", "DELETE FROM orders", "ROLLBACK"],
        [INSERT, "DROP TEMPORARY TABLE IF EXISTS made", "ROLLBACK"],
        [INSERT, TEMPORARY],
        ["SET SESSION binlog_format = 'MIXED'", "INSERT INTO orders VALUES (1, UUID())", TEMPORARY, "ROLLBACK"],
        ["COMMIT", "XA START 'rolled back'", INSERT, TEMPORARY, "XA END 'rolled back'", "XA ROLLBACK 'rolled back'"],
    ],
)
def test_a_transaction_that_was_rolled_back_changes_nothing(shop: MysqlShop, statements: Sequence[str]) -> None:
    """MariaDB logs it if it made or dropped a temporary table."""
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(50))")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (7, 'before')")
        with closing(connected(shop.url, shop.database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        shop.run("INSERT INTO orders VALUES (8, 'after')")
        found = shown(read_stream(pipeline), "id", "note")
        assert found == [("i", 7, "before"), ("i", 8, "after")]
        assert shop.run("SELECT * FROM orders") == [(7, "before"), (8, "after")]


def test_a_transaction_that_is_too_long_for_one_batch_stops_its_tables_if_it_is_rolled_back(
    mariadb_shop: MysqlShop,
) -> None:
    shop = mariadb_shop
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
    with shop.opened("orders", "other") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("BEGIN", "INSERT INTO orders SELECT seq FROM seq_1_to_30000", TEMPORARY, "ROLLBACK")
        shop.run("INSERT INTO other VALUES (1)")
        consume(pipeline)
        assert states(pipeline, shop, "orders", "other") == [TableState.STALE, TableState.REGISTERED]
        assert events_of(pipeline, shop.name("orders")) == []
