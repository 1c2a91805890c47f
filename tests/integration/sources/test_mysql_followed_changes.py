"""Which changes of MariaDB's and MySQL's tables the stream follows: one between two looks at the catalogue."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from pymysql.connections import Connection
from pymysql.err import IntegrityError

from cdc_pipeline.errors import TableStale
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.sources.known import PartitionProgress
from cdc_pipeline.sources.mysql.markers import MarkerTable
from cdc_pipeline.sources.mysql.session import FORMATS
from cdc_pipeline.sources.mysql.setup import plan_source
from cdc_pipeline.sources.mysql.shape import TableShape
from cdc_pipeline.wiring import Pipeline
from tests.support.event_files import events_of
from tests.support.mariadb import PASSWORD, USER, numbers
from tests.support.mysql_source import MysqlShop, first_place, opened_stream, read_stream, states
from tests.support.pipelines import consume

if TYPE_CHECKING:
    _Connection = Connection[Any]
else:
    _Connection = Connection

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT, amount INT DEFAULT 7)"
PARTS = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)"


@pytest.mark.parametrize(
    ("declared", "wider", "widest"),
    [
        ("VARCHAR(20)", "VARCHAR(30)", "VARCHAR(300)"),
        ("VARCHAR(20)", "TEXT", "LONGTEXT"),
        ("CHAR(20)", "VARCHAR(20)", "TEXT"),
        ("VARBINARY(20)", "VARBINARY(30)", "VARBINARY(300)"),
        ("ENUM('a')", "ENUM('a', 'b')", "ENUM('a', 'b', 'c')"),
        ("SET('a')", "SET('a', 'b')", "SET('a', 'b', 'c')"),
        ("VARCHAR(20) NOT NULL", "VARCHAR(20)", "VARCHAR(30) DEFAULT 'x'"),
    ],
)
def test_a_wider_type_is_followed_and_a_change_without_a_trace_behind_it_is_not(
    shop: MysqlShop, declared: str, wider: str, widest: str
) -> None:
    shop.run(f"CREATE TABLE orders (id INT PRIMARY KEY, note {declared}) {PARTS}")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'a')")
        for number, type_ in enumerate((wider, widest), 2):
            shop.run(f"ALTER TABLE orders MODIFY note {type_}", f"INSERT INTO orders VALUES ({number}, 'a')")
            consume(pipeline)
            assert states(pipeline, shop, "orders") == [TableState.REGISTERED]
        assert [event["id"] for event in events_of(pipeline, shop.name("orders"))] == [1, 2, 3]
        shop.run("ALTER TABLE orders DROP PARTITION p0")
        consume(pipeline)
        assert states(pipeline, shop, "orders") == [TableState.STALE]


def test_a_column_kept_as_text_that_is_dropped_is_followed(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with shop.opened("orders", orders={"as_text": ["amount"]}) as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'a', 1)", "ALTER TABLE orders DROP amount")
        shop.run("INSERT INTO orders VALUES (2, 'a')")
        consume(pipeline)
        assert states(pipeline, shop, "orders") == [TableState.REGISTERED]
        found = [(event["id"], event.get("amount")) for event in events_of(pipeline, shop.name("orders"))]
        assert found == [(1, "1"), (2, None)]


def test_an_alter_that_mariadb_logs_in_two_phases_is_one_change(mariadb_shop: MysqlShop) -> None:
    """One that fails is in the log, too."""
    shop = mariadb_shop
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'a', 1), (2, 'a', 1)")
        with pytest.raises(IntegrityError):
            shop.run("SET SESSION binlog_alter_two_phase = 1", "ALTER TABLE orders ADD more INT, ADD UNIQUE (amount)")
        shop.run("SET SESSION binlog_alter_two_phase = 1", "ALTER TABLE orders ADD COLUMN more INT")
        shop.run("INSERT INTO orders VALUES (3, 'a', 1, 1)")
        consume(pipeline)
        assert states(pipeline, shop, "orders") == [TableState.REGISTERED]
        found = [(event["id"], event.get("more")) for event in events_of(pipeline, shop.name("orders"))]
        assert found == [(1, None), (2, None), (3, 1)]


class Altering(_Connection):
    """A connection on which another session alters the table right after its columns were read."""

    shop: MysqlShop | None = None

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:  # noqa: FBT001, FBT002 - the driver's signature
        if self.shop is not None and "information_schema.statistics" in str(sql):
            shop, self.shop = self.shop, None
            shop.run("ALTER TABLE orders ADD COLUMN more INT")
        return super().query(sql, unbuffered)


def test_a_change_between_the_read_of_the_catalogue_and_of_the_logs_end_is_looked_at_again(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        markers = MarkerTable(database=shop.database, table="cdc_marker", pipeline=pipeline.settings.name)
        parts = urlsplit(shop.url)
        address: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "user": USER, "password": PASSWORD}
        with closing(Altering(**address, autocommit=True, init_command=FORMATS)) as connection:
            connection.shop = shop
            plan = plan_source(connection, markers, pipeline.settings.tables, pipeline.registered_stream().tables())
        assert plan.tables[0].schema.names == ("id", "note", "amount")
        assert plan.looked_at < plan.server.end


def read_batch(pipeline: Pipeline) -> Mapping[int, PartitionProgress]:
    """The place behind the last transaction that ends in the stream's first batch. The change found by it is recorded.

    It is where a reader begins after one that stopped there.
    """
    (orders, *_) = pipeline.source.survey(pipeline.registered_stream()).tables
    pipeline.consumer_runs().opening.tables.follow(orders)
    with opened_stream(pipeline, first_place(pipeline)) as stream:
        batch = stream.read(timedelta(seconds=9))
        assert batch is not None
        return stream.progress_at(int(batch.transactions.end_position[-1]))


def test_a_change_without_a_trace_after_one_that_was_followed_stops_the_table(shop: MysqlShop) -> None:
    """The catalogue then looks as the change that was followed left it."""
    shop.run(f"CREATE TABLE orders (id INT PRIMARY KEY, note TEXT) {PARTS}")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'gone'), (20, 'stays')", "ALTER TABLE orders ADD COLUMN more INT")
        place = read_batch(pipeline)
        shop.run("ALTER TABLE orders REBUILD PARTITION p0")
        with pytest.raises(TableStale, match="no longer shows"):
            read_stream(pipeline, place)


@pytest.mark.parametrize("change", ["DROP PARTITION p0", "TRUNCATE PARTITION p0"])
def test_a_partition_whose_rows_go_is_never_the_change_that_the_catalogue_shows(shop: MysqlShop, change: str) -> None:
    shop.run(f"CREATE TABLE orders (id INT PRIMARY KEY, note TEXT) {PARTS}")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'gone')", f"ALTER TABLE orders {change}")
        shop.run("SET sql_log_bin = 0", "ALTER TABLE orders ADD COLUMN more INT", "SET sql_log_bin = 1")
        consume(pipeline)
        assert states(pipeline, shop, "orders") == [TableState.STALE]


def test_a_change_without_a_trace_behind_one_that_is_registered_stops_the_table(shop: MysqlShop) -> None:
    """A reader that begins between the two does not take the second one for the one that the catalogue shows."""
    shop.run(f"CREATE TABLE orders (id INT PRIMARY KEY, note TEXT) {PARTS}", "CREATE TABLE other (id INT PRIMARY KEY)")
    with shop.opened("orders", "other") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'gone')", "ALTER TABLE orders ADD COLUMN more INT")
        longer_than_a_batch = "SELECT a.number * 1000 + b.number FROM numbers AS a, numbers AS b"
        shop.run(f"INSERT INTO other {numbers(1, 160)} {longer_than_a_batch}")
        shop.run("ALTER TABLE orders REBUILD PARTITION p0")
        place = read_batch(pipeline)
        with pytest.raises(TableStale, match="no longer shows"):
            read_stream(pipeline, place)


def test_a_column_that_is_added_again_while_rows_from_before_its_drop_may_come_stops_the_table(shop: MysqlShop) -> None:
    """Its rows look like theirs, and their column is another one."""
    shop.run(ORDERS, "CREATE TABLE other (id INT PRIMARY KEY)")
    with shop.opened("orders", "other") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'a', 1)", "ALTER TABLE orders DROP COLUMN amount")
        place = read_batch(pipeline)
        shop.run("ALTER TABLE orders ADD COLUMN amount INT", "INSERT INTO orders VALUES (2, 'a', 2)")
        survey = pipeline.source.survey(pipeline.registered_stream())
        assert list(survey.mendable) == [shop.name("orders")]
        assert read_stream(pipeline, place).events == []


@pytest.mark.parametrize("then", [("ADD COLUMN amount INT",), ("ADD COLUMN amount INT", "DROP COLUMN amount")])
def test_such_columns_that_an_older_version_has_recorded_stop_the_table_until_its_new_snapshot(
    shop: MysqlShop, then: tuple[str, ...]
) -> None:
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT, amount INT)")
    with shop.opened("orders") as pipeline:
        setup, name = pipeline.source_setup(), shop.name("orders")
        setup.set_up()
        shop.run("INSERT INTO orders VALUES (1, 'a', 1)", "ALTER TABLE orders DROP COLUMN amount")
        read_batch(pipeline)
        shop.run(*(f"ALTER TABLE orders {change}" for change in then))
        row = pipeline.store.tables.table(name)
        first, without = map(TableShape.from_json, row.shape or ())
        later = replace(first, generation=without.generation + 1, looked_at=without.generation + 1)
        again = later.numbered(without.numbers, without.highest)
        pipeline.store.tables.set_shapes(row.table_id, [shape.to_json() for shape in (first, without, again)])
        assert list(pipeline.source.survey(pipeline.registered_stream()).mendable) == [name]
        setup.set_up(begin_again=[name])
        survey = pipeline.source.survey(pipeline.registered_stream())
        assert (survey.stale, [len(table.description) for table in survey.tables]) == ({}, [1])


def test_a_column_that_is_added_again_behind_a_cut_is_another_one(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        for change in ("DROP COLUMN amount", "ADD COLUMN amount INT"):
            shop.run(
                "INSERT INTO orders (id, note) SELECT 1 + COUNT(*), 'a' FROM orders", f"ALTER TABLE orders {change}"
            )
            consume(pipeline)
        assert states(pipeline, shop, "orders") == [TableState.REGISTERED]
        (orders,) = pipeline.source.survey(pipeline.registered_stream()).tables
        assert orders.schema is not None
        assert [column.number for column in orders.schema.columns][:2] == [1, 2]
        assert (orders.schema.columns[2].number or 0) > 3
