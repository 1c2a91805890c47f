"""Transactions whose GTIDs have tags, on a server that has them."""

import pytest

from tests.support.event_files import events_of
from tests.support.mariadb import is_mariadb, is_older
from tests.support.mysql_source import MysqlShop, read_copy
from tests.support.pipelines import consume

TAGS = ("", ":backfill", ":backfill", ":_repair_9", "")


def insert(shop: MysqlShop, first: int) -> None:
    """One transaction for each tag."""
    for id_, tag in enumerate(TAGS, first):
        shop.run(f"SET gtid_next = 'AUTOMATIC{tag}'", f"INSERT INTO orders VALUES ({id_})")


def test_transactions_with_tags_are_read_in_the_order_of_the_log(shop: MysqlShop) -> None:
    if is_mariadb(shop.url) or is_older(shop.url, mysql=(8, 3)):
        pytest.skip("the server has no tags")
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
    insert(shop, 0)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        insert(shop, 10)
        consume(pipeline)
    insert(shop, 20)
    with shop.opened("orders") as pipeline:
        consume(pipeline)
        found = events_of(pipeline, shop.name("orders"))
        copied, _ = read_copy(pipeline, shop.name("orders"))
    assert [event["id"] for event in found] == [*range(10, 15), *range(20, 25)]
    assert sorted(copied["id"].to_pylist()) == [*range(5), *range(10, 15), *range(20, 25)]
