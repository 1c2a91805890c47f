"""Claims applied by an own commit: beside other writers, over what they left, and killed on the way."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.delta_log import Commit, DeltaLog
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.session import configured
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.steps import Moment, OnStep, no_step
from tests.support.lake import Feed, event, lake_values, rows_by_spark, table_of, values_by_id
from tests.support.lakes import spark_lake
from tests.support.reference.model import Event


class KilledError(Exception):
    """What ends a process, as far as the lake can see."""


@pytest.fixture
def feed(lake: SparkLake, store: LocalObjectStore) -> Feed:
    table = table_of()
    lake.create_table(table)
    return Feed(store=store, table=table)


def people(*ids: int, at: int = 1, age: int = 1, operation: str = "i") -> list[Event]:
    return [event(operation, at, id_, name=f"n{id_}", age=age) for id_ in ids]


def lake_of(session: SparkSession, store: LocalObjectStore, on_step: OnStep) -> SparkLake:
    return spark_lake(session, store, on_step=on_step)


def once(name: str, moment: Moment, act: Callable[[], object]) -> OnStep:
    """Acts at the first such moment."""
    done: list[str] = []

    def on_step(step: str, at: Moment) -> None:
        if (step, at) == (name, moment) and not done:
            done.append(step)
            act()

    return on_step


def sql_name(store: LocalObjectStore, table: LakeTable) -> str:
    return table_at(store.spark_url(lake_key(table.name)))


def last_commit(store: LocalObjectStore, table: LakeTable) -> Commit:
    log = DeltaLog(store, lake_key(table.name))
    found = log.read(log.latest_version() or 0)
    assert found is not None
    return found


def test_a_claim_is_one_commit_that_marks_old_rows_and_adds_new_ones(
    lake: SparkLake, feed: Feed, store: LocalObjectStore
) -> None:
    lake.upsert(feed.table, feed.claim(people(1, 2, 3, 4)))
    outcome = lake.upsert(feed.table, feed.claim([*people(2, 5, at=2, age=7), event("d", 2, 3), event("d", 2, 9)]))
    counts = outcome.counts
    assert (counts.inserted, counts.updated, counts.deleted, counts.ignored) == (1, 1, 1, 1)
    commit = last_commit(store, feed.table)
    marked, new = commit.of_kind("add")
    assert [remove["path"] for remove in commit.of_kind("remove")] == [marked["path"]]
    assert (marked["deletionVector"]["cardinality"], json.loads(marked["stats"])["tightBounds"]) == (2, False)
    assert json.loads(new["stats"])["numRecords"] == 2
    assert outcome.bytes_written == new["size"] + marked["deletionVector"]["sizeInBytes"]
    assert set(lake_values(store, feed.table)) == {(1,), (2,), (4,), (5,)}


def test_a_file_without_live_rows_leaves_the_table(lake: SparkLake, feed: Feed, store: LocalObjectStore) -> None:
    lake.upsert(feed.table, feed.claim(people(1, 2)))
    lake.upsert(feed.table, feed.claim(people(1, at=2)))
    lake.upsert(feed.table, feed.claim([event("d", 3, 2)]))
    commit = last_commit(store, feed.table)
    assert (len(commit.of_kind("remove")), commit.of_kind("add")) == (1, [])
    assert set(lake_values(store, feed.table)) == {(1,)}


def test_who_loses_the_race_for_a_version_reads_the_table_again(
    lake: SparkLake, feed: Feed, store: LocalObjectStore, session: SparkSession
) -> None:
    for number in (1, 2, 3):
        lake.upsert(feed.table, feed.claim(people(number, number + 10, at=number)))
    on_step = once("lake_table.merge", Moment.BEFORE, lambda: lake.optimize(feed.table))
    outcome = lake_of(session, store, on_step).upsert(feed.table, feed.claim(people(2, 3, at=9, age=9, operation="u")))
    assert (outcome.counts.updated, outcome.lake_version) == (2, 5)
    values = {id_: age for (id_,), (_, age) in lake_values(store, feed.table).items()}
    assert values == {1: 1, 11: 1, 2: 9, 12: 1, 3: 9, 13: 1}
    assert values_by_id(feed.table, rows_by_spark(session, store, feed.table)) == lake_values(store, feed.table)


@pytest.mark.parametrize(
    ("place", "moment"),
    [
        ("lake_files.write", Moment.AFTER),
        ("lake_vectors.put", Moment.AFTER),
        ("lake_table.merge", Moment.AFTER),
    ],
)
def test_a_claim_that_was_killed_on_the_way_counts_once(
    lake: SparkLake, feed: Feed, store: LocalObjectStore, session: SparkSession, place: str, moment: Moment
) -> None:
    lake.upsert(feed.table, feed.claim(people(1, 2, 3)))
    work = feed.claim(people(2, at=2, age=5, operation="u"))

    def die() -> None:
        raise KilledError

    with pytest.raises(KilledError):
        lake_of(session, store, once(place, moment, die)).upsert(feed.table, work)
    landed = (place, moment) == ("lake_table.merge", Moment.AFTER)
    assert lake.upsert(feed.table, work).already_applied == landed
    assert lake.read_version(feed.table) == 2
    assert lake_values(store, feed.table) == {(1,): ("n1", 1), (2,): ("n2", 5), (3,): ("n3", 1)}


def test_vectors_and_files_of_others_are_respected(
    lake: SparkLake, feed: Feed, store: LocalObjectStore, session: SparkSession
) -> None:
    """Spark's vectors, one of them in a file of several, and a file without statistics."""
    name = sql_name(store, feed.table)
    lake.upsert(feed.table, feed.claim(people(*range(1, 9))))
    with configured(session, {"spark.databricks.delta.stats.collect": "false"}):
        session.sql(f"INSERT INTO {name} SELECT id + 100, name, age, _cdc_version, false, NULL FROM {name}").collect()
    session.sql(f"DELETE FROM {name} WHERE id IN (2, 3, 102, 103)").collect()
    outcome = lake.upsert(
        feed.table, feed.claim([*people(2, 4, 104, at=5, age=4), event("d", 5, 105), event("d", 5, 102)])
    )
    counts = outcome.counts
    assert (counts.inserted, counts.updated, counts.deleted, counts.ignored) == (1, 2, 1, 1)
    expected = {(id_,) for id_ in (1, 2, 4, 5, 6, 7, 8, 101, 104, 106, 107, 108)}
    assert set(lake_values(store, feed.table)) == expected
    partial = lake.upsert(feed.table, feed.claim([event("u", 6, 104, age=6), event("u", 6, 103, age=6)]))
    assert (partial.counts.updated, partial.counts.incomplete) == (1, 1)
    assert lake_values(store, feed.table)[104,] == ("n104", 6)


def test_a_change_data_feed_is_kept_by_merge(
    lake: SparkLake, feed: Feed, store: LocalObjectStore, session: SparkSession
) -> None:
    name = sql_name(store, feed.table)
    lake.upsert(feed.table, feed.claim(people(1)))
    session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')").collect()
    lake.upsert(feed.table, feed.claim(people(1, at=2, age=2)))
    assert last_commit(store, feed.table).info["operation"] == "MERGE"
    url = store.spark_url(lake_key(feed.table.name))
    changes = session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2).load(url)
    assert {row["_change_type"] for row in changes.collect()} == {"update_preimage", "update_postimage"}


def test_commits_without_rows_keep_features_that_only_delta_maintains(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    """Of a commit without its own timestamp, Delta says that the table is broken."""
    lake.upsert(feed.table, feed.claim(people(1)))
    switched_on = "'delta.enableInCommitTimestamps' = 'true'"
    session.sql(f"ALTER TABLE {sql_name(store, feed.table)} SET TBLPROPERTIES ({switched_on})").collect()
    lake.upsert(feed.table, feed.claim(people(2, at=2)))
    nothing = feed.claim([])
    assert lake.upsert(feed.table, nothing).lake_version == 4
    assert last_commit(store, feed.table).info["inCommitTimestamp"]
    assert lake.upsert(feed.table, nothing).already_applied
    lake.upsert(feed.table, feed.claim(people(3, at=3)))
    assert sorted(row["id"] for row in rows_by_spark(session, store, feed.table)) == [1, 2, 3]
    fence = lake.read_fence(feed.table)
    assert fence is not None
    assert fence.number == 4


def test_a_new_process_reads_a_checkpoint_with_statistics_as_columns(
    session: SparkSession, store: LocalObjectStore
) -> None:
    """Statistics as columns hold moments, which the log's JSON cannot take as they are."""
    schema = TableSchema(
        columns=(Column(name="id", type="int8", number=1), Column(name="created_at", type="timestamptz", number=2)),
        key=("id",),
    )
    feed = Feed(store=store, table=table_of(schema))
    lake = lake_of(session, store, no_step)
    lake.create_table(feed.table)
    name, properties = (
        sql_name(store, feed.table),
        "'delta.checkpointInterval' = '1', 'delta.checkpoint.writeStatsAsStruct' = 'true'",
    )
    lake.upsert(
        feed.table, feed.claim([event("i", 1, id_, created_at=datetime(2026, 1, 1, tzinfo=UTC)) for id_ in (1, 2)])
    )
    session.sql(f"INSERT INTO {name} SELECT id + 10, created_at, _cdc_version, false, NULL FROM {name}").collect()
    session.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({properties})").collect()
    log = DeltaLog(store, lake_key(feed.table.name))
    assert log.checkpoint_before(3)[0] == 3
    outcome = lake_of(session, store, no_step).upsert(feed.table, feed.claim([event("d", 2, 12)]))
    assert (outcome.counts.deleted, len(rows_by_spark(session, store, feed.table))) == (1, 3)
