"""LOAD DATA that the log has as text and blocks of its file, without rows, makes the table that it fills stale."""

from pathlib import Path

import pytest

from cdc_pipeline.metadata_store.states import TableState
from tests.support.event_files import events_of
from tests.support.mariadb import BinlogServerOfTests, fresh_mysql_database, run_mysql
from tests.support.mysql_source import MysqlShop, read_stream
from tests.support.pipelines import consume

AS_TEXT = "SET SESSION binlog_format = 'STATEMENT'"
SEVERAL_BLOCKS = 300_000


@pytest.fixture
def shop(binlog_server: BinlogServerOfTests, store_url: str, tmp_path: Path) -> MysqlShop:
    shop = MysqlShop(folder=tmp_path, url=binlog_server.url, database=binlog_server.database, store_url=store_url)
    for table in ("orders", "other", "unlisted"):
        shop.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, note LONGTEXT)")
    return shop


def load(shop: MysqlShop, table: str, text: str = "1\ta\n2\tb\n") -> str:
    """The statement that loads a new file into the table."""
    file = shop.folder / "rows's.txt"
    file.write_text(text)
    return f"LOAD DATA LOCAL INFILE '{str(file).replace(chr(39), 2 * chr(39))}' INTO TABLE {table}"


@pytest.mark.parametrize("length", [1, SEVERAL_BLOCKS])
def test_a_table_that_was_loaded_as_text_becomes_stale_and_no_other(shop: MysqlShop, length: int) -> None:
    with shop.opened("orders", "other") as pipeline:
        pipeline.source_setup().set_up()
        shop.run(AS_TEXT, load(shop, "orders", f"1\t{length * 'x'}\n"))
        shop.run("INSERT INTO other VALUES (1, 'after')")
        consume(pipeline)
        found = {name: pipeline.store.tables.table(shop.name(name)) for name in ("orders", "other")}
        assert found["orders"].state is TableState.STALE
        assert found["other"].state is not TableState.STALE
        assert [event["id"] for event in events_of(pipeline, shop.name("other"))] == [1]


def test_a_table_of_another_database_that_was_loaded_as_text_becomes_stale(shop: MysqlShop) -> None:
    with fresh_mysql_database(shop.url) as elsewhere, shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        run_mysql(shop.url, AS_TEXT, load(shop, f"{shop.database}.orders"), database=elsewhere)
        consume(pipeline)
        assert pipeline.store.tables.table(shop.name("orders")).state is TableState.STALE


def test_what_is_loaded_as_rows_or_elsewhere_is_read_on(shop: MysqlShop) -> None:
    with shop.opened("orders", "other") as pipeline:
        pipeline.source_setup().set_up()
        shop.run(AS_TEXT, load(shop, "unlisted", f"1\t{SEVERAL_BLOCKS * 'x'}\n"))
        shop.run(load(shop, "orders"))
        found = read_stream(pipeline)
    assert found.rows(shop.name("orders")).column("id").to_pylist() == [1, 2]
