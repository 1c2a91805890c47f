"""A lake table with data partitions and mapped names follows its source's columns as any other does."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import STAGING_AREA, lake_key, table_prefix
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.new_shape import physical_fields
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.session import set_confs, tune, untuned_session
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.lake.table_ddl import STATS
from cdc_pipeline.lake.table_features import unknown_features
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, STATE, Column, TableSchema
from cdc_pipeline.settings import PartitionBy
from tests.support.history_tables import publish, spans, with_properties
from tests.support.lake import PEOPLE, Feed, event, lake_values, rows_by_spark, table_of
from tests.support.lakes import spark_lake

FIRST = TableSchema(
    columns=(
        Column(name="id", type="int8", number=1),
        Column(name="full name", type="text", number=2),
        Column(name="day", type="date", number=3),
    ),
    key=("id",),
)
WIDER = replace(FIRST, columns=(*FIRST.columns, Column(name="a, b", type="timestamp", number=4)))
LAST = TableSchema(
    columns=(
        Column(name="id", type="int8", number=1),
        Column(name="day", type="text", number=2),
        Column(name="the, day", type="timestamp", number=3),
        Column(name="n", type="int4[]", number=5, missing="{1,NULL}"),
    ),
    key=("id",),
)
BY_MONTH = replace(
    table_of(FIRST, deletes="soft", partition_by=(PartitionBy(column="day", unit="month"),)), create_time="day"
)

SWITCHES = ("enableInCommitTimestamps", "enableRowTracking", "enableChangeDataFeed")
OF_ANOTHER_SERVER = {f"spark.databricks.delta.properties.defaults.{switch}": "true" for switch in SWITCHES}


@pytest.fixture
def lake_on_another_server(spark_url: str, store: LocalObjectStore) -> Iterator[SparkLake]:
    session = untuned_session(spark_url)
    set_confs(session, OF_ANOTHER_SERVER)
    tune(session)
    yield spark_lake(session, store)
    session.stop()


def have_bounds(log: DeltaLog, files: Iterable[Action], column: str) -> bool:
    inside = physical_fields(log.metadata(log.latest_version() or 0))[column][0]
    return all(inside in json.loads(file["stats"])["minValues"] for file in files)


def staged(store: LocalObjectStore, table: LakeTable) -> set[str]:
    area = table_prefix(STAGING_AREA, table.name)
    return {info.key.removeprefix(area).split("/")[1] for info in store.list_prefix(area)}


def test_names_that_are_mapped_and_data_partitions_follow_a_rename_and_a_default(
    searching_lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    table = BY_MONTH
    searching_lake.create_table(table)
    feed = Feed(store=store, table=table)
    whole = [event("i", id_, id_, **{"full name": f"n{id_}", "day": date(2024, id_, 1)}) for id_ in (1, 2, 3)]
    searching_lake.upsert(table, feed.claim(whole))
    searching_lake.upsert(table, feed.claim([event("d", 4, 3), event("u", 5, 1, **{"full name": "partial"})]))
    log = DeltaLog(store, lake_key(table.name))
    files = log.active_files(2)
    searching_lake.upsert(
        table,
        feed.claim([event("u", 6, 2, **{"full name": "n2", "day": date(2024, 2, 2), "a, b": None})], schema=WIDER),
    )
    described = log.read(3)
    assert described is not None
    assert (described.of_kind("add"), described.of_kind("remove"), len(described.of_kind("metaData"))) == ([], [], 1)
    with_properties(log, {STATS: "day"})  # a user's choice, without the id
    searching_lake.upsert(table, feed.claim([event("u", 7, 1, day="last", n=[2])], schema=LAST))
    found = {row["id"]: row for row in rows_by_spark(session, store, table)}
    seen = {
        id_: (row["day"], str(row["the, day"]), row["n"], row["_cdc_the, day_month"], row[DELETED])
        for id_, row in found.items()
    }
    assert seen == {
        1: ("last", "2024-01-01 00:00:00", [2], "2024-01", False),
        2: ("n2", "2024-02-02 00:00:00", [1, None], "2024-02", False),
        3: ("n3", "2024-03-01 00:00:00", [1, None], "2024-03", True),
    }
    assert searching_lake.read_columns(table) == ("id", "day", "the, day", "n")
    assert {*found[1][STATE]["columns"]} <= {"day", "the, day", "n", "a, b"}
    new = log.active_files(searching_lake.read_version(table) or 0)
    assert not {path for path, _ in files} & {path for path, _ in new}
    assert have_bounds(log, new.values(), "id")
    searching_lake.optimize(table)
    assert {row["id"] for row in rows_by_spark(session, store, table)} == {1, 2, 3}
    assert {bool(re.match(r"\d{8}T\d{6}Z-", name)) for name in staged(store, table)} == {True}, (
        "cdc clean reads its age"
    )


def given_by_the_server(store: LocalObjectStore, table: LakeTable) -> list[str]:
    """Features and properties."""
    log = DeltaLog(store, lake_key(table.name))
    latest = log.latest_version() or 0
    properties = {f"delta.{switch}" for switch in SWITCHES} & log.metadata(latest)["configuration"].keys()
    return [*unknown_features(log.newest("protocol", latest)), *properties]


def test_what_a_server_gives_to_new_tables_does_not_reach_the_lake_s_table(
    searching_lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    table = table_of()
    searching_lake.create_table(table)
    feed = Feed(store=store, table=table)
    searching_lake.upsert(table, feed.claim([event("i", 1, 1, name="a", age=1)]))
    set_confs(session, OF_ANOTHER_SERVER)
    columns = (*table.schema.columns, Column(name="note", type="text"))
    wider = replace(table.schema, columns=columns)
    searching_lake.upsert(table, feed.claim([event("i", 2, 2, name="b", age=2, note="n")], schema=wider))
    searching_lake.upsert(table, feed.claim([event("u", 3, 1, name="c", age=1, note="m")], schema=wider))
    assert not given_by_the_server(store, table)
    assert {row["id"]: row["note"] for row in rows_by_spark(session, store, table)} == {1: "m", 2: "n"}


def test_what_a_server_gives_to_new_tables_does_not_reach_those_that_spark_creates(
    lake_on_another_server: SparkLake, store: LocalObjectStore
) -> None:
    lake, kept = lake_on_another_server, table_of(keeps_history=True)
    named = replace(PEOPLE, columns=(*PEOPLE.columns[:-1], Column(name="full years", type="int4")))
    mapped = table_of(named, name="shop.public.mapped")
    for table in (kept, mapped):
        publish(lake, store, table, [(1, "a", 1)], at=5, fence=0)
        lake.upsert(table, Feed(store=store, table=table).claim([event("d", 6, 1)]))
    assert spans(store, kept) == {1: [("a", 5, 6)]}
    assert lake_values(store, mapped) == {}
    assert [given_by_the_server(store, each) for each in (kept, history_of(kept), mapped)] == [[], [], []]
