"""Claims merged into real Delta tables by a real Spark server."""

from dataclasses import replace
from datetime import date
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.append_or_merge import Upsert
from cdc_pipeline.lake.protocol import KeyRange
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.reader_view import reader_view_sql
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, Column, Operation, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.steps import no_step
from tests.support.lake import (
    NOW,
    PEOPLE,
    Feed,
    claim_of,
    event,
    lake_rows,
    lake_table_rows,
    lake_values,
    move,
    rows_by_spark,
    table_of,
    values_by_id,
    version,
)
from tests.support.lakes import spark_lake
from tests.support.reference.model import Event

ALICE, BOB = {"name": "alice", "age": 30}, {"name": "bob", "age": 40}


@pytest.fixture
def feed(lake: SparkLake, store: LocalObjectStore) -> Feed:
    table = table_of()
    lake.create_table(table)
    return Feed(store=store, table=table)


def test_a_worker_that_was_overtaken_proves_its_claim_from_the_log(lake: SparkLake, feed: Feed) -> None:
    old = feed.claim([event("i", 1, 1, **ALICE)])
    lake.upsert(feed.table, old)
    lake.upsert(feed.table, feed.claim([event("i", 2, 2, **BOB)]))
    lake.optimize(feed.table)
    assert lake.upsert(feed.table, old).already_applied


@pytest.mark.parametrize("way", ["append", "merge"])
def test_a_fence_conf_left_behind_by_others_does_not_silence_a_claim(
    feed: Feed, session: SparkSession, store: LocalObjectStore, way: Upsert
) -> None:
    lake = SparkLake(open_session=lambda: session, store=store, clock=lambda: NOW, on_step=no_step, upsert=way)
    session.conf.set("spark.databricks.delta.write.txnAppId", feed.table.app_id)
    session.conf.set("spark.databricks.delta.write.txnVersion", "999")
    assert lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE)])).counts.inserted == 1
    left = session.conf.getAll if way == "merge" else {}
    assert "spark.databricks.delta.write.txnVersion" not in left
    assert "spark.databricks.delta.commitInfo.userMetadata" not in left


def test_names_of_any_kind_are_only_names(lake: SparkLake, session: SparkSession, store: LocalObjectStore) -> None:
    names = ("order by", "a`b", "ключ", "${env:HOME}", "x.y", "it's; --", "c\\d", "f0", "last", "t", "s", "SELECT")
    schema = TableSchema(
        columns=(Column(name="id #", type="int8"), *(Column(name=name, type="text") for name in names)), key=("id #",)
    )
    table = table_of(schema, name="shop.strange schema.täble %41 x")
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, 1, **{name: f"'{name}\\" for name in names})]))
    lake.upsert(table, feed.claim([event("u", 2, 1, **dict.fromkeys(names[:6], "x"))]))
    lake.upsert(table, feed.claim(move(3, (1,), (2,), **{names[0]: "y"})))
    expected = ("y", *("x" for _ in names[1:6]), *(f"'{name}\\" for name in names[6:]))
    assert values_by_id(table, rows_by_spark(session, store, table)) == {(2,): expected}


def test_composite_ids_and_text_ranges_find_their_rows(lake: SparkLake, store: LocalObjectStore) -> None:
    columns = (Column(name="state", type="text"), Column(name="city", type="text"), Column(name="n", type="int4"))
    table = table_of(TableSchema(columns=columns, key=("state", "city")))
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, "US", "S", n=1), event("i", 2, "C'A\\", "S", n=2)]))
    ranges = (KeyRange("C'A\\", "C'A\\"), KeyRange("US", "US"))
    lake.upsert(table, feed.claim([event("u", 3, "US", "S", n=3), event("d", 4, "C'A\\", "S")], ranges=ranges))
    assert lake_values(store, table) == {("US", "S"): (3,)}


@pytest.mark.parametrize(("type_", "bits"), [("int2", 15), ("int4", 31), ("int8", 63)])
def test_ranges_find_ids_at_the_ends_of_their_type(
    lake: SparkLake, store: LocalObjectStore, type_: str, bits: int
) -> None:
    least, most = -(1 << bits), (1 << bits) - 1
    table = table_of(TableSchema(columns=(Column(name="id", type=type_), Column(name="n", type="int4")), key=("id",)))
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, least, n=1), event("i", 2, most, n=2), event("i", 3, 0, n=3)]))
    ranges = (KeyRange(least, least), KeyRange(most, most))
    lake.upsert(table, feed.claim([event("u", 4, least, n=4), event("u", 5, most, n=5)], ranges=ranges))
    assert lake_values(store, table) == {(least,): (4,), (most,): (5,), (0,): (3,)}


def test_a_changed_partition_column_moves_the_row_and_doubles_nothing(
    searching_lake: SparkLake, store: LocalObjectStore
) -> None:
    columns = (Column(name="id", type="int8"), Column(name="at", type="date"), Column(name="kind", type="text"))
    partition_by = (PartitionBy(column="at", unit="month"), PartitionBy(column="kind"))
    table = table_of(TableSchema(columns=columns, key=("id",)), partition_by=partition_by)
    searching_lake.create_table(table)
    feed = Feed(store=store, table=table)
    searching_lake.upsert(
        table,
        feed.claim([event("i", 1, 1, at=date(2024, 1, 31), kind="a/b=c d"), event("i", 2, 2, at=None, kind=None)]),
    )
    searching_lake.upsert(table, feed.claim([event("u", 3, 1, at=date(2024, 2, 1)), event("u", 4, 2, kind="k")]))
    rows = lake_rows(store, table)
    assert {id_[0]: (row["_cdc_at_month"], row["_cdc_kind_value"]) for id_, row in rows.items()} == {
        1: ("2024-02", "a/b=c d"),
        2: (None, "k"),
    }


def test_an_added_column_is_added_to_the_lake_and_older_slices_lack_it(
    lake: SparkLake, feed: Feed, store: LocalObjectStore
) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE)]))
    wider = TableSchema(columns=(*PEOPLE.columns, Column(name="e mail", type="text")), key=("id",))
    old_events = [event("u", 2, 1, name="A", age=31), event("i", 3, 2, **BOB)]
    new_events = [event("u", 4, 2, name="B", age=41, **{"e mail": "b@x"})]
    made = [feed.slice(old_events), feed.slice(new_events, schema=wider)]
    lake.upsert(feed.table, claim_of(made, [*old_events, *new_events], 2, 3))
    rows = lake_rows(store, feed.table)
    assert {id_[0]: (row["name"], row["e mail"]) for id_, row in rows.items()} == {1: ("A", None), 2: ("B", "b@x")}


def test_a_table_made_before_gets_our_columns_with_its_next_claim(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    url = store.spark_url(lake_key(feed.table.name))
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE)]))
    session.sql(
        f"ALTER TABLE {table_at(url)} SET TBLPROPERTIES"
        " ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
    ).collect()
    session.sql(f"ALTER TABLE {table_at(url)} DROP COLUMNS (_cdc_deleted, _cdc_state)").collect()
    lake.upsert(feed.table, feed.claim([event("u", 2, 1, age=31)], [event("u", 3, 2, age=1)]))
    rows = {id_[0]: (row["name"], row["age"], row[DELETED]) for id_, row in lake_rows(store, feed.table).items()}
    assert rows == {1: ("alice", 31, False), 2: (None, 1, True)}


@pytest.mark.parametrize(
    ("way", "deletes"),
    [
        ("append", "hard"),
        ("merge", "soft"),
        pytest.param("append", "soft", marks=pytest.mark.nightly),
        pytest.param("merge", "hard", marks=pytest.mark.nightly),
    ],
)
def test_a_key_change_that_waited_takes_a_value_that_arrives_after_the_delete_of_its_old_id(
    session: SparkSession, store: LocalObjectStore, way: Upsert, deletes: Literal["hard", "soft"]
) -> None:
    """The row of the old id was incomplete, and its tombstone knows that."""
    lake, table = spark_lake(session, store, upsert=way), table_of(deletes=deletes)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    deleted, moved = move(30, (1,), (101,), age=31)
    lake.upsert(table, replace(feed.claim([event("u", 20, 1, age=30)]), tombstones=True))
    lake.upsert(table, replace(feed.claim([deleted]), tombstones=True))
    replayed = feed.claim([event("i", 10, 1, **ALICE), moved])
    lake.upsert(table, replace(replayed, late=True, tombstones=True))
    rows = {id_[0]: (row["name"], row["age"]) for id_, row in lake_rows(store, table).items() if not row[DELETED]}
    assert rows == {101: ("alice", 31)}


def test_rows_of_a_keyless_table_are_equal_also_where_they_hold_nan(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    columns = (Column(name="x", type="float8"), Column(name="tags", type="text[]"), Column(name="day", type="date"))
    table = table_of(TableSchema(columns=columns, key=()), partition_by=(PartitionBy(column="day", unit="month"),))
    lake.create_table(table)
    feed = Feed(store=store, table=table)

    def row(operation: str, number: int, x: float | None) -> Event:
        values: dict[str, object] = {"x": x, "tags": ["a", None], "day": date(2024, 1, 2)}
        return Event(operation=Operation(operation), version=version(number), values=values)

    nan = float("nan")
    lake.upsert(table, feed.claim([row("i", 1, nan), row("i", 2, nan), row("i", 3, None)]))
    outcome = lake.upsert(table, feed.claim([row("d", 4, nan), row("d", 5, None), row("d", 6, 9.0)]))
    assert (outcome.counts.inserted, outcome.counts.deleted, outcome.counts.ignored) == (0, 2, 1)
    (left,) = lake_table_rows(store, table)
    assert (str(left["x"]), left["_cdc_day_month"], left["_cdc_version"]) == ("nan", "2024-01", version(2))
    source = session.sql("SELECT double('nan') AS x, array('a', NULL) AS tags, date'2024-01-02' AS day")
    source.write.parquet(store.spark_url("source"))
    compared = lake.compare(table, "source", outcome.lake_version)
    assert (compared.source_rows, compared.lake_rows, compared.differing_rows) == (1, 1, 0)
    source.limit(0).write.parquet(store.spark_url("empty"))
    assert lake.compare(table, "empty", 1).differences[0].kind == "extra"


def test_readers_see_neither_hidden_rows_nor_our_columns(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE), event("u", 2, 2, age=1)]))
    sql = reader_view_sql(feed.table, store.spark_url(lake_key(feed.table.name)), lake.read_columns(feed.table))
    shown = session.sql(sql.split(" AS ", 1)[1]).collect()
    assert [row.asDict() for row in shown] == [{"id": 1, **ALICE}]
