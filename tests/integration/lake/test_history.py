"""History tables: snapshots, maintenance, and workers that are killed between both commits."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError, UsageError
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.lake_files import AFTER_ALL, LakeFiles
from cdc_pipeline.lake.protocol import KeyRange, LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.reader_view import reader_view_sql
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import CURRENT, VALID_FROM, VALID_TO
from cdc_pipeline.steps import Moment
from tests.support.doc_pages import blocks
from tests.support.history_tables import Span, publish, put_rows, spans
from tests.support.lake import NOW, PEOPLE, Feed, commit_time, event, lake_table_rows, lake_values, table_of, version
from tests.support.lakes import spark_lake


@pytest.fixture
def table(lake: SparkLake) -> LakeTable:
    table = table_of(keeps_history=True)
    lake.create_table(table)
    return table


@pytest.fixture
def feed(store: LocalObjectStore, table: LakeTable) -> Feed:
    return Feed(store=store, table=table)


def test_a_snapshot_begins_a_history_and_a_truncate_ends_all_rows(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed
) -> None:
    publish(lake, store, table, [(1, "n1", 1), (2, "n2", 2)], at=5, fence=0)
    assert {row[VALID_FROM] for row in lake_table_rows(store, history_of(table))} == {commit_time(version(5))}
    lake.upsert(
        table, feed.claim([event("i", 6, 3, name="n3", age=3), event("t", 7), event("i", 8, 5, name="n5", age=5)])
    )
    assert spans(store, table) == {1: [("n1", 5, 7)], 2: [("n2", 5, 7)], 3: [("n3", 6, 7)], 5: [("n5", 8, None)]}
    rows = lake_table_rows(store, history_of(table))
    assert {row["id"]: row[VALID_TO] for row in rows if not row[CURRENT]} == dict.fromkeys(
        (1, 2, 3), commit_time(version(7))
    )


def test_a_truncate_of_an_earlier_claim_ends_older_events_and_touches_no_other_ids(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    table = table_of(ordered=False, keeps_history=True, name="shop.public.others")
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", at, id_, name="a", age=1) for at, id_ in ((1, 1), (9, 2), (9, 3))]))
    lake.upsert(table, feed.claim([event("t", 5)]))
    lake.upsert(table, feed.claim([event("i", 2, 4, name="b", age=1), event("u", 3, 1, name="c", age=1)]))
    log = DeltaLog(store, lake_key(history_of(table).name))
    commit = log.read(log.latest_version() or 0)
    assert commit is not None
    assert commit.info["operationMetrics"]["numTargetRowsUpdated"] == "1"
    wanted = {1: [("a", 1, 3), ("c", 3, 5)], 2: [("a", 9, None)], 3: [("a", 9, None)], 4: [("b", 2, 5)]}
    assert spans(store, table) == wanted


def test_another_snapshot_adds_what_differs_and_keeps_what_was(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed
) -> None:
    publish(lake, store, table, [(1, "n1", 1), (2, "n2", 2), (3, "n3", 3)], at=5, fence=0)
    lake.upsert(table, feed.claim([event("u", 6, 1, name="m1", age=1)]))
    publish(lake, store, table, [(1, "m1", 1), (2, "m2", 2), (4, "n4", 4)], at=9, fence=1)
    wanted: dict[Any, list[Span]] = {
        1: [("n1", 5, 6), ("m1", 6, None)],
        2: [("n2", 5, 9), ("m2", 9, None)],
        3: [("n3", 5, 9)],
        4: [("n4", 9, None)],
    }
    assert spans(store, table) == wanted
    publish(lake, store, table, [(1, "m1", 1), (2, "m2", 2), (4, "n4", 4)], at=10, fence=1)
    assert spans(store, table) == wanted
    lake.upsert(table, feed.claim([event("d", 11, 4)]))
    assert spans(store, table)[4] == [("n4", 9, 11)]
    publish(lake, store, table, [], at=12, fence=2)
    assert {found[-1][2] for found in spans(store, table).values()} == {9, 11, 12}


def test_another_export_of_the_same_position_ends_and_begins_periods_there(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed
) -> None:
    """A source whose positions do not say what an export contains has one for all of them."""
    exports = {
        "mon": [(1, "a", 1), (2, "b", 2), (3, "c", 3)],
        "tue": [(1, "A", 1), (2, "b", 2), (4, "d", 4)],
        "wed": [(1, "AA", 1), (2, "b", 2), (3, "C", 3)],
    }
    for day, people in exports.items():
        publish(lake, store, table, people, at=5, fence=0, name=day)
    wanted: dict[Any, list[Span]] = {
        1: [("a", 5, 5), ("A", 5, 5), ("AA", 5, None)],
        2: [("b", 5, None)],
        3: [("c", 5, 5), ("C", 5, None)],
        4: [("d", 5, 5)],
    }
    assert spans(store, table) == wanted
    shown = put_rows(store, table, "shown", exports["wed"])
    latest = lake.read_version(history_of(table)) or 0
    assert lake.compare(history_of(table), shown, latest, as_of=version(5)).differing_rows == 0
    lake.upsert(table, feed.claim([event("u", 6, 1, name="e", age=1), event("i", 7, 4, name="f", age=1)]))
    wanted |= {1: [("a", 5, 5), ("A", 5, 5), ("AA", 5, 6), ("e", 6, None)], 4: [("d", 5, 5), ("f", 7, None)]}
    assert spans(store, table) == wanted


def test_a_row_that_an_export_of_a_later_position_lacked_comes_back_by_another_of_that_position(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    table = table_of(ordered=False, keeps_history=True)
    lake.create_table(table)
    publish(lake, store, table, [(1, "a", 1), (2, "b", 2)], at=3, fence=0, name="first")
    publish(lake, store, table, [(2, "b", 2)], at=9, fence=0, name="part")
    publish(lake, store, table, [(1, "a", 1), (2, "b", 2)], at=9, fence=0, name="whole")
    assert spans(store, table) == {1: [("a", 3, 9), ("a", 9, None)], 2: [("b", 3, None)]}


@pytest.mark.parametrize("ordered", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_another_export_of_a_position_ends_and_begins_periods_where_the_history_already_has_an_event_of_it(
    lake: SparkLake, store: LocalObjectStore, *, ordered: bool
) -> None:
    """The first export at 9 withheld the rows 1 to 3, which were then replayed. 4 was deleted before it and at it."""
    table = table_of(ordered=ordered, keeps_history=True)
    lake.create_table(table)
    publish(lake, store, table, [(id_, "a", 1) for id_ in range(1, 5)], at=3, fence=0)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("d", 5, 4), event("d", 9, 4)]))
    publish(lake, store, table, [], at=9, fence=1, name="part")
    replayed = feed.claim([event("i", 9, id_, name="a", age=1) for id_ in (1, 2, 3)])
    lake.upsert(table, replace(replayed, late=True, tombstones=True, cutoff_version=version(9)))
    assert spans(store, table) == {1: [("a", 3, None)], 2: [("a", 3, None)], 3: [("a", 3, None)], 4: [("a", 3, 5)]}
    wanted: dict[Any, list[Span]] = {
        1: [("a", 3, None)],
        2: [("a", 3, 9), ("b", 9, None)],
        3: [("a", 3, 9)],
        4: [("a", 3, 5), ("c", 9, None)],
    }
    for name in ("other", "the same again"):
        publish(lake, store, table, [(1, "a", 1), (2, "b", 1), (4, "c", 1)], at=9, fence=2, name=name)
        assert spans(store, table) == wanted


@pytest.mark.parametrize("ordered", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_row_that_another_export_of_a_position_withheld_comes_back_once_it_is_replayed(
    lake: SparkLake, store: LocalObjectStore, *, ordered: bool
) -> None:
    table = table_of(ordered=ordered, keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    publish(lake, store, table, [(1, "a", 1), (3, "c", 3)], at=5, fence=0, name="mon")
    publish(lake, store, table, [(1, "a", 1)], at=5, fence=0, name="tue")
    work = replace(feed.claim([event("i", 5, 3, name="c", age=3)]), late=True, cutoff_version=version(5))
    for claim_id in ("replay", "again"):
        lake.upsert(table, replace(work, claim_id=claim_id))
        assert spans(store, table) == {1: [("a", 5, None)], 3: [("c", 5, 5), ("c", 5, None)]}
    lake.upsert(table, replace(feed.claim([event("u", 7, 3, name="d")]), cutoff_version=version(5)))
    assert spans(store, table)[3] == [("c", 5, 5), ("c", 5, 7), ("d", 7, None)]


@pytest.mark.parametrize(
    ("place", "moment"),
    [
        ("lake_history.commit", Moment.AFTER),
        pytest.param("lake_history.commit", Moment.BEFORE, marks=pytest.mark.nightly),
        pytest.param("lake_table.merge", Moment.AFTER, marks=pytest.mark.nightly),
    ],
)
def test_a_claim_that_was_killed_on_the_way_counts_once(
    lake: SparkLake, feed: Feed, store: LocalObjectStore, session: SparkSession, place: str, moment: Moment
) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, id_, name="a", age=1) for id_ in (1, 2)]))
    work = feed.claim([event("u", 2, 1, name="b", age=1), event("d", 3, 2), event("i", 4, 2, name="c", age=1)])

    def die(step: str, at: Moment) -> None:
        if (step, at) == (place, moment):
            raise InterruptedError

    dying = spark_lake(session, store, on_step=die)
    with pytest.raises(InterruptedError):
        dying.upsert(feed.table, work)
    # whoever comes next may take the same slices as another claim
    lake.upsert(feed.table, replace(work, claim_id="another"))
    assert spans(store, feed.table) == {1: [("a", 1, 2), ("b", 2, None)], 2: [("a", 1, 3), ("c", 4, None)]}
    assert lake_values(store, feed.table) == {(1,): ("b", 1), (2,): ("c", 1)}
    assert lake.read_version(history_of(feed.table)) == 3


def test_closed_periods_lie_in_files_that_no_later_claim_reads(
    lake: SparkLake, store: LocalObjectStore, feed: Feed
) -> None:
    for at in range(1, 6):
        lake.upsert(feed.table, feed.claim([event("u", at, id_, name=f"n{at}", age=1) for id_ in range(20)]))
    before = spans(store, feed.table)
    lake.optimize(feed.table)
    history = history_of(feed.table)
    log = DeltaLog(store, lake_key(history.name))
    state = LakeTableStates().at(log, log.latest_version() or 0)
    files = LakeFiles(store=store, table=history, state=state, columns=(("id", "BIGINT"),))
    kind_of = {path: files.file(path)["partitionValues"][CURRENT] for path in state.files.paths()}
    assert sorted(kind_of.values()) == ["false", "true"]
    in_order, late = (replace(files, ending_from=oldest) for oldest in (AFTER_ALL, version(5)))
    one_person = (KeyRange(3, 3),)
    assert [kind_of[path] for path in in_order.candidates(one_person)] == ["true"]
    assert sorted(kind_of[path] for path in late.candidates(one_person)) == ["false", "true"]
    assert spans(store, feed.table) == before
    lake.vacuum(feed.table)
    assert spans(store, feed.table) == before


def test_readers_see_the_rows_as_of_a_moment_by_the_query_of_the_page(
    lake: SparkLake, store: LocalObjectStore, session: SparkSession
) -> None:
    table = table_of(name="shop.public.customers", keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    march = int((datetime(2026, 3, 1, tzinfo=UTC) - NOW).total_seconds())
    lake.upsert(table, feed.claim([event("i", march - 9, id_, name="a", age=1) for id_ in (1, 2)]))
    changes = [
        event("u", march - 1, 1, name="b", age=1),
        event("u", march + 1, 1, name="c", age=1),
        event("d", march + 2, 2),
    ]
    lake.upsert(table, feed.claim(changes))
    history = history_of(table)
    url = store.spark_url(lake_key(history.name))
    session.sql(reader_view_sql(history, url, lake.read_columns(history))).collect()
    (query,) = blocks("docs/how-to/history.md", "sql")
    assert {(row["id"], row["name"]) for row in session.sql(query).collect()} == {(1, "b"), (2, "a")}


def test_a_table_without_an_id_has_no_history(lake: SparkLake) -> None:
    bag = table_of(replace(PEOPLE, key=()), name="shop.public.bag", keeps_history=True)
    with pytest.raises(UsageError, match="have no key, and its history is to be kept"):
        lake.create_table(bag)


def test_a_table_without_an_id_whose_deletes_become_soft_is_refused_at_its_next_claim(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    bag = table_of(replace(PEOPLE, key=()), name="shop.public.bag")
    lake.create_table(bag)
    work = Feed(store=store, table=bag).claim([event("i", 1, 1, name="a", age=1)])
    with pytest.raises(UsageError, match="have no key, and its deletes are to be soft"):
        lake.upsert(replace(bag, deletes="soft"), work)


def test_another_table_of_the_name_stays_as_it_is(lake: SparkLake, feed: Feed) -> None:
    other = replace(table_of(), name=history_of(feed.table).name)
    lake.create_table(other)
    with pytest.raises(LakeError, match="which is no history table"):
        lake.upsert(feed.table, feed.claim([event("i", 1, 1, name="a", age=1)]))
    assert lake.read_version(other) == 0


def test_a_history_with_features_of_others_is_refused_before_anything_changes(
    lake: SparkLake, store: LocalObjectStore, session: SparkSession, feed: Feed
) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, name="a", age=1)]))
    url = store.spark_url(lake_key(history_of(feed.table).name))
    session.sql(f"ALTER TABLE {table_at(url)} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')").collect()
    work = feed.claim([event("d", 2, 1)])
    with pytest.raises(LakeError, match="has features or files"):
        lake.upsert(feed.table, work)
    assert lake_values(store, feed.table) == {(1,): ("a", 1)}


def test_a_history_is_compared_as_of_any_version(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed
) -> None:
    """`cdc verify` compares while later slices are applied."""
    events = [event("i", 1, 1, name="a", age=1), event("i", 2, 2, name="b", age=2), event("u", 4, 1, name="c", age=1)]
    lake.upsert(table, feed.claim([*events, event("d", 6, 2), event("i", 7, 3, name="d", age=3)]))
    people = {3: [(1, "a", 1), (2, "b", 2)], 6: [(1, "c", 1)], 7: [(1, "c", 1), (3, "d", 3)]}
    latest = lake.read_version(history_of(table)) or 0
    for at, rows in people.items():
        key = put_rows(store, table, f"at-{at}", rows)
        as_of = {wanted: lake.compare(history_of(table), key, latest, as_of=version(wanted)) for wanted in people}
        assert [wanted for wanted, found in as_of.items() if found.differing_rows == 0] == [at]
    assert lake.compare(history_of(table), key, latest).differing_rows == 0
