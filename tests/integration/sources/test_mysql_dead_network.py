"""A network that drops everything is noticed in time on both sides: by the reader, and by the server."""

import time
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from cdc_pipeline.errors import SourceAway
from tests.support.eventually import eventually
from tests.support.mariadb import fresh_mysql_database
from tests.support.mysql_source import MysqlShop, first_place, opened_stream
from tests.support.tcp_proxy import Proxy, proxied

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY)"
IN_TIME_SECONDS = 30
"""The documented 25, and what a busy machine needs."""


def through(proxy: Proxy, shop: MysqlShop) -> dict[str, str]:
    return {"url": shop.url.replace(f":{urlsplit(shop.url).port}", f":{proxy.port}")}


def test_a_reader_of_a_dead_network_is_away_and_closed_in_time(mariadb_shop: MysqlShop) -> None:
    mariadb_shop.run(ORDERS)
    with (
        proxied(urlsplit(mariadb_shop.url).port or 0) as proxy,
        mariadb_shop.opened("orders", source=through(proxy, mariadb_shop)) as pipeline,
    ):
        pipeline.source_setup().set_up()
        with opened_stream(pipeline, first_place(pipeline)) as stream:
            proxy.silence()
            begun = time.monotonic()
            with pytest.raises(SourceAway):
                stream.read(timedelta(minutes=1))
        assert time.monotonic() - begun < IN_TIME_SECONDS


@pytest.mark.nightly
def test_a_server_frees_the_lock_of_a_dead_reader_and_keeps_that_of_one_that_reads(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with (
        fresh_mysql_database(shop.url) as other,
        proxied(urlsplit(shop.url).port or 0) as proxy,
        shop.opened("orders", source=through(proxy, shop)) as pipeline,
        MysqlShop(folder=shop.folder, url=shop.url, database=other, store_url=shop.store_url).opened("a") as living,
    ):
        shop.run(f"CREATE TABLE {other}.a (id INT PRIMARY KEY)")
        for each in (pipeline, living):
            each.source_setup().set_up()
        with (
            opened_stream(living, first_place(living)) as reader,
            opened_stream(pipeline, first_place(pipeline)) as stream,
        ):
            proxy.silence()
            begun = time.monotonic()
            with pytest.raises(SourceAway):
                stream.send_marker("cut:unheard")
            assert time.monotonic() - begun < IN_TIME_SECONDS

            def is_free() -> bool:
                reader.read(timedelta(seconds=1))
                return shop.run(f"SELECT IS_USED_LOCK('cdc:{shop.database}')") == [(None,)]

            assert eventually(is_free, seconds=330)
            reader.send_marker("cut:heard")
