"""What a server does to every session on it: the pipeline's read all rows, for as long as they need."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from cdc_pipeline.errors import SourceAway, SourceError
from cdc_pipeline.sources.mysql.held_snapshot import query_snapshot
from tests.support.eventually import eventually
from tests.support.mariadb import connected, fresh_mysql_database, numbers, run_mysql, started_mariadb
from tests.support.mysql8 import started_mysql
from tests.support.mysql_source import (
    MysqlShop,
    documented_reader,
    first_place,
    opened_stream,
    read_copy,
    read_stream,
    shown,
)

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)"
ROWS = f"INSERT INTO orders {numbers(1, 1000)} SELECT number, 'x' FROM numbers"
OF_MARIADB = {"max_statement_time": 0.001, "idle_transaction_timeout": 1, "idle_readonly_transaction_timeout": 1}
OF_MYSQL = {"max_execution_time": 1}


def reader_of(shop: MysqlShop) -> str:
    """The user of `documented_reader`, as SQL names it."""
    return f"{shop.database.replace('shop', 'reader')}@'127.0.0.1'"


@pytest.mark.parametrize(
    ("started", "limits"), [(started_mariadb, OF_MARIADB), (started_mysql, OF_MYSQL)], ids=["mariadb", "mysql"]
)
def test_no_setting_of_the_server_ends_or_shortens_what_is_read(
    started: Callable[[], AbstractContextManager[str]], limits: Mapping[str, float], store_url: str, tmp_path: Path
) -> None:
    with started() as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run(ORDERS, ROWS)
        with shop.opened("orders") as pipeline:
            pipeline.source_setup().set_up()
            shop.run("UPDATE orders SET note = 'y' WHERE id < 3")
            run_mysql(
                url, "SET GLOBAL sql_select_limit = 1", *(f"SET GLOBAL {name} = {limits[name]}" for name in limits)
            )
            assert read_copy(pipeline, shop.name("orders"))[0].num_rows == 1000
            assert shown(read_stream(pipeline), "id") == [("u", 1), ("u", 2)]
            with pipeline.source.hold_position("test", name="a") as held:
                (block,) = query_snapshot(held.exported, f"SELECT {', '.join(f'0 + @@{name}' for name in limits)}")
        run_mysql(url, *(f"SET GLOBAL {name} = 0" for name in limits))
    assert [float(value.as_py()) for (value,) in block.columns] == [0] * len(limits)


def test_the_row_of_another_pipeline_that_begins_while_one_leaves_stays(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline, closing(connected(shop.url, shop.database)) as other:
        pipeline.source_setup().set_up()
        (table,) = pipeline.table_names()
        begin = "INSERT INTO cdc_marker VALUES ('another', '', 0, '')"
        with other.cursor() as cursor, ThreadPoolExecutor() as leavers:
            cursor.execute(begin)
            leaving = leavers.submit(lambda: pipeline.source.leave([table], whole=True))
            is_waiting = (
                "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock'"
            )
            assert eventually(lambda: bool(shop.run(is_waiting)))
            other.commit()
            assert leaving.result() == ()
        assert shop.run("SELECT pipeline FROM cdc_marker") == [("another",)]


def test_a_set_up_whose_table_another_pipeline_drops_as_it_leaves_can_be_run_again(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        (table,) = pipeline.table_names()
        shop.run("DELETE FROM cdc_marker")
        begun = pipeline.source.survey(pipeline.registered_stream())
        assert pipeline.source.leave([table], whole=True) == ()
        with pytest.raises(SourceError, match="run the same command again"):
            begun.set_up()
        pipeline.source.survey(pipeline.registered_stream()).set_up().check_ready()


@pytest.mark.parametrize(
    ("started", "setting"),
    [(started_mariadb, "read_only"), (started_mysql, "super_read_only")],
    ids=["mariadb", "mysql"],
)
def test_a_server_that_takes_no_writes_for_a_while_is_away_until_it_does(
    started: Callable[[], AbstractContextManager[str]], setting: str, store_url: str, tmp_path: Path
) -> None:
    with started() as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run(ORDERS)
        with documented_reader(shop) as reader, shop.opened("orders", source=reader) as pipeline:
            pipeline.source_setup().set_up()
            with opened_stream(pipeline, first_place(pipeline)) as stream:
                run_mysql(url, f"SET GLOBAL {setting} = 1")
                with pytest.raises(SourceAway, match="wait until the server takes writes"):
                    stream.send_marker("cut:here")
                run_mysql(url, f"SET GLOBAL {setting} = 0", "SET GLOBAL read_only = 0")
                stream.send_marker("cut:here")


@pytest.mark.parametrize("started", [started_mariadb, started_mysql], ids=["mariadb", "mysql"])
def test_a_marker_message_behind_a_lock_is_sent_when_the_lock_is_gone(
    started: Callable[[str], AbstractContextManager[str]], store_url: str, tmp_path: Path
) -> None:
    with started("--innodb-lock-wait-timeout=1") as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run(ORDERS)
        with shop.opened("orders") as pipeline, closing(connected(url, database)) as other:
            pipeline.source_setup().set_up()
            with opened_stream(pipeline, first_place(pipeline)) as stream:
                with other.cursor() as cursor:
                    cursor.execute("SELECT * FROM cdc_marker FOR UPDATE")
                with pytest.raises(SourceAway, match="end the transaction that holds the lock"):
                    stream.send_marker("cut:here")
                other.rollback()
                stream.send_marker("cut:here")


def test_a_wrong_password_is_away_until_it_is_corrected(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    wrong = {"url": shop.url.replace("of%20this", "of%20another")}
    with shop.opened("orders", source=wrong) as pipeline, pytest.raises(SourceAway, match="correct user and password"):
        pipeline.source_setup().set_up()


def test_a_password_may_have_any_character(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with documented_reader(shop) as reader:
        shop.run(f"ALTER USER {reader_of(shop)} IDENTIFIED BY 'p€ss é'")
        url = reader["url"].replace(urlsplit(reader["url"]).password or "", quote("p€ss é"))
        with shop.opened("orders", source={**reader, "url": url}) as pipeline:
            pipeline.source_setup().set_up()
            shop.run("INSERT INTO orders VALUES (1, 'x')")
            assert shown(read_stream(pipeline), "id") == [("i", 1)]
            assert read_copy(pipeline, shop.name("orders"))[0].num_rows == 1


def test_a_locked_account_is_away_until_it_is_unlocked(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with documented_reader(shop) as reader, shop.opened("orders", source=reader) as pipeline:
        shop.run(f"ALTER USER {reader_of(shop)} ACCOUNT LOCK")
        with pytest.raises(SourceAway, match="have an administrator unlock the account"):
            pipeline.source_setup().set_up()
        shop.run(f"ALTER USER {reader_of(shop)} ACCOUNT UNLOCK")
        pipeline.source_setup().set_up()
