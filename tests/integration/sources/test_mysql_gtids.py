"""MySQL's positions count the transactions of its log, and a snapshot is exact at its position while others commit."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from pymysql.err import OperationalError
from pymysqlreplication.event import GtidEvent

from cdc_pipeline.errors import SnapshotError, SourceError, SourceGap, UsageError
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.settings.mysql import MysqlSource
from cdc_pipeline.sources.mysql.binlog import BinlogReader
from cdc_pipeline.sources.mysql.dialect import MYSQL
from cdc_pipeline.sources.mysql.gtid_set import GtidSet, parse_gtid_set
from cdc_pipeline.sources.mysql.session import address_of, connect_for_texts, rows
from cdc_pipeline.sources.mysql.snapshot_position import begin_on_mysql
from tests.support.event_files import events_of
from tests.support.mariadb import connected, fresh_mysql_database, reset_log, run_mysql
from tests.support.mysql8 import started_mysql
from tests.support.mysql_source import MysqlShop, documented_reader, read_stream
from tests.support.pipelines import consume
from tests.support.tcp_proxy import proxied

pytestmark = pytest.mark.xdist_group("own MySQL")
ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)"
BAG = "CREATE TABLE bag (writer INT, number INT)"
WRITE = """
CREATE PROCEDURE write_rows(writer INT) BEGIN
  DECLARE number INT DEFAULT 0;
  WHILE IS_FREE_LOCK('{stop}') DO
    SET number = number + 1;
    INSERT INTO bag VALUES (writer, number);
    DO SLEEP({pause});
  END WHILE;
END
"""
LAST_NUMBERS = "SELECT writer, max(number), count(*) FROM {database}.bag GROUP BY writer"
OTHER = "11111111-2222-3333-4444-555555555555"
WRITERS, SNAPSHOTS = 3, 20


@pytest.fixture(scope="module")
def own_server() -> Iterator[str]:
    """A server of these tests alone, whose settings and log they change."""
    with started_mysql() as url:
        yield url


@pytest.fixture
def own(own_server: str, tmp_path: Path, store_url: str) -> Iterator[MysqlShop]:
    with fresh_mysql_database(own_server) as name:
        yield MysqlShop(folder=tmp_path, url=own_server, database=name, store_url=store_url)


@contextmanager
def writing(shop: MysqlShop, pause: float) -> Iterator[None]:
    """Sessions that commit one row after the other, numbered from 1, with a pause of so many seconds."""
    stop = f"stop {shop.database}"
    shop.run(WRITE.format(stop=stop, pause=pause))

    def write(writer: int) -> None:
        shop.run("SET autocommit = 1", f"CALL write_rows({writer})")

    threads = [Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    with closing(connected(shop.url)) as stopping, stopping.cursor() as cursor:
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            cursor.execute("SELECT GET_LOCK(%s, 0)", (stop,))
            for thread in threads:
                thread.join()


@pytest.mark.parametrize(
    ("wait", "pause"), [(timedelta(minutes=1), 0.001), (timedelta(0), 0)], ids=["in a quiet moment", "under a lock"]
)
def test_a_snapshot_has_what_the_stream_has_before_its_position_and_nothing_else(
    own: MysqlShop, wait: timedelta, pause: float
) -> None:
    """Each session numbers its rows, so the last number of each says which transactions a snapshot has."""
    own.run(BAG)
    source = MysqlSource(kind="mysql", url=own.url)
    taken = []
    with own.opened("bag") as pipeline:
        pipeline.source_setup().set_up()
        with writing(own, pause):
            for _ in range(SNAPSHOTS):
                with closing(connect_for_texts(address_of(source, own.folder))) as connection:
                    position = begin_on_mysql(connection, wait).end
                    shown = rows(connection, LAST_NUMBERS.format(database=own.database))
                taken.append((position, {int(writer): (int(last), int(count)) for writer, last, count in shown}))
        written = [
            (int(position), row["writer"], row["number"])
            for events in read_stream(pipeline).events
            for position, row in zip(events.commit_position, events.rows.to_pylist(), strict=True)
        ]
    assert len({position for position, _ in taken}) > SNAPSHOTS // 2
    written.reverse()
    last: dict[int, tuple[int, int]] = {}
    for position, found in taken:
        while written and written[-1][0] < position:
            _, writer, number = written.pop()
            last[writer] = number, number
        assert found == last


def test_the_count_goes_on_over_uuids_gaps_and_files_of_the_log(own: MysqlShop) -> None:
    own.run(ORDERS)
    gtids = [f"{OTHER}:5", f"{OTHER}:3", "AUTOMATIC", f"{OTHER}:4", "AUTOMATIC", f"{OTHER}:9"]
    with own.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        for number, gtid in enumerate(gtids):
            with closing(connected(own.url, own.database)) as connection, connection.cursor() as cursor:
                cursor.execute("SET gtid_next = %s", (gtid,))
                cursor.execute("INSERT INTO orders VALUES (%s, 'x')", (number,))
                connection.commit()
            own.run("FLUSH BINARY LOGS")
            consume(pipeline)
        assert [event["id"] for event in events_of(pipeline, own.name("orders"))] == list(range(len(gtids)))
        executed = str(own.run("SELECT @@GLOBAL.gtid_executed")[0][0])
        assert pipeline.source.position_of(executed).position == parse_gtid_set(executed).end
        for text in (f"{OTHER}:3-5", "0-1-7", f"{OTHER}:1-99"):
            with pytest.raises(UsageError, match="all GTIDs up to the export"):
                pipeline.source.position_of(text)


@pytest.mark.parametrize(
    "more",
    [
        f"{UUID(int=1 << 96)}:{':'.join(map(str, range(1, 800, 2)))}",
        ",".join(f"{UUID(int=n << 96)}:1" for n in range(2, 32)),
    ],
    ids=["many gaps", "many uuids"],
)
def test_a_set_of_more_than_a_thousand_characters_is_read_whole(own: MysqlShop, more: str) -> None:
    """What shows variables cuts them there."""
    own.run(ORDERS)
    own.run(f"SET GLOBAL gtid_purged = '+{more}'")
    with own.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        own.run("ALTER TABLE orders ADD amount INT")
        own.run("INSERT INTO orders VALUES (1, 'x', 5)")
        consume(pipeline)
        assert [event["amount"] for event in events_of(pipeline, own.name("orders"))] == [5]


def test_what_the_log_never_had_is_not_counted_silently(own: MysqlShop) -> None:
    """`gtid_purged` can be told transactions of which the log has nothing."""
    own.run(ORDERS)
    with own.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        consume(pipeline)
        own.run(f"SET GLOBAL gtid_purged = '+{uuid4()}:1-7'")
        own.run("INSERT INTO orders VALUES (1, 'x')")
        with pytest.raises(SourceGap, match="run cdc setup-source --begin-again"):
            consume(pipeline)
        pipeline.source_setup().begin_stream_again()
        own.run("INSERT INTO orders VALUES (2, 'x')")
        consume(pipeline)
        assert pipeline.store.tables.table(own.name("orders")).state is TableState.STALE


def test_a_session_that_logs_parts_of_json_stops_its_table_alone(own: MysqlShop) -> None:
    own.run("CREATE TABLE documents (id INT PRIMARY KEY, body JSON)")
    own.run(ORDERS)
    with own.opened("documents", "orders") as pipeline:
        pipeline.source_setup().set_up()
        own.run("""INSERT INTO documents VALUES (1, '{"a": 1, "b": "a long text that is not logged again"}')""")
        own.run(
            "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
            "UPDATE documents SET body = json_replace(body, '$.a', 2)",
        )
        own.run("INSERT INTO orders VALUES (1, 'x')")
        consume(pipeline)
        states = [pipeline.store.tables.table(own.name(table)).state for table in ("documents", "orders")]
        assert states[0] is TableState.STALE
        assert states[1] is not TableState.STALE


def test_another_server_behind_the_same_url_is_noticed(own: MysqlShop, mysql8: str, tmp_path: Path) -> None:
    own.run(ORDERS)
    with own.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
    run_mysql(mysql8, f"CREATE DATABASE {own.database}")
    try:
        other = MysqlShop(folder=tmp_path, url=mysql8, database=own.database, store_url=own.store_url)
        other.run(ORDERS)
        with other.opened("orders") as pipeline, pytest.raises(SourceError, match="mysql server"):
            pipeline.source_setup().set_up()
    finally:
        run_mysql(mysql8, f"DROP DATABASE {own.database}")


def test_a_lock_that_is_not_given_soon_is_given_up_and_writers_go_on(own: MysqlShop) -> None:
    own.run(BAG)
    source = MysqlSource(kind="mysql", url=own.url)
    with closing(connect_for_texts(address_of(source, own.folder))) as connection:
        with closing(connected(own.url, own.database)) as holding, holding.cursor() as cursor:
            cursor.execute("LOCK TABLES bag WRITE")
            with pytest.raises(SnapshotError, match="global read lock within 1 s"):
                begin_on_mysql(connection, timedelta(0), timedelta(seconds=1))
        own.run("INSERT INTO bag VALUES (1, 2)")
        begin_on_mysql(connection, timedelta(0))
        own.run("INSERT INTO bag VALUES (1, 3)")


def test_a_snapshot_begins_where_nobody_may_lock(own: MysqlShop) -> None:
    """Amazon RDS refuses the lock with the number that servers have for a wrong password."""
    port = urlsplit(own.url).port or 0
    rds = proxied(port, lambda answer: answer.replace(b"\xff\xcb\x04#42000", b"\xff\x15\x04#28000"))
    with documented_reader(own) as reader, rds as proxy:
        source = MysqlSource(kind="mysql", url=reader["url"].replace(str(port), str(proxy.port)))
        with closing(connect_for_texts(address_of(source, own.folder))) as connection:
            with pytest.raises(OperationalError, match="1045"):
                rows(connection, "FLUSH TABLES WITH READ LOCK")
            executed = str(own.run("SELECT @@GLOBAL.gtid_executed")[0][0])
            assert begin_on_mysql(connection, timedelta(0)).end == parse_gtid_set(executed).end


def test_a_log_that_was_reset_is_read_again_from_behind_what_is_registered(own: MysqlShop) -> None:
    own.run(ORDERS)
    with own.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        for number in range(9):
            own.run(f"INSERT INTO orders VALUES ({number}, 'before')")
        consume(pipeline)
        reset_log(own.url)
        own.run("INSERT INTO orders VALUES (10, 'lost')")
        with pytest.raises(SourceGap, match="RESET MASTER"):
            consume(pipeline)
        with pytest.raises(SourceError, match="up to which it is registered") as failure:
            pipeline.source_setup().begin_stream_again()
        remedy = re.search(r"SET GLOBAL gtid_purged = '\S+'", failure.value.remedy)
        assert remedy is not None
        own.run(remedy[0])
        pipeline.source_setup().begin_stream_again()
        assert read_stream(pipeline).events == []
        assert pipeline.store.tables.table(own.name("orders")).state is TableState.STALE


def test_a_log_without_any_transaction_is_read_from_its_beginning(own: MysqlShop) -> None:
    reset_log(own.url)
    address = address_of(MysqlSource(kind="mysql", url=own.url), own.folder)
    reader = BinlogReader(address, dialect=MYSQL, server_id=77, start=GtidSet(), schemas=[own.database], tables=["bag"])
    with closing(reader):
        reader.wait_ready(timedelta(seconds=10))
        own.run(BAG)
        found = next(event for event in iter(reader.next_event, None) if isinstance(event, GtidEvent))
    assert found.gno == 1


def test_a_functional_index_adds_nothing_to_what_is_read(own: MysqlShop) -> None:
    """Only an index of arrays would, which this server does not have."""
    own.run("CREATE TABLE orders (id INT PRIMARY KEY, amount INT, KEY ((amount + 1)))")
    with own.opened("orders") as pipeline:
        pipeline.source_setup().set_up()
        own.run("INSERT INTO orders VALUES (1, 5)")
        rows_read = read_stream(pipeline).rows(own.name("orders"))
    assert rows_read.select(["id", "amount"]).to_pylist() == [{"id": 1, "amount": 5}]
