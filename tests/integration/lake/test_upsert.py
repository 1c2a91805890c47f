"""Claims merged into real Delta tables by a real Spark server."""

from datetime import date

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.errors import FenceMismatch
from cdc_pipeline.lake import ClaimWork, KeyRange
from cdc_pipeline.lake.schema_change import SchemaConflict
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.settings import PartitionBy
from tests.support.lake import PEOPLE, Feed, claim_of, event, lake_rows, lake_values, move, table_of

pytestmark = pytest.mark.xdist_group("spark")

ALICE, BOB = {"name": "alice", "age": 30}, {"name": "bob", "age": 40}


@pytest.fixture
def feed(lake: SparkLake, store: LocalObjectStore) -> Feed:
    table = table_of()
    lake.create_table(table)
    return Feed(store=store, table=table)


def test_inserts_updates_and_deletes_arrive_and_are_counted(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    first = lake.upsert(
        feed.table, feed.claim([event("i", 1, 1, **ALICE), event("i", 2, 2, **BOB), event("i", 3, 3, **BOB)])
    )
    work = feed.claim(
        [event("u", 4, 1, name="Alice", age=31), event("d", 5, 2), event("i", 6, 4, **BOB)],
        [event("u", 7, 1, name="Alice", age=32), event("d", 8, 99)],
    )
    second = lake.upsert(feed.table, work)
    assert (first.inserted, first.updated, first.deleted, first.ignored) == (3, 0, 0, 0)
    assert (second.inserted, second.updated, second.deleted, second.ignored) == (1, 1, 1, 1)
    assert (second.rows_read, second.already_applied) == (5, False)
    assert second.bytes_written > 0
    assert lake_values(session, store, feed.table) == {(1,): ("Alice", 32), (3,): ("bob", 40), (4,): ("bob", 40)}


def test_a_claim_applied_twice_leaves_the_same_table_and_no_new_version(lake: SparkLake, feed: Feed) -> None:
    work = feed.claim([event("i", 1, 1, **ALICE)])
    lake.upsert(feed.table, work)
    version = lake.read_version(feed.table)
    again = lake.upsert(feed.table, work)
    assert again.already_applied
    assert lake.read_version(feed.table) == version


def test_events_that_the_lake_has_already_change_nothing(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    events = [event("i", 5, 1, **ALICE), event("i", 6, 2, **BOB)]
    lake.upsert(feed.table, feed.claim(events))
    before = lake_rows(session, store, feed.table)
    outcome = lake.upsert(feed.table, feed.claim([*events, event("u", 3, 2, name="old", age=1)]))
    assert (outcome.inserted, outcome.updated, outcome.deleted, outcome.ignored) == (0, 0, 0, 2)
    assert outcome.bytes_written == 0
    assert lake_rows(session, store, feed.table) == before


def test_the_fence_names_the_slices_of_the_last_claim(lake: SparkLake, feed: Feed) -> None:
    work = feed.claim([event("i", 1, 1, **ALICE)], [], [event("i", 2, 2, **BOB)])
    lake.upsert(feed.table, work)
    fence = lake.read_fence(feed.table)
    assert fence is not None
    assert (fence.number, fence.claim_id, fence.snapshot_id) == (3, work.claim_id, None)
    assert fence.slices == tuple(content.identity for content in work.slices)


def test_a_claim_without_rows_moves_the_fence_alone(lake: SparkLake, feed: Feed) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE)]))
    outcome = lake.upsert(feed.table, feed.claim([], []))
    fence = lake.read_fence(feed.table)
    assert fence is not None
    assert (fence.number, outcome.already_applied) == (3, False)
    assert lake.upsert(feed.table, feed.claim([event("i", 2, 2, **BOB)])).inserted == 1


def test_a_claim_that_does_not_follow_the_fence_is_refused(lake: SparkLake, feed: Feed) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE)]))
    feed.claim([event("i", 2, 2, **BOB)])
    with pytest.raises(FenceMismatch, match="at slice 1; expected 2"):
        lake.upsert(feed.table, feed.claim([event("i", 3, 3, **BOB)]))


def test_another_slice_under_an_applied_number_is_refused(lake: SparkLake, feed: Feed) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE)]))
    feed.next_number = 1
    with pytest.raises(FenceMismatch, match="differing numbers: \\[1\\]"):
        lake.upsert(feed.table, feed.claim([event("i", 1, 1, **BOB)]))


def test_a_worker_that_was_overtaken_proves_its_claim_from_the_log(lake: SparkLake, feed: Feed) -> None:
    old = feed.claim([event("i", 1, 1, **ALICE)])
    lake.upsert(feed.table, old)
    lake.upsert(feed.table, feed.claim([event("i", 2, 2, **BOB)]))
    lake.optimize(feed.table)
    assert lake.upsert(feed.table, old).already_applied


def test_a_fence_conf_left_behind_by_others_does_not_silence_a_claim(
    lake: SparkLake, feed: Feed, session: SparkSession
) -> None:
    session.conf.set("spark.databricks.delta.write.txnAppId", feed.table.app_id)
    session.conf.set("spark.databricks.delta.write.txnVersion", "999")
    assert lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE)])).inserted == 1
    left = session.conf.getAll
    assert "spark.databricks.delta.write.txnVersion" not in left
    assert "spark.databricks.delta.commitInfo.userMetadata" not in left


def test_absent_columns_keep_their_latest_value_in_the_claim_and_in_the_lake(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE), event("i", 2, 2, **BOB), event("i", 3, 3, **BOB)]))
    work = feed.claim(
        [event("u", 4, 1, age=31), event("u", 5, 1, age=32), event("u", 6, 2, name="Bob")],
        [event("u", 7, 2, age=41), event("i", 8, 4, **ALICE), event("u", 9, 4, age=None)],
        [event("d", 10, 3), event("i", 11, 3, name="new", age=None), event("u", 12, 3, age=5)],
    )
    lake.upsert(feed.table, work)
    assert lake_values(session, store, feed.table) == {
        (1,): ("alice", 32),
        (2,): ("Bob", 41),
        (3,): ("new", 5),
        (4,): ("alice", None),
    }


def test_a_row_deleted_and_updated_again_inherits_nothing(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE)]))
    lake.upsert(feed.table, feed.claim([event("d", 2, 1), event("u", 3, 1, age=7)]))
    assert lake_values(session, store, feed.table) == {(1,): (None, 7)}


def test_key_chains_and_swaps_carry_absent_columns_along(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    people = [event("i", number, number, name=f"n{number}", age=number) for number in range(1, 6)]
    lake.upsert(feed.table, feed.claim(people))
    moves = [(1, 10), (10, 11), (11, 12), (12, 13), (13, 14), (2, 90), (3, 2), (90, 3)]
    events = [event("u", 10, 2, age=22)]
    for number, (old, new) in enumerate(moves, start=11):
        events += move(number, (old,), (new,))
    events += [event("i", 30, 20, name="fresh", age=0), *move(31, (20,), (21,), age=1)]
    lake.upsert(feed.table, feed.claim(events))
    assert lake_values(session, store, feed.table) == {
        (14,): ("n1", 1),
        (3,): ("n2", 22),
        (2,): ("n3", 3),
        (4,): ("n4", 4),
        (5,): ("n5", 5),
        (21,): ("fresh", 1),
    }


def test_a_truncate_takes_what_is_older_and_leaves_what_is_newer(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE), event("i", 2, 2, **BOB), event("i", 20, 9, **BOB)]))
    outcome = lake.upsert(feed.table, feed.claim([event("i", 3, 3, **BOB)], [event("t", 4)], [event("i", 5, 1, **BOB)]))
    assert (outcome.inserted, outcome.updated, outcome.deleted) == (0, 1, 1)
    assert lake_values(session, store, feed.table) == {(1,): ("bob", 40), (9,): ("bob", 40)}


def test_soft_deletes_keep_the_last_values_also_of_rows_born_in_the_claim(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    table = table_of(deletes="soft")
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, 1, **ALICE), event("i", 2, 2, **BOB)]))
    lake.upsert(table, feed.claim([event("d", 3, 1), event("u", 4, 2, name="b", age=1), event("d", 5, 2)]))
    lake.upsert(table, feed.claim([event("i", 6, 3, **ALICE), event("d", 7, 3), event("d", 8, 4)]))
    rows = lake_rows(session, store, table)
    assert {id_[0]: (row["name"], row["age"], row["_cdc_deleted"]) for id_, row in rows.items()} == {
        1: ("alice", 30, True),
        2: ("b", 1, True),
        3: ("alice", 30, True),
    }
    lake.upsert(table, feed.claim([event("i", 9, 1, **BOB)], [event("t", 8)]))
    rows = lake_rows(session, store, table)
    assert {id_[0]: row["_cdc_deleted"] for id_, row in rows.items()} == {1: False, 2: True, 3: True}


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
    assert lake_values(session, store, table) == {(2,): expected}


def test_composite_ids_and_text_ranges_find_their_rows(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    columns = (Column(name="state", type="text"), Column(name="city", type="text"), Column(name="n", type="int4"))
    table = table_of(TableSchema(columns=columns, key=("state", "city")))
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, "US", "S", n=1), event("i", 2, "C'A\\", "S", n=2)]))
    ranges = (KeyRange("C'A\\", "C'A\\"), KeyRange("US", "US"))
    lake.upsert(table, feed.claim([event("u", 3, "US", "S", n=3), event("d", 4, "C'A\\", "S")], ranges=ranges))
    assert lake_values(session, store, table) == {("US", "S"): (3,)}


def test_a_changed_partition_column_moves_the_row_and_doubles_nothing(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    columns = (Column(name="id", type="int8"), Column(name="at", type="date"), Column(name="kind", type="text"))
    partition_by = (PartitionBy(column="at", unit="month"), PartitionBy(column="kind"))
    table = table_of(TableSchema(columns=columns, key=("id",)), partition_by=partition_by)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(
        table,
        feed.claim([event("i", 1, 1, at=date(2024, 1, 31), kind="a/b=c d"), event("i", 2, 2, at=None, kind=None)]),
    )
    lake.upsert(table, feed.claim([event("u", 3, 1, at=date(2024, 2, 1)), event("u", 4, 2, kind="k")]))
    rows = lake_rows(session, store, table)
    assert {id_[0]: (row["_cdc_at_month"], row["_cdc_kind_value"]) for id_, row in rows.items()} == {
        1: ("2024-02", "a/b=c d"),
        2: (None, "k"),
    }


def test_an_added_column_is_added_to_the_lake_and_older_slices_lack_it(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, **ALICE)]))
    wider = TableSchema(columns=(*PEOPLE.columns, Column(name="e mail", type="text")), key=("id",))
    old_events = [event("u", 2, 1, name="A", age=31), event("i", 3, 2, **BOB)]
    new_events = [event("u", 4, 2, name="B", age=41, **{"e mail": "b@x"})]
    made = [feed.slice(old_events), feed.slice(new_events, schema=wider)]
    lake.upsert(feed.table, claim_of(made, [*old_events, *new_events], 2, 3))
    rows = lake_rows(session, store, feed.table)
    assert {id_[0]: (row["name"], row["e mail"]) for id_, row in rows.items()} == {1: ("A", None), 2: ("B", "b@x")}


def test_a_changed_type_is_refused_by_name(lake: SparkLake, feed: Feed) -> None:
    changed = TableSchema(columns=(PEOPLE.columns[0], PEOPLE.columns[1], Column(name="age", type="text")), key=("id",))
    version = lake.read_version(feed.table)
    with pytest.raises(SchemaConflict, match="'age' is text \\(STRING\\) and INT in the lake"):
        lake.upsert(feed.table, feed.claim([event("i", 1, 1, name="a", age="x")], schema=changed))
    assert lake.read_version(feed.table) == version


def test_versions_below_the_cutoff_are_ignored(
    lake: SparkLake, feed: Feed, session: SparkSession, store: LocalObjectStore
) -> None:
    work = feed.claim([event("i", 1, 1, **ALICE), event("i", 5, 2, **BOB)])
    cut = ClaimWork(
        claim_id="cut", first_number=1, last_number=1, slices=work.slices, cutoff_version=event("i", 5, 2).version
    )
    assert lake.upsert(feed.table, cut).inserted == 1
    assert lake_values(session, store, feed.table) == {(2,): ("bob", 40)}
