"""A history that was switched off for a while shows the table's rows again once it is switched on."""

import shutil
from dataclasses import replace
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import BEFORE_ALL, DELETED, VALID_FROM, VALID_TO, Column
from cdc_pipeline.steps import Moment
from tests.support.history_tables import publish, spans
from tests.support.lake import (
    NOW,
    PEOPLE,
    Feed,
    claim_of,
    commit_time,
    event,
    lake_table_rows,
    lake_values,
    move,
    table_of,
    version,
)
from tests.support.lakes import spark_lake
from tests.support.reference.model import Event


@pytest.fixture
def table(lake: SparkLake) -> LakeTable:
    table = table_of(keeps_history=True)
    lake.create_table(table)
    return table


@pytest.fixture
def feed(store: LocalObjectStore, table: LakeTable) -> Feed:
    return Feed(store=store, table=table)


def unordered(lake: SparkLake, store: LocalObjectStore) -> tuple[LakeTable, Feed]:
    """A table whose events may come in any order."""
    table = table_of(ordered=False, keeps_history=True, name="shop.public.others")
    lake.create_table(table)
    return table, Feed(store=store, table=table)


def test_a_truncate_meanwhile_ends_the_periods_of_a_table_without_order(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    table, feed = unordered(lake, store)
    lake.upsert(table, feed.claim([event("i", 1, id_, name="a", age=1) for id_ in (1, 2)]))
    lake.upsert(replace(table, keeps_history=False), feed.claim([event("t", 3)]))
    lake.upsert(table, feed.claim([event("i", 5, 2, name="b", age=1)]))
    assert spans(store, table) == {1: [("a", 1, 3)], 2: [("a", 1, 3), ("b", 5, None)]}


@pytest.mark.parametrize("exported", [True, False], ids=["by a snapshot", "without the history"])
def test_a_row_that_a_truncate_took_and_that_came_back_meanwhile_goes_on(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed, *, exported: bool
) -> None:
    """The snapshot supersedes the slice of the truncate, which the metadata store goes on to count."""
    people = {1: "a", 2: "b"}
    again = [event("i", 21, id_, name=name, age=1) for id_, name in people.items()]
    lake.upsert(table, feed.claim([event("i", 1, id_, name=name, age=1) for id_, name in people.items()]))
    meanwhile = feed.claim([event("t", 20), *again])
    if exported:
        publish(lake, store, table, [(id_, name, 1) for id_, name in people.items()], at=50, fence=2)
    else:
        lake.upsert(replace(table, keeps_history=False), meanwhile)
    cutoff = version(50) if exported else ""
    late = feed.claim([event("u", 60, 1, name="c", age=1)])
    lake.upsert(table, replace(late, late=True, cutoff_version=cutoff))
    wanted = {1: [("a", 1, 60), ("c", 60, None)], 2: [("b", 1, None)]}
    assert spans(store, table) == wanted
    lake.upsert(table, replace(feed.claim(move(70, (2,), (9,), age=1)), cutoff_version=cutoff))
    assert spans(store, table) == wanted | {2: [("b", 1, 70)], 9: [("b", 70, None)]}
    assert lake_values(store, table) == {(1,): ("c", 1), (9,): ("b", 1)}


def test_a_row_that_came_back_after_a_truncate_meanwhile_goes_on_beside_a_late_event_of_another_id(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    table, feed = unordered(lake, store)
    lake.upsert(table, feed.claim([event("i", 1, 2, name="b", age=1)]))
    meanwhile = feed.claim([event("t", 20), event("i", 21, 2, name="b", age=1)])
    lake.upsert(replace(table, keeps_history=False), meanwhile)
    lake.upsert(table, feed.claim([event("i", 15, 7, name="late", age=1), event("u", 60, 2, name="c")]))
    assert spans(store, table) == {2: [("b", 1, 60), ("c", 60, None)], 7: [("late", 15, 20)]}


def test_a_row_has_one_period_at_each_moment(
    store: LocalObjectStore, session: SparkSession, table: LakeTable, feed: Feed
) -> None:
    """The worker's clock is later than the changes of the claim, and all the more so in a backlog."""
    later = NOW + timedelta(days=1)
    lake = spark_lake(session, store, now=later)
    lake.upsert(table, feed.claim([event("i", 1, id_, name="a", age=1) for id_ in (1, 2)]))
    lake.upsert(replace(table, keeps_history=False), feed.claim([event("u", 3, 1, name="b", age=1), event("d", 4, 2)]))
    lake.upsert(table, feed.claim([event("u", 10, 1, name="c", age=1), event("i", 11, 2, name="d", age=1)]))
    rows = [row for row in lake_table_rows(store, history_of(table)) if not row[DELETED]]
    times = {(row["id"], row["name"]): (row[VALID_FROM], row[VALID_TO]) for row in rows}
    begun, changed, again = (commit_time(version(number)) for number in (1, 10, 11))
    assert times == {
        (1, "a"): (begun, changed),
        (1, "b"): (changed, changed),
        (1, "c"): (changed, None),
        (2, "a"): (begun, changed),
        (2, "d"): (again, None),
    }


def test_an_id_that_a_snapshot_brought_meanwhile_keeps_the_rows_of_the_snapshot(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed
) -> None:
    """The periods of the old id end at the snapshot. Its rows go on, also those that the next claim does not have."""
    pairs = replace(PEOPLE, key=("id", "age"))
    old = replace(table, schema=pairs)
    two = Feed(store=store, table=old)
    lake.upsert(old, two.claim([event("i", 1, 1, age, name=f"a{age}") for age in (1, 2)]))
    publish(lake, store, replace(table, keeps_history=False), [(1, "s", 2), (2, "s", 1)], at=5, fence=1)
    feed.next_number = two.next_number
    claim = feed.claim([event("u", 9, 2, name="b", age=1)])
    lake.upsert(table, replace(claim, cutoff_version=version(5)))
    assert spans(store, table) == {1: [("a1", 1, 5), ("a2", 1, 5), ("s", 5, None)], 2: [("s", 5, 9), ("b", 9, None)]}


def test_a_snapshot_that_was_published_without_the_history_is_taken_over(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed
) -> None:
    lake.upsert(table, feed.claim([event("i", 1, id_, name="a", age=1) for id_ in (1, 2)]))
    publish(lake, store, replace(table, keeps_history=False), [(1, "a", 1), (2, "mended", 1)], at=5, fence=1)
    lake.upsert(table, feed.claim([event("u", 7, 1, name="b", age=1)]))
    assert spans(store, table) == {1: [("a", 1, 7), ("b", 7, None)], 2: [("a", 1, 5), ("mended", 5, None)]}


def test_claims_that_change_nothing_leave_no_gap(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed, session: SparkSession
) -> None:
    """A gap would make the next claim read the whole table."""
    lake.upsert(table, feed.claim([event("i", 1, 1, name="a", age=1)]))
    lake.upsert(table, feed.claim([event("d", 2, 77)]))
    lake.upsert(table, feed.claim([]))
    commits = list[str]()

    def note(step: str, moment: Moment) -> None:
        if (step, moment) == ("lake_history.commit", Moment.BEFORE):
            commits.append(step)

    noting = spark_lake(session, store, on_step=note)
    noting.upsert(table, feed.claim([event("u", 3, 1, name="b", age=1)]))
    assert len(commits) == 1
    assert spans(store, table) == {1: [("a", 1, 3), ("b", 3, None)]}


def test_a_claim_that_only_changes_columns_leaves_the_gap_to_the_next(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed
) -> None:
    """A slice without rows does not say how new it is. The deleted row ended before what comes next, not after all."""
    lake.upsert(table, feed.claim([event("i", 1, id_, name="a", age=1) for id_ in (1, 2)]))
    lake.upsert(replace(table, keeps_history=False), feed.claim([event("d", 3, 2)]))
    wider = replace(PEOPLE, columns=(*PEOPLE.columns, Column(name="note", type="text")))
    empty, changed = feed.slice([], schema=wider), replace(table, schema=wider)
    lake.upsert(changed, claim_of([empty], [], empty.number, empty.number))
    lake.upsert(changed, feed.claim([event("i", 5, 2, name="b", age=1, note="x")], schema=wider))
    assert spans(store, changed) == {1: [("a", 1, None)], 2: [("a", 1, 5), ("b", 5, None)]}


@pytest.mark.parametrize("kept", [(1,), ()], ids=["beside an older row", "in an empty table"])
def test_an_id_that_was_deleted_meanwhile_ends_when_late_events_come_first(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed, kept: tuple[int, ...]
) -> None:
    """Nothing says when it was deleted: no row is as new as its period, and events of the claim may be older."""
    lake.upsert(table, feed.claim([event("i", 1 + id_, id_, name="a", age=1) for id_ in (*kept, 2)]))
    lake.upsert(replace(table, keeps_history=False), feed.claim([event("d", 5, 2)]))
    lake.upsert(table, replace(feed.claim([event("i", 4, 3, name="late", age=1)]), late=True))
    wanted = {id_: [("a", 1 + id_, None)] for id_ in kept} | {2: [("a", 3, 3)], 3: [("late", 4, None)]}
    assert spans(store, table) == wanted
    lake.upsert(table, feed.claim([event("i", 6, 2, name="b", age=1)]))
    assert spans(store, table) == wanted | {2: [("a", 3, 3), ("b", 6, None)]}


def test_an_id_that_an_older_export_lacks_was_away_also_if_a_later_event_confirms_its_values(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    """The slices behind the export's cutoff are applied again, and bring the id back."""
    table, feed = unordered(lake, store)
    lake.upsert(table, feed.claim([event("i", 1, id_, name="a", age=1) for id_ in (1, 2)]))
    later = feed.claim([event("u", 7, 2, name="a", age=1)])
    lake.upsert(table, later)
    publish(lake, store, table, [(1, "a", 1)], at=5, fence=1, replaces=lake.read_version(table))
    wanted = {1: [("a", 1, None)], 2: [("a", 1, 5), ("a", 7, None)]}
    assert spans(store, table) == wanted
    lake.upsert(table, replace(later, cutoff_version=version(5)))
    assert spans(store, table) == wanted


@pytest.mark.parametrize("ordered", [False, True])
def test_a_row_that_was_deleted_before_its_history_goes_on_is_not_brought_back_by_a_late_event(
    lake: SparkLake, store: LocalObjectStore, *, ordered: bool
) -> None:
    """Id 1 was deleted before the history began, id 3 while it was switched off."""
    table = table_of(ordered=ordered, keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    off = replace(table, keeps_history=False)

    def in_time(*events: Event) -> ClaimWork:
        return replace(feed.claim(events), tombstones=ordered)

    def late(*events: Event) -> ClaimWork:
        return replace(in_time(*events), late=ordered)

    lake.upsert(off, in_time(event("d", 20, 1), event("i", 21, 2, name="b", age=1)))
    lake.upsert(table, late(event("i", 10, 1, name="late", age=1)))
    wanted = {1: [("late", 10, 20)], 2: [("b", 21, None)]}
    assert spans(store, table) == wanted
    lake.upsert(off, in_time(event("d", 30, 3), event("i", 31, 4, name="d", age=1)))
    lake.upsert(table, late(event("i", 22, 3, name="late", age=1)))
    assert spans(store, table) == wanted | {3: [("late", 22, 30)], 4: [("d", 31, None)]}


def test_a_late_value_gets_its_place_between_those_that_the_row_had_when_its_history_began(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    """The last update of the rows did not have the name, which is as old as the insert."""
    table, feed = unordered(lake, store)
    events = [event("i", 10, id_, name="a", age=1) for id_ in (1, 2)] + [event("u", 30, id_, age=2) for id_ in (1, 2)]
    lake.upsert(replace(table, keeps_history=False), feed.claim(events))
    lake.upsert(table, feed.claim([event("i", 31, 3, name="c", age=1)]))
    assert spans(store, table) == {1: [("a", 30, None)], 2: [("a", 30, None)], 3: [("c", 31, None)]}
    lake.upsert(table, feed.claim([event("u", 20, 1, name="x", age=1), event("u", 5, 2, name="x", age=0)]))
    found = {id_: periods[-1] for id_, periods in spans(store, table).items()}
    assert found == {1: ("x", 30, None), 2: ("a", 30, None), 3: ("c", 31, None)}


@pytest.mark.parametrize("exported", [False, True], ids=["begins empty", "exported as of the start"])
def test_a_history_of_before_is_refused_when_its_table_reads_the_stream_from_its_start_again(
    lake: SparkLake, store: LocalObjectStore, table: LakeTable, feed: Feed, *, exported: bool
) -> None:
    """The table was removed without its lake, and listed again; the stream brings the same changes."""
    claim = feed.claim([event("i", 1, 1, name="a", age=1), event("u", 5, 1, name="b", age=1)])
    people, at = ([(3, "c", 1)], BEFORE_ALL) if exported else ([], "")
    publish(lake, store, table, people, at=at, fence=0)
    lake.upsert(table, claim)
    before, again = spans(store, table), replace(table, table_uuid="uuid-2")
    with pytest.raises(LakeError, match=r"from before the table was removed.*move the folder .*away"):
        publish(lake, store, again, people, at=at, fence=0, name="again")
    assert spans(store, again) == before
    shutil.rmtree(f"{store.filesystem()[1]}/{lake_key(history_of(table).name)}")
    publish(lake, store, again, people, at=at, fence=0, name="again")
    lake.upsert(again, claim)
    assert spans(store, again) == before
