"""Rows of tables with soft deletes that a new snapshot lacks: Spark writes them anew, flagged."""

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
import structlog.testing
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.deleted_rows import right_before
from cdc_pipeline.lake.delta_log import DeltaLog, VersionTaken
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, VERSION, Column, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.steps import Moment
from tests.support.history_tables import publish, spans, taken
from tests.support.lake import PEOPLE, Feed, by_id, event, rows_by_spark, table_of, version
from tests.support.lakes import spark_lake

BEFORE = TableSchema(
    columns=(
        Column(name="id", type="int4", number=1),
        Column(name="named", type="text", number=2),
        Column(name="day", type="date", number=3),
        Column(name="size", type="text", number=4),
        Column(name="price", type="numeric(12,4)", number=5),
        Column(name="tags", type="int4[]", number=6),
        Column(name="gone", type="text", number=7),
    ),
    key=("id",),
)
AFTER = TableSchema(
    columns=(
        Column(name="the id", type="int8", number=1),
        Column(name="day", type="timestamp", number=3),
        Column(name="size", type="int4", number=4),
        Column(name="price", type="numeric(10,2)", number=5),
        Column(name="tags", type="text", number=6),
        Column(name="gone", type="text", number=8),
        Column(name="name", type="text", number=2),
    ),
    key=("the id",),
)
"""Names inside files are others than in the lake, since one has a space."""


def test_deleted_rows_get_the_columns_and_the_data_partitions_of_the_new_shape(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    table = table_of(BEFORE, deletes="soft", partition_by=(PartitionBy(column="day", unit="month"),))
    lake.create_table(table)
    first, second = date(2024, 1, 31), date(2024, 2, 1)
    rows = [
        (1, "a", first, "7", Decimal("1.2550"), [1], "x"),
        (2, "b", second, "large", None, None, None),
        (3, "c", None, None, None, None, None),
    ]
    publish(lake, store, table, rows, at=100, fence=0)
    lake.upsert(table, Feed(store=store, table=table).claim([event("d", 101, 1)]))
    new = replace(table, schema=AFTER)
    publish(lake, store, new, [(3, None, None, None, None, None, "c")], at=200, fence=1)
    shown = {
        id_[0]: (*(row[name] for name in ("size", "price", "tags", "gone", "name")), row["_cdc_day_month"])
        for id_, row in by_id(new, rows_by_spark(session, store, new)).items()
    }
    assert shown == {
        1: (7, Decimal("1.26"), None, None, "a", "2024-01"),
        2: (None, None, None, None, "b", "2024-02"),
        3: (None, None, None, None, "c", None),
    }
    files = DeltaLog(store, lake_key(new.name)).active_files(lake.read_version(new) or 0).values()
    stats = [json.loads(file["stats"]) for file in files if "-deleted-" in file["path"]]
    bounds = {tuple(each["minValues"].values()) for each in stats}
    assert (len(files), bounds) == (3, {(1, version(101)), (2, right_before(version(200)))})
    feed = Feed(store=store, table=new, next_number=2)
    lake.upsert(new, feed.claim([event("i", 201, 2, size=5)]))
    flags = {id_[0]: row[DELETED] for id_, row in by_id(new, rows_by_spark(session, store, new)).items()}
    assert flags == {1: True, 2: True, 3: False}


def test_columns_of_a_table_that_was_created_again_are_found_by_their_names(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    table = table_of(BEFORE, deletes="soft")
    lake.create_table(table)
    publish(lake, store, table, [(1, "a", None, "7", None, None, "x")], at=100, fence=0)
    columns = (Column(name="gone", type="text", number=1), Column(name="id", type="int4", number=2))
    again = replace(table, schema=TableSchema(columns=columns, key=("id",)))
    content = taken(lake, store, again, [], at=200, fence=0)
    assert content.table is not None
    lake.publish(again, replace(content, table=replace(content.table, source_oid=16_500)))
    (row,) = rows_by_spark(session, store, again)
    assert (row["id"], row["gone"], row[DELETED], row[VERSION]) == (1, "x", True, right_before(version(200)))


def test_flagged_rows_that_a_new_id_takes_away_are_counted_in_a_warning(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    table = table_of(deletes="soft")
    lake.create_table(table)
    publish(lake, store, table, [(1, "a", 1), (2, "b", 2), (3, "c", 3)], at=100, fence=0)
    lake.upsert(table, Feed(store=store, table=table).claim([event("d", 101, 1), event("d", 102, 2)]))
    texts = (Column(name="id", type="text"), *PEOPLE.columns[1:])
    new = replace(table, schema=TableSchema(columns=texts, key=("id",)))
    with structlog.testing.capture_logs() as logged:
        publish(lake, store, new, [("3", "c", 3)], at=200, fence=1)
    (warned,) = (entry for entry in logged if entry["log_level"] == "warning")
    assert (warned["event"], warned["rows"]) == ("flagged rows are not kept: the table has another id", 2)


def test_a_commit_of_somebody_else_makes_the_publication_look_for_deleted_rows_again(
    session: SparkSession, store: LocalObjectStore
) -> None:
    table = table_of(deletes="soft")
    lake = spark_lake(session, store)
    lake.create_table(table)
    publish(lake, store, table, [(1, "a", 1), (2, "b", 2)], at=100, fence=0)
    content = taken(lake, store, table, [(2, "b", 2)], at=200, fence=1)

    def claimed(name: str, moment: Moment) -> None:
        if (name, moment) == ("lake_files.write", Moment.AFTER):
            lake.upsert(table, Feed(store=store, table=table).claim([event("i", 101, 3, name="c", age=3)]))

    with pytest.raises(VersionTaken):
        spark_lake(session, store, on_step=claimed).publish(table, content)
    lake.publish(table, content)
    rows = by_id(table, rows_by_spark(session, store, table))
    assert {id_[0]: row[DELETED] for id_, row in rows.items()} == {1: True, 2: False, 3: True}


def test_flagged_rows_neither_open_nor_keep_periods_of_the_history(lake: SparkLake, store: LocalObjectStore) -> None:
    table = table_of(deletes="soft", keeps_history=True)
    lake.create_table(table)
    publish(lake, store, table, [(1, "a", 1), (2, "b", 2), (3, "c", 3), (4, "d", 4)], at=100, fence=0)
    lake.upsert(table, Feed(store=store, table=table).claim([event("d", 101, 1)]))
    publish(lake, store, table, [(3, "c", 3), (4, "d", 4)], at=200, fence=1)
    spans_of_gone = {1: [("a", 100, 101)], 2: [("b", 100, 200)]}
    assert spans(store, table) == spans_of_gone | {3: [("c", 100, None)], 4: [("d", 100, None)]}
    publish(lake, store, table, [(4, "e", 4), (5, "f", 5)], at=300, fence=1)
    others = {3: [("c", 100, 300)], 4: [("d", 100, 300), ("e", 300, None)]}
    assert spans(store, table) == spans_of_gone | others | {5: [("f", 300, None)]}
    publish(lake, store, table, [(4, "e", 4)], at=300, fence=1, name="another export of this position")
    assert spans(store, table) == spans_of_gone | others | {5: [("f", 300, 300)]}
