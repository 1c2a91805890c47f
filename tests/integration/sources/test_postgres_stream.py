"""PostgreSQL -> change events -> cuts, over a real slot."""

from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pyarrow as pa
import pytest

from cdc_pipeline.consume.slice_cutter import CUT, CUT_AT, CutSlices, SliceCutter
from cdc_pipeline.errors import SourceAway, SourceError, StreamMoved, TableStale
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.postgres.catalogue import read_slot
from cdc_pipeline.sources.postgres.session import connect
from cdc_pipeline.sources.postgres.setup import plan_source
from tests.support.streams import READ_WAIT, database_of, new_cutter, opened, prepare, read_marked, read_until, run_sql
from tests.support.tcp_proxy import proxied

CREATE = "CREATE TABLE items (id int PRIMARY KEY, name text, body text, price numeric(10,2))"


def items(url: str) -> TableSettings:
    return TableSettings(name=f"{database_of(url)}.public.items")


def rows_of(cut: CutSlices, name: TableName) -> list[dict[str, Any]]:
    tables = [part.rows for (table, _), part in cut.slices.items() if table == name]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
    return sorted(rows, key=lambda row: (row["_cdc_version"], row["_cdc_op"]))


def test_inserts_updates_deletes_and_key_changes_arrive_typed_and_in_order(database: str) -> None:
    run_sql(database, CREATE)
    table = items(database)
    source, plan = prepare(database, [table])
    with opened(source, plan) as stream:
        cutter = new_cutter(source)
        run_sql(
            database,
            "INSERT INTO items VALUES (1, 'one', NULL, 1.50), (2, '', 'b', NULL)",
            "UPDATE items SET name = 'uno' WHERE id = 1",
            "UPDATE items SET id = 3 WHERE id = 2",
            "DELETE FROM items WHERE id = 1",
        )
        rows = rows_of(read_marked(stream, cutter), table.table)
    assert [(row["_cdc_op"], row["id"], row["name"], row["price"]) for row in rows] == [
        ("i", 1, "one", Decimal("1.50")),
        ("i", 2, "", None),
        ("u", 1, "uno", Decimal("1.50")),
        ("d", 2, None, None),
        ("m", 3, "", None),
        ("d", 1, None, None),
    ]
    assert [row["_cdc_old_id"] for row in rows] == [None, None, None, None, 2, None]
    assert rows[3]["_cdc_version"] == rows[4]["_cdc_version"]


def test_a_server_that_is_gone_without_a_word_is_away(database: str) -> None:
    run_sql(database, CREATE)
    source, plan = prepare(database, [items(database)])
    port = urlsplit(database).port or 0
    with proxied(port) as proxy:
        url = database.replace(f":{port}/", f":{proxy.port}/")
        with opened(source.model_copy(update={"url": url}), plan) as stream:
            proxy.cut()
            with pytest.raises(SourceAway):
                stream.read(READ_WAIT)
            with pytest.raises(SourceAway):
                stream.confirm(0)


def test_an_unchanged_large_text_is_absent_and_not_null(database: str) -> None:
    run_sql(database, CREATE, "ALTER TABLE items ALTER body SET STORAGE EXTERNAL")
    table = items(database)
    source, plan = prepare(database, [table])
    with opened(source, plan) as stream:
        cutter = new_cutter(source)
        run_sql(
            database,
            "INSERT INTO items VALUES (1, 'one', repeat('x', 5000), 1)",
            "UPDATE items SET name = 'uno' WHERE id = 1",
            "UPDATE items SET id = 2 WHERE id = 1",
        )
        rows = rows_of(read_marked(stream, cutter), table.table)
    assert [(row["_cdc_op"], row["_cdc_absent"]) for row in rows] == [
        ("i", None),
        ("u", ["body"]),
        ("d", None),
        ("m", ["body"]),
    ]


def test_a_full_replica_identity_fills_what_the_update_left_out(database: str) -> None:
    run_sql(
        database, CREATE, "ALTER TABLE items ALTER body SET STORAGE EXTERNAL", "ALTER TABLE items REPLICA IDENTITY FULL"
    )
    table = items(database)
    source, plan = prepare(database, [table])
    with opened(source, plan) as stream:
        cutter = new_cutter(source)
        run_sql(
            database,
            "INSERT INTO items VALUES (1, 'one', repeat('x', 5000), 1)",
            "UPDATE items SET name = 'uno' WHERE id = 1",
        )
        rows = rows_of(read_marked(stream, cutter), table.table)
    assert (rows[1]["_cdc_op"], rows[1]["_cdc_absent"], rows[1]["body"]) == ("u", None, "x" * 5000)


def test_all_events_of_one_id_stay_in_one_stream_partition(database: str) -> None:
    run_sql(database, CREATE)
    table = items(database)
    source, plan = prepare(database, [table], stream_partitions=3)
    with opened(source, plan) as stream:
        cutter = new_cutter(source)
        run_sql(database, "INSERT INTO items SELECT n FROM generate_series(1, 300) n", "UPDATE items SET name = 'x'")
        cut = read_marked(stream, cutter)
    ids = [part.rows["id"].to_pylist() for part in cut.slices.values()]
    assert len(ids) == 3
    assert sum(map(len, ids)) == 600
    assert not set(ids[0]) & set(ids[1]) | set(ids[0]) & set(ids[2]) | set(ids[1]) & set(ids[2])


def test_a_truncate_arrives_as_one_event_without_an_id(database: str) -> None:
    run_sql(database, CREATE)
    table = items(database)
    source, plan = prepare(database, [table], stream_partitions=2)
    with opened(source, plan) as stream:
        cutter = new_cutter(source)
        run_sql(database, "INSERT INTO items VALUES (1)", "TRUNCATE items", "INSERT INTO items VALUES (1)")
        rows = rows_of(read_marked(stream, cutter), table.table)
    assert [(row["_cdc_op"], row["id"]) for row in rows] == [("i", 1), ("t", None), ("i", 1)]


def test_a_cut_can_be_asked_for_at_an_earlier_position(database: str) -> None:
    run_sql(database, CREATE)
    table = items(database)
    source, plan = prepare(database, [table])
    with opened(source, plan) as stream:
        cutter = new_cutter(source)
        run_sql(database, "INSERT INTO items VALUES (1)")
        with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
            (position,) = cursor.fetchone() or (0,)
        run_sql(database, "INSERT INTO items VALUES (2)")
        stream.send_marker(f"{CUT_AT}{int(position):016x}")
        first = read_until(stream, cutter, bool)
        second = read_marked(stream, cutter)
    assert [(cut.requested, cut.end) for cut in first] == [(True, int(position))]
    assert [row["id"] for row in rows_of(first[0], table.table)] == [1]
    assert [row["id"] for row in rows_of(second, table.table)] == [2]


def test_what_is_not_confirmed_comes_again_and_what_is_registered_is_skipped(database: str) -> None:
    run_sql(database, CREATE)
    table = items(database)
    source, plan = prepare(database, [table])
    cutter = new_cutter(source)
    with opened(source, plan) as stream:
        run_sql(database, "INSERT INTO items VALUES (1)")
        first = read_marked(stream, cutter)
        assert first.last_commit_position is not None
        stream.confirm(first.last_commit_position)
        run_sql(database, "INSERT INTO items VALUES (2)")
    again = SliceCutter(
        start=first.end, commit_time=first.commit_time, slice_length=timedelta(hours=1), slice_rows=10**6
    )
    with opened(source, plan) as stream:
        second = read_marked(stream, again)
    assert [row["id"] for row in rows_of(second, table.table)] == [2]
    with closing(connect(database)) as connection:
        slot = read_slot(connection, source.slot)
    assert slot is not None
    assert slot.confirmed_position is not None
    assert slot.confirmed_position < first.end


def test_a_new_column_makes_the_consumer_look_at_the_catalogue_again(database: str) -> None:
    run_sql(database, CREATE)
    source, plan = prepare(database, [items(database)])
    with opened(source, plan) as stream:
        cutter = new_cutter(source)
        run_sql(
            database,
            "INSERT INTO items VALUES (1)",
            "ALTER TABLE items ADD COLUMN color text DEFAULT 'red'",
            "INSERT INTO items VALUES (2)",
        )
        stream.send_marker(CUT)
        with pytest.raises(StreamMoved, match="has other columns than when its stream was opened"):
            read_until(stream, cutter, bool)


def test_a_value_that_does_not_fit_is_quarantined_and_its_neighbours_arrive(database: str) -> None:
    run_sql(database, CREATE)
    table = items(database)
    source, plan = prepare(database, [table])
    with opened(source, plan) as stream:
        cutter = new_cutter(source)
        run_sql(database, "INSERT INTO items VALUES (1, 'a', NULL, 'NaN'), (2, 'b', NULL, 7)")
        cut = read_marked(stream, cutter)
    assert [row["id"] for row in rows_of(cut, table.table)] == [2]
    ((name, event),) = cut.unfit
    assert (name, event.column, event.payload["price"], event.payload["id"]) == (table.table, "price", "NaN", "1")


@pytest.mark.parametrize(
    ("create", "message"),
    [
        ("SELECT 1", "has no table"),
        ("CREATE TABLE items (id int, name text)", r"has no id.*ALTER TABLE public\.items REPLICA IDENTITY FULL"),
        (
            'CREATE TABLE items (id int) PARTITION BY LIST (id); CREATE TABLE "One" PARTITION OF items DEFAULT',
            r'ALTER TABLE public\."One" REPLICA IDENTITY FULL$',
        ),
        ("CREATE TABLE items (id int PRIMARY KEY); ALTER TABLE items REPLICA IDENTITY NOTHING", "no replica identity"),
        ("CREATE VIEW items AS SELECT 1 AS id", "is not a table"),
        ("CREATE TABLE items (id int PRIMARY KEY, _cdc_x int)", "_cdc_x"),
        ('CREATE TABLE items (id int PRIMARY KEY, "_CDC_version" int)', "_CDC_version"),
        ('CREATE TABLE items (id int PRIMARY KEY, "ID" int)', "'ID' and 'id' .* differ only in capitals"),
        ('CREATE TABLE items (id int PRIMARY KEY, "É" int, é int)', "'É' and 'é' .* differ only in capitals"),
    ],
)
def test_a_table_that_cannot_be_streamed_is_refused_by_name(database: str, create: str, message: str) -> None:
    run_sql(database, create)
    source = PostgresSource(kind="postgres", url=database, publication="p", slot="s")
    with closing(connect(database)) as connection, pytest.raises(SourceError, match=message) as caught:
        plan_source(connection, source, [items(database)])
    assert f"{database_of(database)}.public.items" in str(caught.value)
    with closing(connect(database)) as connection:
        assert read_slot(connection, "s") is None


def test_new_tables_whose_folders_differ_only_in_capitals_are_refused_by_both_names(database: str) -> None:
    run_sql(database, CREATE, CREATE.replace("items", '"Items"'))
    tables = [items(database), TableSettings(name=f"{database_of(database)}.public.Items")]
    source = PostgresSource(kind="postgres", url=database, publication="p", slot="s")
    with closing(connect(database)) as connection:
        for table in tables:
            assert plan_source(connection, source, [table]).tables
        with pytest.raises(SourceError, match=r"public\.items and .*public\.Items differ only in capitals"):
            plan_source(connection, source, tables)


def test_a_table_with_the_name_of_the_history_of_another_is_refused(database: str) -> None:
    run_sql(database, CREATE, CREATE.replace("items", '"items.history"'))
    history = TableSettings(name=f'{database_of(database)}.public."items.history"')
    source = PostgresSource(kind="postgres", url=database, publication="p", slot="s")
    with closing(connect(database)) as connection:
        assert plan_source(connection, source, [items(database), history]).tables
        kept = items(database).model_copy(update={"history": True})
        with pytest.raises(SourceError, match=r"has the name of the history table of .*public\.items"):
            plan_source(connection, source, [kept, history])


def test_a_detached_partition_of_a_table_that_is_not_read_any_more_stops_no_table_with_the_same_columns(
    database: str,
) -> None:
    tables = [TableSettings(name=f"{database_of(database)}.public.{name}") for name in ("first", "second")]
    for table in ("first", "second"):
        run_sql(
            database,
            f"CREATE TABLE {table} (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
            f"CREATE TABLE {table}_low PARTITION OF {table} FOR VALUES FROM (0) TO (10)",
        )
    source, plan = prepare(database, tables)
    cutter = new_cutter(source)
    run_sql(
        database,
        "INSERT INTO first VALUES (1, 'unread')",
        "ALTER TABLE first DETACH PARTITION first_low",
        "INSERT INTO second VALUES (1, 'read')",
    )
    only_second = replace(plan, tables=tuple(table for table in plan.tables if table.name.table == "second"))
    with opened(source, only_second) as stream:
        rows = rows_of(read_marked(stream, cutter), tables[1].table)
    assert [(row["id"], row["note"]) for row in rows] == [(1, "read")]


@pytest.mark.parametrize("generated", ["", ", twice int GENERATED ALWAYS AS (id * 2) STORED"], ids=["", "generated"])
def test_a_partition_that_came_and_went_with_its_rows_stops_its_own_table(generated: str, database: str) -> None:
    """PostgreSQL 18 and later sends generated columns, which the publication of `prepare` includes."""
    run_sql(database, f"CREATE TABLE first (id int PRIMARY KEY, note text{generated}) PARTITION BY RANGE (id)")
    source, plan = prepare(database, [TableSettings(name=f"{database_of(database)}.public.first")])
    run_sql(
        database,
        "CREATE TABLE first_low PARTITION OF first FOR VALUES FROM (0) TO (10)",
        "INSERT INTO first VALUES (1, 'lost')",
        "DROP TABLE first_low",
    )
    with opened(source, plan) as stream, pytest.raises(TableStale, match="had a partition public"):
        read_marked(stream, new_cutter(source))
