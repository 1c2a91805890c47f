"""What the stream of MariaDB and of MySQL does with changes of rows and of tables, and when its log cannot be read."""

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from cdc_pipeline.errors import LeaseBusy, SettingsError, SourceBusy, SourceError, SourceGap
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.record import ABSENT, OLD_ID_PREFIX
from cdc_pipeline.sources.mysql.held_snapshot import query_snapshot
from tests.support.eventually import eventually
from tests.support.mariadb import (
    connected,
    fresh_mysql_database,
    is_mariadb,
    numbers,
    reset_log,
    run_mysql,
    started_mariadb,
)
from tests.support.mysql8 import started_mysql
from tests.support.mysql_source import MysqlShop, documented_reader, read_copy, read_stream, shown, states
from tests.support.pipelines import consume

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT, amount INT DEFAULT 7)"


def test_a_key_change_is_a_delete_and_a_move_and_a_truncate_has_its_place(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO orders VALUES (1, 'a', 1)", "UPDATE orders SET id = 2 WHERE id = 1")
        shop.run("TRUNCATE TABLE orders")
        shop.run("INSERT INTO orders (id) VALUES (3)")
        found = shown(read_stream(pipeline), "id", "note", OLD_ID_PREFIX + "id")
    assert found == [
        ("i", 1, "a", None),
        ("d", 1, None, None),
        ("m", 2, "a", 1),
        ("t", None, None, None),
        ("i", 3, None, None),
    ]


def test_a_table_without_key_has_whole_rows(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE bag (a INT, b TEXT)")
    with shop.opened("bag") as pipeline:
        pipeline.source_setup().set_up()
        shop.run("INSERT INTO bag VALUES (1, 'x'), (1, 'x')", "UPDATE bag SET a = 2 LIMIT 1", "DELETE FROM bag LIMIT 1")
        found = shown(read_stream(pipeline), "a", "b")
    assert found == [("i", 1, "x"), ("i", 1, "x"), ("d", 1, "x"), ("i", 2, "x"), ("d", 2, "x")]


def test_a_keyless_table_of_one_letter_is_read_beside_an_unlisted_one_whose_columns_cannot_be_read(
    mariadb_shop: MysqlShop,
) -> None:
    """The unlisted table has the name of a listed one, in the database of the table of marker messages."""
    other = f"{mariadb_shop.database}_other"
    mariadb_shop.run("CREATE TABLE bag (a INT)", f"CREATE DATABASE {other}")
    mariadb_shop.run(f"CREATE TABLE {other}.bag (a INT, packed VARCHAR(100) COMPRESSED)")
    with mariadb_shop.opened("bag", source={"marker_table": f"{other}.cdc_marker"}) as pipeline:
        pipeline.source_setup().set_up()
        mariadb_shop.run(f"INSERT INTO {other}.bag VALUES (1, 'x')", "INSERT INTO bag VALUES (2)", "DELETE FROM bag")
        found = shown(read_stream(pipeline), "a")
    mariadb_shop.run(f"DROP DATABASE {other}")
    assert found == [("i", 2), ("d", 2)]


def test_minimal_row_images_leave_columns_absent(
    shop: MysqlShop,
) -> None:
    shop.run(ORDERS)
    minimal = "SET SESSION binlog_row_image = 'MINIMAL'"
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        shop.run(minimal, "INSERT INTO orders VALUES (1, 'a', 1)", "UPDATE orders SET amount = 5", "DELETE FROM orders")
        found = shown(read_stream(pipeline), "id", "amount", ABSENT)
        assert found == [("i", 1, 1, None), ("u", 1, 5, ["note"]), ("d", 1, None, None)]


def test_what_was_rolled_back_does_not_come(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        with closing(connected(shop.url, shop.database)) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (1, 'never', 1)")
            connection.rollback()
            cursor.execute("INSERT INTO orders VALUES (2, 'a', 1)")
            cursor.execute("SAVEPOINT here")
            cursor.execute("INSERT INTO orders VALUES (3, 'never', 1)")
            cursor.execute("ROLLBACK TO here")
            connection.commit()
        assert shown(read_stream(pipeline), "id") == [("i", 2)]


def test_a_table_that_would_lack_changes_is_refused_by_name_and_the_others_are_ready(shop: MysqlShop) -> None:
    shop.run("CREATE TABLE parent (id INT PRIMARY KEY)")
    shop.run("CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)")
    shop.run("CREATE TABLE isam (id INT PRIMARY KEY) ENGINE = MyISAM")
    shop.run("CREATE TABLE swedish (id INT PRIMARY KEY, t VARCHAR(9) CHARACTER SET swe7)")
    shop.run("CREATE TABLE bytes (id INT PRIMARY KEY, e ENUM('a', 'b') CHARACTER SET binary)")
    long = "表" * 23
    shop.run(f"CREATE TABLE {long} (id INT PRIMARY KEY)")
    expected = {"child": "CASCADE", "isam": "InnoDB", "swedish": "swe7", "bytes": "set binary", "gone": "has no table"}
    expected[long] = "cannot be a folder"
    if is_mariadb(shop.url):
        shop.run("CREATE TABLE odd (id INT PRIMARY KEY, u UUID)")
        shop.run("CREATE TABLE short (id INT PRIMARY KEY, y YEAR(2))")
        expected |= {"odd": "of the type uuid", "short": "of the type year(2)"}
    with shop.opened("parent", *expected) as pipeline:
        found = pipeline.source_setup().set_up()
    assert found.tables == (shop.name("parent"),)
    words = {name.table: str(error) for name, error in found.refused.items()}
    assert words.keys() == expected.keys()
    for table, part in expected.items():
        assert part in words[table]


def test_times_in_the_form_before_mariadb_10_1_are_refused_until_they_are_rewritten(
    store_url: str, tmp_path: Path
) -> None:
    with started_mariadb("--mysql56-temporal-format=OFF") as url, fresh_mysql_database(url) as database:
        own = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        types = {"old": "DATETIME(3)", "older": "TIME", "oldest": "TIMESTAMP NULL"}
        for table, type_ in types.items():
            own.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, moment {type_})")
        own.run(ORDERS)
        with own.opened("orders", *types) as pipeline:
            found = pipeline.source_setup().set_up()
            assert found.tables == (own.name("orders"),)
            assert found.refused.keys() == set(map(own.name, types))
            assert all("ALTER TABLE … FORCE" in str(error) for error in found.refused.values())
            own.run("SET GLOBAL mysql56_temporal_format = ON", *(f"ALTER TABLE {table} FORCE" for table in types))
            assert pipeline.source_setup().set_up().refused == {}
            own.run("INSERT INTO older VALUES (1, '-01:02:03')")
            assert shown(read_stream(pipeline), "moment") == [("i", "-01:02:03")]


def test_new_tables_whose_folders_differ_only_in_capitals_are_refused_by_both_names(shop: MysqlShop) -> None:
    for name in ("orders", "Orders", "other"):
        shop.run(ORDERS.replace("orders", name))
    with shop.opened("orders", "Orders", "other") as pipeline:
        found = pipeline.source_setup().set_up()
    assert found.tables == (shop.name("other"),)
    assert found.refused.keys() == {shop.name("orders"), shop.name("Orders")}
    for refused in found.refused.values():
        assert "orders" in refused.found
        assert "Orders" in refused.found
        assert "differ only in capitals" in refused.found


def test_a_second_reader_is_refused_while_the_first_one_reads(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        with pipeline.consumer_runs().open(), pytest.raises(SourceBusy), pipeline.consumer_runs().open():
            pass
        (table,) = pipeline.table_names()
        for whole in (False, True):
            with pipeline.consumer_runs().open(), pytest.raises(LeaseBusy, match="a consumer reads the stream"):
                pipeline.source.leave([table], whole=whole)
        assert pipeline.source.leave([table], whole=False) == ()


@pytest.mark.parametrize("started", [started_mariadb, started_mysql])
def test_a_log_that_is_gone_or_set_back_stops_the_stream_with_the_remedy(
    started: Callable[[], AbstractContextManager[str]], store_url: str, tmp_path: Path
) -> None:
    with started() as url:
        own = MysqlShop(folder=tmp_path, url=url, database="shop", store_url=store_url)
        run_mysql(url, "CREATE DATABASE shop")
        own.run(ORDERS)
        with own.opened("orders") as pipeline:
            pipeline.source_setup().set_up()
            own.run("INSERT INTO orders VALUES (1, 'lost', 1)")
            own.run("FLUSH BINARY LOGS")
            own.run("INSERT INTO orders VALUES (2, 'kept', 1)")

            def is_purged() -> bool:
                """The server keeps a file a little longer, until the engine has noted its end."""
                own.run("PURGE BINARY LOGS TO 'binlog.000002'")
                return bool(own.run("SHOW BINARY LOGS")[0][0] == "binlog.000002")

            assert eventually(is_purged)
            with pytest.raises(SourceGap, match="setup-source --begin-again"):
                consume(pipeline)
            pipeline.source_setup().begin_stream_again()
            assert states(pipeline, own, "orders") == [TableState.STALE]
            reset_log(url)
            with pytest.raises(SourceGap, match="RESET MASTER"):
                consume(pipeline)
            run_mysql(url, "SET GLOBAL binlog_row_metadata = 'MINIMAL'")
            with pytest.raises(SourceError, match="binlog_row_metadata"):
                pipeline.source_setup().set_up()


def test_a_held_snapshot_is_read_by_its_key_alone_and_ends_with_its_holder(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    shop.run(f"INSERT INTO orders {numbers(1, 1000)} SELECT number, 'x', number FROM numbers")
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        with pipeline.source.hold_position("test", name="a") as held:
            shop.run("DELETE FROM orders")
            wrong = held.exported.replace('"key": "', '"key": "00')
            with pytest.raises(Exception, match="held snapshot"), pipeline.source.copy_at(wrong):
                pass
            with pipeline.source.copy_at(held.exported) as copy:
                known = pipeline.registered_stream().tables()[shop.name("orders")]
                assert known.schema is not None
                parts = copy.parts(shop.name("orders"), 4096)
                rows = [b.rows.num_rows for p in parts for b in copy.rows(shop.name("orders"), known.schema, p)]
            assert (len(parts) > 1, sum(rows)) == (True, 1000)
        with pytest.raises(Exception, match="held snapshot"), pipeline.source.copy_at(held.exported):
            pass
        assert read_copy(pipeline, shop.name("orders"))[0].num_rows == 0


def test_an_error_of_the_block_that_holds_a_snapshot_is_no_outage_of_the_source(shop: MysqlShop) -> None:
    with shop.opened("orders") as pipeline:
        with pytest.raises(OSError, match="the lake's disk"), pipeline.source.hold_position("test", name="a"):
            raise OSError(errno.ENOSPC, "the lake's disk is full")
        assert not pipeline.source.is_held("test", name="a")


def test_a_reader_that_leaves_a_held_snapshot_ends_its_query_and_not_the_snapshot(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    shop.run(f"INSERT INTO orders {numbers(1, 1000)} SELECT number, 'x', number FROM numbers")
    ended = "SHOW GLOBAL STATUS LIKE 'Com_kill'"
    with shop.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        with pipeline.source.hold_position("test", name="a") as held:
            orders = f"FROM {shop.database}.orders"
            ((_, before),) = shop.run("DELETE FROM orders", ended)
            leaving = query_snapshot(held.exported, f"SELECT repeat(note, 200000) {orders}")
            next(leaving)
            leaving.close()
            counted = [sum(b.num_rows for b in query_snapshot(held.exported, f"SELECT 1 {orders}")) for _ in range(3)]
            ((_, after),) = shop.run(ended)
    assert (int(after) - int(before), counted) == (1, [1000] * 3)


def test_the_password_comes_from_a_file_and_is_shown_nowhere(shop: MysqlShop) -> None:
    shop.run(ORDERS)
    url = shop.url.replace("of%20this%20test%20run", "wrong-secret")
    (shop.folder / "secret").write_text("of this test run\n")
    own = MysqlShop(folder=shop.folder, url=url, database=shop.database, store_url=shop.store_url)
    with own.opened("orders") as pipeline, pytest.raises(SourceError, match="correct user and password") as failure:
        pipeline.source_setup().set_up()
    assert "wrong-secret" not in repr(failure.value) + str(pipeline.source)
    with own.opened("orders", source={"password_file": "secret"}) as pipeline:
        assert pipeline.source_setup().set_up().tables == (shop.name("orders"),)
    with (
        own.opened("orders", source={"password_file": "nothing"}) as pipeline,
        pytest.raises(SettingsError, match="password_file"),
    ):
        pipeline.source_setup().set_up()


def test_the_rights_that_the_documentation_names_are_enough(shop: MysqlShop) -> None:
    shop.run(ORDERS, "INSERT INTO orders VALUES (1, 'a', 1)")
    with documented_reader(shop) as source, shop.opened("orders", source=source) as pipeline:
        assert pipeline.source_setup().set_up().tables == (shop.name("orders"),)
        assert read_copy(pipeline, shop.name("orders"))[0].num_rows == 1
        shop.run("INSERT INTO orders VALUES (2, 'b', 1)")
        assert shown(read_stream(pipeline), "id") == [("i", 2)]
