"""What a history shows of a time without it, and of the time before it began, in cases that share their claims."""

from dataclasses import replace

import pytest

from cdc_pipeline.errors import StaleEpoch
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import VALID_FROM
from tests.support.history_tables import PEOPLE_OF_CASES, HistoryCase, publish, side_by_side, spans
from tests.support.lake import NOW, Feed, event, lake_table_rows, lake_values, table_of, version

MEANWHILE: dict[str, HistoryCase] = {
    "a row that did not change goes on": (
        [[event("i", 1, 0, name="a", age=1)], [], [], [], [], [event("u", 10, 0, name="A", age=1)]],
        {6: {0: [("a", 1, 10), ("A", 10, None)]}},
    ),
    "a changed row ends a period and begins one": (
        [[event("i", 1, 1, name="b", age=1)], [], [event("u", 3, 1, name="B", age=1)]],
        {6: {1: [("b", 1, 3), ("B", 3, None)]}},
    ),
    "a deleted row ends its period, and may come back": (
        [[event("i", 1, 2, name="c", age=1)], [], [event("d", 4, 2)], [], [], [event("i", 11, 2, name="c", age=1)]],
        {6: {2: [("c", 1, 10), ("c", 11, None)]}},
    ),
    "a row that was changed and changed back goes on": (
        [
            [event("i", 1, 3, name="d", age=1)],
            [],
            [event("u", at, 3, name=name, age=1) for at, name in ((6, "other"), (7, "d"))],
        ],
        {6: {3: [("d", 1, None)]}},
    ),
    "a deleted row ends its last period": (
        [[event("i", 1, 4, name="e", age=1)], [event("u", 2, 4, name="e2", age=1)], [event("d", 8, 4)]],
        {6: {4: [("e", 1, 2), ("e2", 2, 10)]}},
    ),
    "a new row begins a period, which the next claim may end": (
        [[], [], [event("i", 5, 9, name="new", age=1)], [], [], [], [event("u", 12, 9, name="newer", age=1)]],
        {6: {9: [("new", 5, None)]}, 7: {9: [("new", 5, 12), ("newer", 12, None)]}},
    ),
    "a row that is incomplete since its delete takes no value from before, and ended right after its last event": (
        [[event("i", 1, 1, name="old", age=1)], [], [event("d", 4, 1)], [event("u", 9, 1, age=2)]],
        {6: {1: [("old", 1, 1)]}},
    ),
}
"""Claims with the history, without it in the third and fourth, and with it again. The fifth is without an event."""


def test_what_changed_meanwhile_ends_and_begins_periods(lake: SparkLake, store: LocalObjectStore) -> None:
    table = table_of(PEOPLE_OF_CASES, keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    for number, (events, wanted) in enumerate(side_by_side(MEANWHILE), 1):
        lake.upsert(replace(table, keeps_history=number not in (3, 4)), feed.claim(events))
        if wanted is not None:
            assert spans(store, table) == wanted
    begun = [row[VALID_FROM] for row in lake_table_rows(store, history_of(table)) if row["name"] == "B"]
    assert begun == [NOW]


INCOMPLETE: HistoryCase = (
    [
        [event("i", 11, 9, name="i", age=1)],
        [event("u", 20, id_, age=2) for id_ in (1, 2)],
        [event("u", 21, 1, name="a")],
        [event("i", 15, 2, name="b", age=1)],
    ],
    {
        3: {1: [("a", 21, None)], 9: [("i", 11, None)]},
        4: {1: [("a", 21, None)], 9: [("i", 11, None)], 2: [("b", 15, 20), ("b", 20, None)]},
    },
)
IN_ANY_ORDER: dict[str, HistoryCase] = {
    "an event from after the delete, older than other rows, begins a period after it": (
        [
            [event("i", 1, id_, name="a", age=1) for id_ in (1, 2)],
            [event("d", 13, 1), event("u", 19, 2, name="b", age=1)],
            [event("i", 15, 1, name="c", age=1)],
        ],
        {3: {1: [("a", 1, 13), ("c", 15, None)], 2: [("a", 1, 19), ("b", 19, None)]}},
    ),
    "an id whose tombstone was purged ends after its last event, and may come back": (
        [
            [
                event("i", 1, 1, name="a", age=1),
                event("i", 2, 2, name="a", age=1),
                event("u", 7, 2, name="a", age=1),
            ],
            [event("d", 8, 2), event("u", 5, 1, name="b", age=1)],
            [event("u", 9, 1, name="c", age=1)],
            [event("i", 10, 2, name="d", age=1)],
        ],
        {
            3: {1: [("a", 1, 5), ("b", 5, 9), ("c", 9, None)], 2: [("a", 2, 7)]},
            4: {1: [("a", 1, 5), ("b", 5, 9), ("c", 9, None)], 2: [("a", 2, 7), ("d", 10, None)]},
        },
    ),
    "a row changed at a version that had confirmed its period, and again": (
        [
            [each for id_ in (1, 2) for each in (event("i", 1, id_, name="a", age=1), event("u", 9, id_, age=1))],
            [event("u", 5, id_, name="b") for id_ in (1, 2)],
            [],
            [],
            [event("u", 6, 1, name="c")],
            [event("i", 30, 3, name="d", age=1)],
        ],
        {
            3: {1: [("a", 1, 9), ("b", 9, None)], 2: [("a", 1, 9), ("b", 9, None)]},
            6: {1: [("a", 1, 9), ("b", 9, 9), ("c", 9, None)], 2: [("a", 1, 9), ("b", 9, None)], 3: [("d", 30, None)]},
        },
    ),
    "a row that was incomplete is completed": INCOMPLETE,
}
"""The second and the fifth claim are without the history, and end with a purge."""


def test_what_changed_meanwhile_ends_and_begins_periods_in_any_order(lake: SparkLake, store: LocalObjectStore) -> None:
    table = table_of(PEOPLE_OF_CASES, ordered=False, keeps_history=True)
    lake.create_table(table)
    feed, off = Feed(store=store, table=table), replace(table, keeps_history=False)
    for number, (events, wanted) in enumerate(side_by_side(IN_ANY_ORDER), 1):
        is_off = number in (2, 5)
        work = replace(feed.claim(events), late=number == 4, tombstones=is_off or number == 4)
        lake.upsert(off if is_off else table, work)
        if is_off:
            lake.purge(off, version(9))
        if wanted is not None and not is_off:
            assert spans(store, table) == wanted


BEGUN: dict[str, HistoryCase] = {
    "a whole row is there from its last change on": (
        [
            [event("i", 1, id_, name=name, age=1) for id_, name in ((1, "a"), (2, "b"))],
            [event("u", 2, 2, name="c", age=1)],
            [event("u", 23, 1, name="d", age=1)],
        ],
        {3: {1: [("a", 1, 23), ("d", 23, None)], 2: [("c", 2, None)]}},
    ),
    "a row that was incomplete is completed": INCOMPLETE,
}


@pytest.mark.parametrize("ordered", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_history_that_is_switched_on_later_begins_with_the_rows_of_that_moment(
    lake: SparkLake, store: LocalObjectStore, *, ordered: bool
) -> None:
    begin(lake, store, BEGUN, before=False, ordered=ordered)


@pytest.mark.nightly
def test_a_row_that_was_incomplete_when_its_history_went_on_is_completed_in_it(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    begin(lake, store, {"ordered": INCOMPLETE}, before=True, ordered=True)


def begin(
    lake: SparkLake, store: LocalObjectStore, cases: dict[str, HistoryCase], *, before: bool, ordered: bool
) -> None:
    """Claims without the history, or with it `before`, without it, with it, and with it of late events."""
    table = table_of(PEOPLE_OF_CASES, ordered=ordered, keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    for number, (events, wanted) in enumerate(side_by_side(cases), 1):
        has_history = number > 2 or (before and number == 1)
        work = replace(feed.claim(events), late=number == 4, tombstones=number == 4)
        lake.upsert(replace(table, keeps_history=has_history), work)
        if wanted is not None:
            assert spans(store, table) == wanted


@pytest.mark.parametrize("exported", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_an_incomplete_row_takes_no_value_from_before_a_snapshot_that_lacks_it(
    lake: SparkLake, store: LocalObjectStore, *, exported: bool
) -> None:
    """Row 5 was withheld from the snapshot. Its history has the snapshot at once, or once it is switched on again."""
    table = table_of(keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("u", 3, 5, age=5), event("u", 10, 6, age=6)]))
    publish(lake, store, replace(table, keeps_history=exported), [(1, "a", 1)], at=9, fence=1)
    again = [event("u", 12, 5, name="x"), event("u", 13, 6, name="y", age=6)]
    lake.upsert(table, replace(feed.claim(again), cutoff_version=version(9)))
    assert spans(store, table) == {1: [("a", 9, None)], 6: [("y", 13, None)]}
    assert lake_values(store, table) == {(1,): ("a", 1), (5,): ("x", None), (6,): ("y", 6)}


def test_a_row_that_another_export_of_a_position_lacked_meanwhile_ends_also_if_its_table_keeps_it(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    table = table_of(deletes="soft", keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    publish(lake, store, table, [(1, "a", 1), (3, "c", 3)], at=5, fence=0, name="mon")
    publish(lake, store, replace(table, keeps_history=False), [(1, "a", 1)], at=5, fence=0, name="tue")
    lake.upsert(table, replace(feed.claim([event("u", 7, 1, name="b", age=1)]), cutoff_version=version(5)))
    assert spans(store, table) == {1: [("a", 5, 7), ("b", 7, None)], 3: [("c", 5, 5)]}


def test_a_delete_meanwhile_ends_a_row_of_which_a_later_update_has_not_all_values(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    """The update of row 1 changed nothing, that of row 2 began a period."""
    table = table_of(ordered=False, keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    ids = (1, 2)
    updates = [event("u", 15, id_, age=id_) for id_ in ids]
    lake.upsert(table, feed.claim([event("i", 1, id_, name="a", age=1) for id_ in ids] + updates))
    lake.upsert(replace(table, keeps_history=False), feed.claim([event("d", 12, id_) for id_ in ids]))
    lake.upsert(table, feed.claim([event("i", 30, 3, name="c", age=3)]))
    assert spans(store, table) == {1: [("a", 1, 12)], 2: [("a", 1, 12)], 3: [("c", 30, None)]}


def test_an_incomplete_row_takes_no_value_from_an_incomplete_one_that_was_deleted_meanwhile(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    table = table_of(keeps_history=True)
    lake.create_table(table)
    feed, off = Feed(store=store, table=table), replace(table, keeps_history=False)
    lake.upsert(table, feed.claim([event("u", 3, 5, age=5)]))
    lake.upsert(off, feed.claim([event("d", 4, 5)]))
    lake.upsert(off, feed.claim([event("u", 10, 5, name="x")]))
    lake.upsert(table, feed.claim([event("u", 13, 6, name="y", age=6)]))
    assert spans(store, table) == {6: [("y", 13, None)]}
    lake.upsert(table, feed.claim([event("u", 14, 5, age=7)]))
    assert spans(store, table) == {5: [("x", 14, None)], 6: [("y", 13, None)]}


def test_an_older_snapshot_that_came_meanwhile_is_taken_over_once(lake: SparkLake, store: LocalObjectStore) -> None:
    """It corrects row 1. The claim after it has what the history has, and more; its first try is killed."""
    table = table_of(keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, id_, name="x", age=1) for id_ in (1, 2, 3)]))
    later = [event("i", 10, 4, name="new", age=1), event("u", 11, 2, name="X", age=1), event("d", 12, 3)]
    lake.upsert(table, feed.claim(later))
    feed.next_number = 2
    again = replace(feed.claim(later, [event("i", 13, 5, name="newer", age=1)]), cutoff_version=version(5))
    people = [(1, "y", 1), (2, "x", 1), (3, "x", 1)]
    publish(lake, store, replace(table, keeps_history=False), people, at=5, fence=1, replaces=2)
    commits: list[int] = []

    def may_commit() -> None:
        commits.append(1)
        if len(commits) == 3:
            raise StaleEpoch("the lease is lost")

    with pytest.raises(StaleEpoch):
        lake.upsert(table, replace(again, claim_id="killed"), may_commit=may_commit)
    assert lake_values(store, table)[(2,)] == ("x", 1)
    lake.upsert(table, replace(again, claim_id="again"))
    assert spans(store, table) == {
        1: [("x", 1, 5), ("y", 5, None)],
        2: [("x", 1, 11), ("X", 11, None)],
        3: [("x", 1, 12)],
        4: [("new", 10, None)],
        5: [("newer", 13, None)],
    }
    assert lake_values(store, table) == {(1,): ("y", 1), (2,): ("X", 1), (4,): ("new", 1), (5,): ("newer", 1)}
