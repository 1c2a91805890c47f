"""The acceptance cases of SCD type 2 whose events come in any order."""

from dataclasses import replace

from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import CONFIRMED, DELETED, PARTIAL
from tests.support.history_tables import PEOPLE_OF_CASES, HistoryCase, Span, side_by_side, spans
from tests.support.lake import Feed, event, lake_table_rows, move, table_of, version
from tests.support.reference.model import Event

CASES: dict[str, tuple[list[list[Event]], dict[int, list[Span]]]] = {
    "9, a later value": (
        [[event("u", 10, 1, name="100")], [event("u", 20, 1, name="150")]],
        {1: [("100", 10, 20), ("150", 20, None)]},
    ),
    "11, the employees whose events come out of order": (
        [
            [event("u", 6, 5, name="owner"), event("d", 8, 6)],
            [event("u", 5, 5, name="manager")],
            [event("i", 7, 6, name="mechanic")],
        ],
        {5: [("manager", 5, 6), ("owner", 6, None)], 6: [("mechanic", 7, 8)]},
    ),
    "13, a delete of an unknown id, then an older update": (
        [[event("d", 20, 1)], [event("u", 10, 1, name="x")]],
        {1: [("x", 10, 20)]},
    ),
    "19, a life, a delete and another life": (
        [[event("u", 10, 1, name="a"), event("u", 20, 1, name="b")], [event("d", 30, 1), event("u", 40, 1, name="c")]],
        {1: [("a", 10, 20), ("b", 20, 30), ("c", 40, None)]},
    ),
    "20, an older event": (
        [[event("u", 10, 1, name="a")], [event("u", 5, 1, name="b")]],
        {1: [("b", 5, 10), ("a", 10, None)]},
    ),
    "21, an event between two": (
        [[event("u", 10, 1, name="a"), event("u", 20, 1, name="c")], [event("u", 15, 1, name="b")]],
        {1: [("a", 10, 15), ("b", 15, 20), ("c", 20, None)]},
    ),
    "23, events that change nothing count once another comes between them": (
        [
            [event("u", at, 1, name="Alice") for at in (5, 10, 15)],
            [event("u", 20, 1, name="Charlie")],
            [event("u", 12, 1, name="Bob")],
        ],
        {1: [("Alice", 5, 12), ("Bob", 12, 15), ("Alice", 15, 20), ("Charlie", 20, None)]},
    ),
    "a late value for an update that lacked it": (
        [
            [event("i", 10, 1, name="a", age=1), event("u", 30, 1, age=2)],
            [event("u", 20, 1, name="b", age=1)],
        ],
        {1: [("a", 10, 20), ("b", 20, 30), ("b", 30, None)]},
    ),
}
REPLAYED: dict[str, HistoryCase] = {
    "a value that no event had shows in no period, whether one claim has the events or several": (
        [
            [event("u", at, id_, age=1) for at in (35, 38) for id_ in (1, 2)],
            [event("u", 47, 1, name="x", age=2), event("d", 47, 2)],
        ],
        {2: {1: [("x", 47, None)]}},
    ),
    "a value that is replayed between two events that changed nothing parts their period": (
        [
            [event("i", 5, 1, name="Alice", age=1)],
            [event("u", at, 1, name="Alice", age=1) for at in (10, 15)],
            [],
            [event("u", 7, 1, name="Bob", age=1)],
        ],
        {4: {1: [("Alice", 5, 7), ("Bob", 7, 10), ("Alice", 10, None)]}},
    ),
    "an insert that is replayed between two deletes has a period up to the later": (
        [
            [],
            [event("d", 26, 2)],
            [event("d", at, 2) for at in (45, 57)],
            [event("i", 37, 2, name="short", age=1)],
        ],
        {4: {2: [("short", 37, 45)]}},
    ),
    "the new half of a key change takes what the old row had, as if it had come with its delete": (
        [
            [event("i", 5, 1, name="a", age=1)],
            move(10, (1,), (101,), age=31)[:1],
            [],
            move(10, (1,), (101,), age=31)[1:],
        ],
        {4: {1: [("a", 5, 10)], 101: [("a", 10, None)]}},
    ),
    "the new half takes what completes the old row beside it": (
        [
            [event("u", 7, 2, age=2)],
            move(10, (2,), (102,), age=31)[:1],
            [],
            [event("i", 6, 2, name="b", age=1), *move(10, (2,), (102,), age=31)[1:]],
        ],
        {4: {2: [("b", 6, 7), ("b", 7, 10)], 102: [("b", 10, None)]}},
    ),
    "both halves take what completes the old row beside them": (
        [[event("u", 7, 3, age=3)], [], [], [event("i", 6, 3, name="c", age=1), *move(11, (3,), (103,), age=33)]],
        {4: {3: [("c", 6, 7), ("c", 7, 11)], 103: [("c", 11, None)]}},
    ),
}
NAMED: dict[bool, dict[str, object]] = {True: {"name": "Alice"}, False: {}}
"""What an event has for the name: later ones lack it."""


def test_every_case_of_events_in_any_order(lake: SparkLake, store: LocalObjectStore) -> None:
    """All cases side by side, each with ids of its own: the first claim has the first events of each."""
    table = table_of(PEOPLE_OF_CASES, ordered=False, keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    arrivals: list[list[Event]] = []
    for each_claim, wanted in side_by_side({name: (claims, {3: found}) for name, (claims, found) in CASES.items()}):
        events = [
            replace(each, values={"age": 0, **each.values} if each.values.get("name") else each.values)
            for each in each_claim
        ]
        arrivals.append(events)
        lake.upsert(table, feed.claim(events))
        if wanted is not None:
            assert spans(store, table) == wanted
    before = lake.read_version(history_of(table))
    lake.upsert(table, feed.claim([each for events in arrivals for each in events]))
    assert (spans(store, table), lake.read_version(history_of(table))) == (wanted, before)
    lake.purge(table, version(100))
    assert spans(store, table) == wanted
    assert not any(row[DELETED] for row in lake_table_rows(store, history_of(table)))


def test_a_period_remembers_no_events_between_which_none_can_come_any_more(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    """An update that changes nothing is remembered, and each claim writes all that a period remembers."""
    table = table_of(ordered=False, keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    for at in range(5, 30, 5):
        work = feed.claim([event("u", at, 1, name="Alice", age=1), event("u", at, 2, age=1, **NAMED[at == 5])])
        lake.upsert(table, replace(work, horizon=version(at - 7) if at > 10 else ""))
    rows = lake_table_rows(store, history_of(table))
    assert [sorted(dict(row[CONFIRMED])) for row in rows] == [[version(15), version(20), version(25)]] * 2
    assert {version(at) for at in (15, 20, 25)} in [set(dict(row[PARTIAL])) for row in rows if row[PARTIAL]]
    lake.upsert(table, replace(feed.claim([event("u", 22, id_, name="Bob", age=1) for id_ in (1, 2)]), late=True))
    assert spans(store, table) == {
        1: [("Alice", 5, 22), ("Bob", 22, 25), ("Alice", 25, None)],
        2: [("Alice", 5, 22), ("Bob", 22, None)],
    }


def test_every_case_of_events_that_are_replayed_late(lake: SparkLake, store: LocalObjectStore) -> None:
    """While quarantined events may be replayed, deletes leave tombstones, and periods remember all their events.

    The last of the claims is the replay.
    """
    table = table_of(PEOPLE_OF_CASES, keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    for number, (events, wanted) in enumerate(side_by_side(REPLAYED), 1):
        lake.upsert(table, replace(feed.claim(events), late=number == 4, tombstones=True))
        if wanted is not None:
            assert spans(store, table) == wanted
