"""What every lake makes of events that are partial, late, repeated or without an id: docs/explanation/merge.md."""

from collections import Counter
from dataclasses import replace
from datetime import date
from itertools import product
from typing import Literal

import pytest

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.protocol import Lake, LakeTable
from cdc_pipeline.record import DELETED, Column, Operation, TableSchema
from tests.support.lake import Feed, event, move, table_of, version
from tests.support.lakes import Arm, memory_arm, merge_arm, publish_doubled, spark_arm
from tests.support.reference.model import Event
from tests.support.shapes import columns

HISTORY = TableSchema(columns=(Column(name="n", type="int4"), Column(name="x", type="float8")), key=())
SAME = 7.5
BAG = columns("name text 1", "ends date 2", key=())
WITHOUT_ENDS = columns("name text 1", key=())
EARLY, LATE = date(2024, 1, 1), date(9999, 12, 31)
LAKES = {"memory": memory_arm, "spark": spark_arm, "merge": merge_arm}


def is_by_day(lake: str, deletes: str, *, ordered: bool) -> bool:
    """Whether `make test` takes it: on Spark, each way of deletes and each order once."""
    return lake == "memory" or (lake == "spark" and (deletes == "soft") == ordered)


DOUBLED = [
    pytest.param(
        arm,
        deletes,
        ordered,
        id=f"{name}-{deletes}-{'ordered' if ordered else 'unordered'}",
        marks=() if is_by_day(name, deletes, ordered=ordered) else pytest.mark.nightly,
    )
    for (name, arm), deletes, ordered in product(LAKES.items(), ("hard", "soft"), (True, False))
]
NIGHTLY_ON_SPARK = pytest.mark.parametrize(
    "arm",
    [pytest.param(arm, id=name, marks=() if name == "memory" else pytest.mark.nightly) for name, arm in LAKES.items()],
    indirect=True,
)
"""Of what tests/property/test_spark_merge.py promises of random logs."""


def opened(arm: Arm, lake: Lake, table: LakeTable) -> Feed:
    lake.create_table(table)
    return Feed(store=arm.store, table=table)


def copy(operation: str, number: int, n: int | None, x: float | None) -> Event:
    return Event(operation=Operation(operation), version=version(number), values={"n": n, "x": x})


def copies(arm: Arm, table: LakeTable) -> Counter[tuple[object, str]]:
    return Counter((row["n"], str(row["x"])) for row in arm.rows(table) if not row[DELETED])


def files(arm: Arm, table: LakeTable, lake: Lake) -> set[str]:
    log = DeltaLog(arm.store, lake_key(table.name))
    return {file["path"] for file in log.active_files(lake.read_version(table) or 0).values()}


@NIGHTLY_ON_SPARK
def test_an_incomplete_row_is_hidden_and_counted_until_later_events_tell_the_rest(
    lake: Lake, arm: Arm, feed: Feed
) -> None:
    first = lake.upsert(feed.table, feed.claim([event("i", 1, 1, name="a", age=1)], [event("u", 2, 7, age=5)]))
    assert (first.counts.inserted, first.counts.incomplete, arm.values(feed.table)) == (1, 1, {1: ("a", 1)})
    again = lake.upsert(feed.table, feed.claim([event("u", 3, 7, age=6)]))
    assert (again.counts.incomplete, arm.values(feed.table)) == (1, {1: ("a", 1)})
    last = lake.upsert(feed.table, feed.claim([event("u", 4, 7, name="b")], [*move(5, (8,), (9,), age=1)]))
    assert (last.counts.inserted, last.counts.incomplete) == (1, 1)
    assert arm.values(feed.table) == {1: ("a", 1), 7: ("b", 6)}


@NIGHTLY_ON_SPARK
def test_late_events_of_an_unordered_stream_lose_against_tombstones_and_truncates(lake: Lake, arm: Arm) -> None:
    table = table_of(ordered=False)
    feed = opened(arm, lake, table)
    lake.upsert(table, feed.claim([event("d", 20, 1), event("u", 9, 3, age=3), event("i", 11, 5, name="e", age=5)]))
    lake.upsert(table, feed.claim([event("u", 10, 1, name="old", age=1), event("u", 5, 5, name="old"), event("t", 10)]))
    assert arm.values(table) == {5: ("e", 5)}
    lake.upsert(table, feed.claim([event("i", 8, 3, name="c", age=0), event("i", 30, 1, name="new", age=30)]))
    assert arm.values(table) == {5: ("e", 5), 1: ("new", 30)}


def test_a_replayed_event_finds_its_place_between_newer_ones(lake: Lake, arm: Arm, feed: Feed) -> None:
    waiting = [event("i", 1, 1, name="a", age=1), event("d", 3, 2), event("u", 4, 3, age=4)]
    lake.upsert(feed.table, feed.claim([event("i", 2, 2, name="b", age=2), event("i", 2, 3, name="c", age=3)]))
    kept = feed.claim([event("u", 5, 1, age=5), event("d", 6, 3)])
    lake.upsert(feed.table, replace(kept, tombstones=True))
    late = replace(feed.claim(waiting), late=True)
    lake.upsert(feed.table, late)
    assert arm.values(feed.table) == {1: ("a", 5)}


@pytest.mark.parametrize(("arm", "deletes", "ordered"), DOUBLED, indirect=["arm"])
def test_a_claim_that_looks_at_the_lakes_rows_leaves_one_row_of_a_doubled_id(
    lake: Lake, arm: Arm, deletes: Literal["hard", "soft"], *, ordered: bool
) -> None:
    table = table_of(deletes=deletes, ordered=ordered)
    feed = opened(arm, lake, table)
    publish_doubled(arm, lake, table, 6, doubled=5)
    events = [event("i", 101, 0, name="whole", age=9), event("u", 102, 1, name="partial"), event("d", 103, 2)]
    events += [event("u", 60, 3, name="newer than one row", age=9), *move(104, (4,), (7,), age=9)]
    counts = lake.upsert(table, replace(feed.claim(events), late=True, tombstones=True)).counts
    assert min(counts.inserted, counts.updated, counts.deleted, counts.ignored) >= 0
    assert arm.values(table) == {
        0: ("whole", 9),
        1: ("partial", 1),
        3: ("n3", 3),
        5: ("n5", 5),
        7: ("n4", 9),
    }


def test_a_claim_that_changes_nothing_leaves_every_data_file_alone(lake: Lake, arm: Arm) -> None:
    table = table_of(ordered=False)
    feed = opened(arm, lake, table)
    events = [event("i", 5, 1, name="a", age=1), event("u", 6, 2, age=2), event("d", 7, 3)]
    lake.upsert(table, feed.claim(events))
    before = files(arm, table, lake)
    outcome = lake.upsert(table, feed.claim(events, [event("u", 4, 1, name="old", age=0)]))
    fence = lake.read_fence(table)
    assert fence is not None
    assert (fence.number, outcome.counts.ignored, outcome.bytes_written) == (3, 3, 0)
    assert files(arm, table, lake) == before


@NIGHTLY_ON_SPARK
def test_a_keyless_table_counts_its_copies(lake: Lake, arm: Arm) -> None:
    table = table_of(HISTORY)
    feed = opened(arm, lake, table)
    lake.upsert(table, feed.claim([copy("i", number, 1, SAME) for number in (1, 2, 3)], [copy("i", 4, None, 2.5)]))
    assert copies(arm, table) == {(1, "7.5"): 3, (None, "2.5"): 1}
    update = [copy("d", 5, 1, SAME), copy("i", 5, None, 2.5)]
    outcome = lake.upsert(table, feed.claim([*update, *update], [copy("d", 6, 1, SAME), copy("i", 7, 8, None)]))
    assert (outcome.counts.inserted, outcome.counts.deleted, copies(arm, table)) == (
        2,
        2,
        {(1, "7.5"): 1, (None, "2.5"): 2, (8, "None"): 1},
    )
    last = feed.claim([event("t", 8), copy("i", 9, 3, 0.5)], [copy("d", 10, 9, 9.0)])
    lake.upsert(table, last)
    assert copies(arm, table) == {(3, "0.5"): 1}


def test_a_delete_of_a_copy_that_has_not_come_yet_meets_it_later(lake: Lake, arm: Arm) -> None:
    table = table_of(HISTORY, ordered=False)
    feed = opened(arm, lake, table)
    first = lake.upsert(table, feed.claim([copy("d", 5, 1, SAME), copy("d", 6, 1, SAME), copy("i", 7, 2, SAME)]))
    assert (first.counts.inserted, first.counts.ignored, copies(arm, table)) == (1, 2, {(2, "7.5"): 1})
    lake.upsert(table, feed.claim([copy("i", 3, 1, SAME)]))
    assert copies(arm, table) == {(2, "7.5"): 1}
    lake.upsert(table, feed.claim([copy("i", 2, 1, SAME), copy("i", 8, 1, SAME)]))
    assert copies(arm, table) == {(2, "7.5"): 1, (1, "7.5"): 1}


def bag_rows(arm: Arm, table: LakeTable) -> Counter[tuple[object, object]]:
    return Counter((row["name"], row["ends"]) for row in arm.rows(table) if not row[DELETED])


def test_a_delete_that_waits_without_a_dropped_column_meets_the_replayed_insert_that_has_it(
    lake: Lake, arm: Arm
) -> None:
    table = table_of(BAG)
    feed = opened(arm, lake, table)
    lake.upsert(table, feed.claim([event("i", 1, name="b", ends=EARLY)]))
    deleted = feed.claim([event("d", 3, name="a")], schema=WITHOUT_ENDS)
    assert lake.upsert(table, replace(deleted, tombstones=True)).counts.ignored == 1
    replayed = feed.claim([event("i", 2, name="a", ends=LATE)])
    late = tuple(replace(each, late=True) for each in replayed.slices)
    lake.upsert(table, replace(replayed, slices=late, late=True, tombstones=True))
    assert bag_rows(arm, table) == {("b", EARLY): 1}


def test_deletes_beside_replayed_events_find_rows_that_have_values_in_a_dropped_column(lake: Lake, arm: Arm) -> None:
    table = table_of(BAG)
    feed = opened(arm, lake, table)
    lake.upsert(table, feed.claim([event("i", number, name=name, ends=EARLY) for number, name in ((1, "b"), (2, "c"))]))
    lake.upsert(table, feed.claim([event("i", 6, name="d")], schema=WITHOUT_ENDS))
    late = feed.slice([event("i", number, name="a", ends=ends) for number, ends in ((3, EARLY), (4, LATE), (5, None))])
    ordinary = [event("d", 7, name="b"), event("d", 8, name="c"), event("i", 8, name="e"), event("d", 9, name="d")]
    work = feed.claim(ordinary, schema=WITHOUT_ENDS)
    slices = (replace(late, late=True), *work.slices)
    work = replace(work, first_number=late.number, slices=slices, late=True, tombstones=True)
    counts = lake.upsert(table, work).counts
    assert (counts.inserted, counts.deleted, counts.ignored) == (4, 3, 0)
    assert bag_rows(arm, table) == {("a", EARLY): 1, ("a", LATE): 1, ("a", None): 1, ("e", None): 1}


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_tombstones_are_purged_and_nothing_is_seen_of_it(lake: Lake, arm: Arm, deletes: str) -> None:
    table = table_of(ordered=False, deletes="soft" if deletes == "soft" else "hard")
    feed = opened(arm, lake, table)
    events = [
        event("i", 1, 1, name="a", age=1),
        event("d", 2, 2),
        event("u", 3, 3, age=3),
        event("i", 4, 4, name="b", age=4),
    ]
    lake.upsert(table, feed.claim([*events, event("d", 5, 4)]))
    lake.purge(table, version(5))
    assert arm.values(table) == {1: ("a", 1)}
    lake.upsert(table, feed.claim([event("u", 6, 3, name="c")]))
    assert arm.values(table) == {1: ("a", 1), 3: ("c", 3)}
