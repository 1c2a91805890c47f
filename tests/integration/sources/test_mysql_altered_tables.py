"""What the stream of MariaDB and MySQL does with tables that are altered, and with rows that are not logged as rows."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdc_pipeline.errors import SnapshotError, SourceError, StreamMoved
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.sources.mysql.held_snapshot import lock_definition
from cdc_pipeline.sources.mysql.table_copy import MysqlCopy
from tests.support.event_files import events_of
from tests.support.eventually import eventually
from tests.support.mariadb import is_mariadb, is_older
from tests.support.mysql_source import MysqlShop, read_copy, read_stream, shown, states
from tests.support.pipelines import consume

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT, amount INT DEFAULT 7)"


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        (["ALTER TABLE orders ADD COLUMN more TEXT"], ("id", "note", "amount", "more")),
        (["ALTER TABLE orders DROP COLUMN note"], ("id", "amount")),
        (["ALTER TABLE orders ADD INDEX (amount)"], ("id", "note", "amount")),
        (["ALTER TABLE orders ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8"], ("id", "note", "amount")),
        (
            ["ALTER TABLE orders DEFAULT CHARSET latin1 MAX_ROWS=9 MIN_ROWS=1 AVG_ROW_LENGTH=9 CHECKSUM=1 PACK_KEYS=1"],
            ("id", "note", "amount"),
        ),
        (
            ["SET SESSION sql_mode = ''", "ALTER TABLE orders MODIFY id INT NOT NULL, ADD COLUMN more TEXT"],
            ("id", "note", "amount", "more"),
        ),
    ],
)
def test_a_change_of_columns_is_followed(shop: MysqlShop, changes: Sequence[str], columns: tuple[str, ...]) -> None:
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'before', 1)")
        shop.run(*changes)
        shop.run("INSERT INTO orders (id) VALUES (2)")
        consume(pipeline)
        events = events_of(pipeline, shop.name("orders"))
        assert [event["id"] for event in events] == [1, 2]
        schema = pipeline.registered_stream().tables()[shop.name("orders")].schema
        assert schema is not None
        assert schema.names == columns
        assert states(pipeline, shop, "orders") != [TableState.STALE]


@pytest.mark.parametrize(
    "changes",
    [
        ["ALTER TABLE orders ADD COLUMN more INT DEFAULT 3"],
        ["ALTER TABLE orders CHANGE note remark TEXT"],
        ["ALTER TABLE orders ADD COLUMN more INT DEFAULT 3", "ALTER TABLE orders ALTER more SET DEFAULT NULL"],
        ["ALTER TABLE orders DROP COLUMN note", "ALTER TABLE orders ADD COLUMN note TEXT AFTER id"],
        [
            "ALTER TABLE orders ADD more TEXT",
            "ALTER TABLE orders RENAME COLUMN more TO note, RENAME COLUMN note TO more",
        ],
        ["ALTER TABLE orders DROP note, ADD note TEXT, ADD more INT"],
        ["""ALTER TABLE orders COMMENT="it's", DROP note, ADD note TEXT AFTER id, COMMENT='x'"""],
        ["SET SESSION sql_mode = ''", "ALTER TABLE orders MODIFY note TEXT NOT NULL"],
        ["SET SESSION sql_mode = ''", "ALTER TABLE orders MODIFY note TEXT NOT NULL, ADD COLUMN more INT"],
        [
            "SET SESSION sql_mode = ''",
            "ALTER TABLE orders MODIFY note TEXT NOT NULL",
            "ALTER TABLE orders MODIFY note TEXT",
        ],
        [
            "SET SESSION sql_mode = ''",
            "ALTER TABLE orders CHANGE amount amount INT NOT NULL, ADD more INT",
            "ALTER TABLE orders MODIFY amount INT",
        ],
        [
            "SET SESSION sql_mode = ''",
            "ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (amount)",
            "ALTER TABLE orders DROP PRIMARY KEY, MODIFY amount INT DEFAULT 7, ADD PRIMARY KEY (id)",
        ],
        ["RENAME TABLE orders TO old", "CREATE TABLE orders LIKE old"],
        ["XA START 'x'", "INSERT INTO orders VALUES (8, 'x', 1)", "XA END 'x'", "XA PREPARE 'x'", "XA ROLLBACK 'x'"],
    ],
)
def test_a_change_that_the_log_does_not_show_stops_that_table_alone(shop: MysqlShop, changes: Sequence[str]) -> None:
    shop.run(ORDERS)
    shop.run("CREATE TABLE other (id INT PRIMARY KEY)")
    with shop.opened("orders", "other") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'before', 1)")
        shop.run(*changes)
        shop.run("INSERT INTO other VALUES (1)")
        consume(pipeline)
        assert states(pipeline, shop, "orders")[0] is TableState.STALE
        assert states(pipeline, shop, "other")[0] is not TableState.STALE
        assert [event["id"] for event in events_of(pipeline, shop.name("other"))] == [1]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER IGNORE TABLE orders ADD UNIQUE KEY (note)",
        "ALTER IGNORE TABLE orders ADD COLUMN more INT, ADD UNIQUE KEY (note)",
        "ALTER TABLE orders WAIT 5 DROP PARTITION p0",
        "ALTER TABLE orders NOWAIT TRUNCATE PARTITION p0",
    ],
)
def test_mariadbs_ways_to_delete_rows_by_alter_table_stop_that_table(mariadb_shop: MysqlShop, change: str) -> None:
    shop, parts = mariadb_shop, "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (100))"
    by_range = "" if "IGNORE" in change else f" PARTITION BY RANGE (id) {parts}"
    shop.run(f"CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20)){by_range}")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'a'), (2, 'a'), (20, 'b')")
        # NOWAIT fails beside the sessions of the set-up, which the server ends a moment after they were closed.
        shop.run("LOCK TABLES orders WRITE", change)
        shop.run("INSERT INTO orders (id, note) VALUES (30, 'c')")
        assert len(shop.run("SELECT id FROM orders")) < 4
        consume(pipeline)
        assert states(pipeline, shop, "orders") == [TableState.STALE]


def test_of_two_processes_that_find_a_new_column_the_later_one_reads_what_was_recorded(shop: MysqlShop) -> None:
    """Both would number it, each in its own way."""
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("ALTER TABLE orders ADD more TEXT")
        (early,) = pipeline.source.survey(pipeline.registered_stream()).tables
        shop.run("INSERT INTO orders (id) VALUES (1)")
        (late,) = pipeline.source.survey(pipeline.registered_stream()).tables
        registration = pipeline.consumer_runs().opening.tables
        registration.follow(late)
        with pytest.raises(StreamMoved):
            registration.follow(early)
        (again,) = pipeline.source.survey(pipeline.registered_stream()).tables
        assert again.schema == late.schema


def test_rows_that_are_logged_by_their_statement_stop_that_table_alone(shop: MysqlShop) -> None:
    """The name occurs here alone: an UPDATE may change a table of that name in any database of the shared server."""
    table = "changed_by_statement"
    shop.run(ORDERS.replace("orders", table))
    shop.run("CREATE TABLE other (id INT PRIMARY KEY)")
    with shop.opened(table, "other") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("SET SESSION binlog_format = 'STATEMENT'", f"UPDATE {table} SET amount = 9")
        shop.run("INSERT INTO other VALUES (1)")
        consume(pipeline)
        assert states(pipeline, shop, table)[0] is TableState.STALE
        assert states(pipeline, shop, "other")[0] is not TableState.STALE
        assert [event["id"] for event in events_of(pipeline, shop.name("other"))] == [1]


def test_invisible_columns_are_read_like_others(shop: MysqlShop) -> None:
    if is_older(shop.url, mysql=(8, 0, 23)):
        pytest.skip("MySQL has invisible columns from 8.0.23 on")
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY, hidden INT INVISIBLE DEFAULT 5, note TEXT)")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders (id, note) VALUES (1, 'a')", "UPDATE orders SET hidden = 6, note = 'b'")
        found = shown(read_stream(pipeline), "id", "hidden", "note")
        assert found == [("i", 1, 5, "a"), ("u", 1, 6, "b")]
        copied, _ = read_copy(pipeline, shop.name("orders"))
        assert copied.to_pylist() == [{"id": 1, "hidden": 6, "note": "b"}]


def test_a_unique_key_of_long_texts_leaves_a_table_as_it_is(mariadb_shop: MysqlShop) -> None:
    """MariaDB keeps hashes of the texts in a column that its log shows and its catalogue does not."""
    shop = mariadb_shop
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY, url VARCHAR(2000), note TEXT, UNIQUE (note))")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'a', 'x'), (2, 'b', 'y')")
        shop.run("ALTER TABLE orders ADD UNIQUE (url)")
        shop.run("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE orders SET note = 'z' WHERE id = 2")
        shop.run("DELETE FROM orders WHERE id = 1")
        consume(pipeline)
        assert states(pipeline, shop, "orders") == [TableState.REGISTERED]
        found = {(event["id"], event["url"], event["note"]) for event in events_of(pipeline, shop.name("orders"))}
        assert found == {(1, "a", "x"), (2, "b", "y"), (2, None, "z"), (1, None, None)}


def test_an_update_without_a_computed_column_that_may_have_changed_stops_that_table_alone(shop: MysqlShop) -> None:
    """With partial row images MariaDB leaves a virtual column out of updates that change it; MySQL does not."""
    shop.run("CREATE TABLE computed (id INT PRIMARY KEY, a INT, twice INT AS (a * 2) VIRTUAL, note TEXT)")
    shop.run("CREATE TABLE other (id INT PRIMARY KEY)")
    with shop.opened("computed", "other") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO computed (id, a) VALUES (1, 5)", "INSERT INTO other VALUES (1)")
        shop.run("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE computed SET a = 6")
        consume(pipeline)
        names = pipeline.registered_stream().tables()[shop.name("computed")].schema
        assert names is not None
        if is_mariadb(shop.url) and "twice" in names.names:
            assert states(pipeline, shop, "computed")[0] is TableState.STALE
        else:
            rows = events_of(pipeline, shop.name("computed"))
            assert [row.get("twice") for row in rows] == ([None, None] if is_mariadb(shop.url) else [10, 12])
        assert [event["id"] for event in events_of(pipeline, shop.name("other"))] == [1]


@pytest.mark.parametrize("change", ["DROP COLUMN note", "CHANGE note text VARCHAR(9)"])
def test_a_column_that_goes_before_its_rows_are_copied_fails_the_snapshot_by_name(shop: MysqlShop, change: str) -> None:
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(9))")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        schema = pipeline.registered_stream().tables()[shop.name("orders")].schema
        assert schema is not None
        with (
            pipeline.source.hold_position("test", name="orders") as held,
            pipeline.source.copy_at(held.exported) as copy,
        ):
            shop.run(f"ALTER TABLE orders {change}")
            with pytest.raises(SnapshotError, match=r"orders changed its columns .* it has no note"):
                list(copy.rows(shop.name("orders"), schema))


@pytest.mark.parametrize(
    "change",
    [
        "RENAME COLUMN note TO tag, RENAME COLUMN tag TO note",
        "DROP COLUMN tag, ADD COLUMN tag VARCHAR(9)",
        "ADD COLUMN more INT",
    ],
)
def test_a_table_that_is_altered_since_the_position_was_taken_is_refused_by_name(shop: MysqlShop, change: str) -> None:
    """An instant ALTER leaves the rows as they are, so the server itself would show them with the new columns."""
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(9), tag VARCHAR(9))")
    shop.run("INSERT INTO orders VALUES (1, 'a', 'b')")
    is_past = "SELECT create_time < now() FROM information_schema.tables WHERE table_schema = database()"
    assert eventually(lambda: shop.run(is_past)[0][0] == 1)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        known = pipeline.registered_stream().tables()[shop.name("orders")]
        assert known.schema is not None
        with (
            pipeline.source.hold_position("test", name="orders") as held,
            pipeline.source.copy_at(held.exported) as copy,
        ):
            assert copy.columns(known)
            list(copy.rows(known.name, known.schema))
        with (
            pipeline.source.hold_position("test", name="orders") as held,
            pipeline.source.copy_at(held.exported) as copy,
        ):
            shop.run(f"ALTER TABLE orders {change}")
            for read in (copy.columns, copy.description, lambda known: list(copy.rows(known.name, known.schema))):
                with pytest.raises(
                    (SnapshotError, SourceError), match=r"orders seems altered since|definition has changed"
                ):
                    read(known)


def test_a_table_of_which_the_held_snapshot_knows_no_definition_is_refused_by_name(shop: MysqlShop) -> None:
    """Its holder may be of another version, or of other settings."""
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE TABLE items (id INT PRIMARY KEY)")
    with shop.opened("orders") as pipeline, shop.opened("items") as holder:
        pipeline.source_setup().set_up()
        known = pipeline.registered_stream().tables()[shop.name("orders")]
        with (
            holder.source.hold_position("test", name="items") as held,
            pipeline.source.copy_at(held.exported) as copy,
            pytest.raises(SnapshotError, match=r"orders seems altered since .* run the same command again"),
        ):
            copy.columns(known)


def test_the_server_refuses_to_lock_a_table_that_was_truncated_behind_the_snapshot(shop: MysqlShop) -> None:
    """Its create time may have stayed, since that has seconds."""
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    with shop.opened("orders") as pipeline, pipeline.source.hold_position("test", name="orders") as held:
        shop.run("TRUNCATE TABLE orders")
        with pytest.raises(SourceError, match="definition has changed"):
            lock_definition(held.exported, shop.name("orders"))


def test_one_copy_compares_the_definition_of_a_table_once(shop: MysqlShop) -> None:
    """A table that was read cannot be altered before the snapshot ends. Its columns are read each time."""
    shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        known = pipeline.registered_stream().tables()[shop.name("orders")]
        with (
            pipeline.source.hold_position("test", name="orders") as held,
            pipeline.source.copy_at(held.exported) as copy,
        ):
            assert isinstance(copy, MysqlCopy)
            asked: list[str] = []
            counted = replace(copy, on_step=lambda name, moment: asked.append(f"{name} {moment}"))
            first, second = counted.columns(known), counted.columns(known)
    assert first == second
    assert asked.count("source.check before") == 3
