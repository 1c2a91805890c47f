"""What every lake does, whatever it is made of: the promises of `cdc_pipeline.lake.protocol.Lake`."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_pipeline.areas import lake_key, staging_prefix
from cdc_pipeline.errors import FenceMismatch, LakeError
from cdc_pipeline.lake.protocol import Lake, LakePublication, LakeTable
from cdc_pipeline.lake.schema_change import SchemaConflict
from cdc_pipeline.record import DELETED, OPERATION, Column, TableSchema
from cdc_pipeline.steps import no_step
from cdc_pipeline.types import arrow_schema
from tests.support.lake import PEOPLE, Feed, event, move, table_of, version
from tests.support.lakes import Arm, publish_doubled


def test_a_table_that_is_not_there_has_neither_fence_nor_version(lake: Lake, arm: Arm) -> None:
    table = table_of()
    assert (lake.read_fence(table), lake.read_version(table)) == (None, None)
    with pytest.raises(LakeError, match="no lake table"):
        lake.upsert(table, Feed(store=arm.store, table=table).claim([event("i", 1, 1, name="a", age=1)]))
    with pytest.raises(LakeError, match="no lake table"):
        lake.publish(table, LakePublication(snapshot_id="s1", files=(), fence_number=0))


def test_a_table_is_created_once_and_is_empty(lake: Lake, arm: Arm) -> None:
    table = table_of()
    lake.create_table(table)
    lake.create_table(table)
    fence = lake.read_fence(table)
    assert fence is not None
    assert (fence.number, fence.slices, fence.snapshot_id) == (0, (), None)
    assert (lake.read_version(table), arm.values(table)) == (0, {})


def test_no_table_is_created_where_commits_of_a_removed_one_are_left(lake: Lake, arm: Arm) -> None:
    """A zombie commits into the folder after the table was removed with its lake."""
    table = table_of()
    left = f"{lake_key(table.name)}/_delta_log/{2:020d}.json"
    arm.store.put_if_absent(left, b"{}")
    with pytest.raises(LakeError, match=r"2\.json is a commit of a log without beginning.*move the table's folder"):
        lake.create_table(table)
    assert lake.read_version(table) is None
    arm.store.delete(left)
    lake.create_table(table)
    assert lake.read_version(table) == 0


@pytest.mark.by_merge
def test_inserts_updates_deletes_and_partial_rows_arrive_and_are_counted(lake: Lake, arm: Arm, feed: Feed) -> None:
    first = lake.upsert(feed.table, feed.claim([event("i", id_, id_, name="a", age=id_) for id_ in (1, 2, 3)]))
    second = lake.upsert(
        feed.table,
        feed.claim([event("u", 4, 1, age=10), event("d", 5, 2), event("d", 6, 99)], [event("u", 7, 1, name="b")]),
    )
    assert (first.counts.inserted, first.counts.updated, first.counts.deleted, first.counts.ignored) == (3, 0, 0, 0)
    assert (second.counts.inserted, second.counts.updated, second.counts.deleted, second.counts.ignored) == (0, 1, 1, 1)
    assert (second.counts.read, second.already_applied) == (4, False)
    assert second.lake_version == lake.read_version(feed.table) == first.lake_version + 1
    assert arm.values(feed.table) == {1: ("b", 10), 3: ("a", 3)}


def test_the_fence_names_the_claim_and_its_slices(lake: Lake, feed: Feed) -> None:
    work = feed.claim([event("i", 1, 1, name="a", age=1)], [], [event("i", 2, 2, name="b", age=2)])
    outcome = lake.upsert(feed.table, work)
    fence = lake.read_fence(feed.table)
    assert fence is not None
    assert (fence.number, fence.claim_id, fence.lake_version) == (3, work.claim_id, outcome.lake_version)
    assert fence.slices == tuple(content.identity for content in work.slices)


def test_a_claim_without_rows_moves_the_fence_alone(lake: Lake, arm: Arm, feed: Feed) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, name="a", age=1)]))
    outcome = lake.upsert(feed.table, feed.claim([], []))
    fence = lake.read_fence(feed.table)
    assert fence is not None
    assert (fence.number, fence.slices, outcome.already_applied) == (3, (), False)
    assert arm.values(feed.table) == {1: ("a", 1)}


def test_a_claim_that_the_lake_has_is_applied_no_second_time(lake: Lake, feed: Feed) -> None:
    old = feed.claim([event("i", 1, 1, name="a", age=1)])
    lake.upsert(feed.table, old)
    assert lake.upsert(feed.table, old).already_applied
    lake.upsert(feed.table, feed.claim([event("u", 2, 1, name="b")]))
    last = lake.read_version(feed.table)
    assert lake.upsert(feed.table, old).already_applied
    assert lake.read_version(feed.table) == last


def test_older_and_equal_versions_change_nothing(lake: Lake, arm: Arm, feed: Feed) -> None:
    events = [event("i", 5, 1, name="a", age=1), event("i", 6, 2, name="b", age=2)]
    lake.upsert(feed.table, feed.claim(events))
    before, late = arm.read(feed.table), [event("u", 3, 2, name="old", age=0), event("d", 5, 2)]
    outcome = lake.upsert(feed.table, feed.claim([*events, *late]))
    counts = outcome.counts
    assert (counts.inserted, counts.updated, counts.deleted, counts.ignored) == (0, 0, 0, 2)
    assert arm.read(feed.table) == before


def test_events_below_the_cutoff_are_ignored(lake: Lake, arm: Arm, feed: Feed) -> None:
    work = feed.claim([event("i", 1, 1, name="a", age=1), event("i", 9, 2, name="b", age=2)])
    lake.upsert(feed.table, replace(work, cutoff_version=version(5)))
    assert set(arm.values(feed.table)) == {2}


def test_a_claim_that_does_not_follow_the_fence_is_refused(lake: Lake, feed: Feed) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, name="a", age=1)]))
    feed.claim([event("i", 2, 2, name="b", age=1)])
    with pytest.raises(FenceMismatch, match="at slice 1; expected 2"):
        lake.upsert(feed.table, feed.claim([event("i", 3, 3, name="c", age=1)]))


def test_another_slice_under_an_applied_number_is_refused(lake: Lake, feed: Feed) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, name="a", age=1)]))
    feed.next_number = 1
    with pytest.raises(FenceMismatch, match=r"differing numbers: \[1\]"):
        lake.upsert(feed.table, feed.claim([event("i", 1, 1, name="other", age=1)]))


@pytest.mark.parametrize("place", ["lake_schema.read", "lake_table.merge"])
def test_a_zombie_with_the_same_claim_has_no_second_effect(arm: Arm, feed: Feed, place: str) -> None:
    (lake := arm.make(no_step)).upsert(feed.table, feed.claim([event("i", 1, 1, name="a", age=1)]))
    work, later = feed.claim([event("u", 2, 1, age=2)]), feed.claim([event("d", 3, 1)])
    passed: list[str] = []

    def rival(name: str, _moment: object) -> None:
        if name == place and not passed:
            passed.append(name)
            lake.upsert(feed.table, work)
            lake.upsert(feed.table, later)

    try:
        outcome = arm.make(rival).upsert(feed.table, work)
    except LakeError:
        outcome = None
    assert passed
    assert outcome is None or outcome.already_applied
    assert arm.values(feed.table) == {}
    assert lake.read_version(feed.table) == 3


def test_soft_deletes_flag_the_row_and_keep_its_values(lake: Lake, arm: Arm) -> None:
    table = table_of(deletes="soft")
    lake.create_table(table)
    feed = Feed(store=arm.store, table=table)
    lake.upsert(table, feed.claim([event("i", number, number, name="a", age=number) for number in (1, 2)]))
    outcome = lake.upsert(table, feed.claim([event("d", 3, 1), event("d", 4, 99)]))
    assert (outcome.counts.inserted, outcome.counts.updated, outcome.counts.deleted) == (0, 1, 0)
    flags = {row["id"]: (row["name"], row[DELETED]) for row in arm.read(table).values()}
    assert flags == {1: ("a", True), 2: ("a", False)}
    lake.upsert(table, feed.claim([event("i", 5, 1, name="again", age=5)]))
    assert arm.values(table) == {1: ("again", 5), 2: ("a", 2)}


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_truncate_empties_the_table_of_what_is_older(lake: Lake, arm: Arm, deletes: str) -> None:
    table = table_of(deletes="soft" if deletes == "soft" else "hard")
    lake.create_table(table)
    feed = Feed(store=arm.store, table=table)
    lake.upsert(table, feed.claim([event("i", number, number, name="a", age=1) for number in (1, 2, 9)]))
    lake.upsert(
        table, feed.claim([event("i", 3, 3, name="a", age=1)], [event("t", 5), event("i", 6, 4, name="b", age=4)])
    )
    assert arm.values(table) == {9: ("a", 1), 4: ("b", 4)}


def test_a_key_change_moves_the_row_and_a_swap_of_keys_swaps(lake: Lake, arm: Arm, feed: Feed) -> None:
    lake.upsert(
        feed.table, feed.claim([event("i", number, number, name=f"n{number}", age=number) for number in (1, 2)])
    )
    lake.upsert(feed.table, feed.claim([*move(3, (1,), (10,), age=3)]))
    assert arm.values(feed.table) == {10: ("n1", 3), 2: ("n2", 2)}
    lake.upsert(feed.table, feed.claim([*move(4, (10,), (0,)), *move(5, (2,), (10,)), *move(6, (0,), (2,))]))
    assert arm.values(feed.table) == {10: ("n2", 2), 2: ("n1", 3)}


def test_an_added_column_is_added_and_a_changed_type_is_refused(lake: Lake, arm: Arm, feed: Feed) -> None:
    lake.upsert(feed.table, feed.claim([event("i", 1, 1, name="a", age=1)]))
    wider = TableSchema(columns=(*PEOPLE.columns, Column(name="city", type="text")), key=PEOPLE.key)
    lake.upsert(
        replace(feed.table, schema=wider),
        feed.claim([event("i", 2, 2, name="b", age=2, city="rome")], schema=wider),
    )
    seen = {row["id"]: row["city"] for row in arm.read(feed.table).values() if not row[DELETED]}
    assert seen == {1: None, 2: "rome"}
    changed = TableSchema(columns=(*PEOPLE.columns[:2], Column(name="age", type="text")), key=PEOPLE.key)
    with pytest.raises(SchemaConflict, match=r"age.*read the events again"):
        lake.upsert(
            replace(feed.table, schema=changed),
            feed.claim([event("i", 3, 3, name="c", age="old")], schema=changed),
        )


def put_source(arm: Arm, table: LakeTable, *rows: tuple[int, str, int]) -> str:
    """The key of a file with these rows of the source."""
    sink = pa.BufferOutputStream()
    people = [{"id": id_, "name": name, "age": age} for id_, name, age in rows]
    pq.write_table(pa.Table.from_pylist(people, schema=arrow_schema(table.schema)), sink)
    key = f"{staging_prefix(table.name, 'verify')}/source-{len(rows)}.parquet"
    arm.store.put_if_absent(key, sink.getvalue().to_pybytes())
    return key


def test_a_version_is_compared_with_the_source_row_by_row(lake: Lake, arm: Arm, feed: Feed) -> None:
    people = [event("i", number, number, name="a", age=number) for number in (1, 2, 3)]
    shown = lake.upsert(feed.table, feed.claim(people)).lake_version
    lake.upsert(feed.table, feed.claim([event("u", 4, 1, name="later"), event("d", 5, 2)]))
    source = put_source(arm, feed.table, (1, "a", 1), (2, "other", 2), (4, "new", 4))
    found = lake.compare(feed.table, source, shown)
    assert (found.source_rows, found.lake_rows, found.differing_rows) == (3, 3, 3)
    assert [(each.id["id"], each.kind, each.columns) for each in found.differences] == [
        (2, "different", ("name",)),
        (3, "extra", ()),
        (4, "missing", ()),
    ]
    rows = lake.differing_rows(feed.table, source, shown, most=9).sort_by("id").to_pylist()
    assert [(row["id"], row["name"], row[OPERATION]) for row in rows] == [
        (2, "other", "u"),
        (3, None, "d"),
        (4, "new", "u"),
    ]
    assert lake.differing_rows(feed.table, source, shown, most=1).num_rows == 1


def test_a_row_that_the_lake_has_twice_differs_once(lake: Lake, arm: Arm, feed: Feed) -> None:
    shown = publish_doubled(arm, lake, feed.table, 3, doubled=2)
    equal = put_source(arm, feed.table, (0, "n0", 0), (1, "n1", 1), (2, "n2", 2))
    found = lake.compare(feed.table, equal, shown)
    assert (found.source_rows, found.lake_rows, found.differing_rows) == (3, 5, 2)
    assert [(each.id["id"], each.kind, each.columns) for each in found.differences] == [
        (0, "doubled", ()),
        (1, "doubled", ()),
    ]
    other = put_source(arm, feed.table, (0, "other", 0), (2, "n2", 2))
    found = lake.compare(feed.table, other, shown)
    assert (found.source_rows, found.lake_rows, found.differing_rows) == (2, 5, 2)
    assert [(each.id["id"], each.kind) for each in found.differences] == [(0, "doubled"), (1, "extra")]
    rows = lake.differing_rows(feed.table, other, shown, most=9).sort_by("id").to_pylist()
    assert [(row["id"], row["name"], row[OPERATION]) for row in rows] == [(0, "other", "u"), (1, None, "d")]


def test_copies_of_rows_without_a_key_are_compared_by_their_number(lake: Lake, arm: Arm) -> None:
    table = table_of(TableSchema(columns=PEOPLE.columns, key=()))
    lake.create_table(table)
    feed = Feed(store=arm.store, table=table)
    twice = [event("i", number, id=1, name="a", age=1) for number in (1, 2)]
    shown = lake.upsert(table, feed.claim([*twice, event("i", 3, id=2, name="b", age=2)])).lake_version
    found = lake.compare(table, put_source(arm, table, (1, "a", 1), (3, "c", 3)), shown)
    assert (found.source_rows, found.lake_rows, found.differing_rows) == (2, 3, 3)
    assert sorted((each.id["id"], each.kind) for each in found.differences) == [
        (1, "extra"),
        (2, "extra"),
        (3, "missing"),
    ]


def test_merging_small_files_changes_neither_rows_nor_fence(lake: Lake, arm: Arm, feed: Feed) -> None:
    for number in (1, 2, 3):
        lake.upsert(feed.table, feed.claim([event("i", number, number, name="a", age=number)]))
    rows, fence = arm.read(feed.table), lake.read_fence(feed.table)
    lake.optimize(feed.table)
    after = lake.read_fence(feed.table)
    assert fence is not None
    assert after == replace(fence, lake_version=fence.lake_version + 1)
    assert arm.read(feed.table) == rows


def test_a_rewound_table_is_what_it_was_and_takes_the_same_claims_again(lake: Lake, arm: Arm, feed: Feed) -> None:
    first = feed.claim([event("i", number, number, name="a", age=number) for number in range(1, 9)])
    second = feed.claim([event("u", 11, 1, name="b"), event("d", 12, 2), event("i", 13, 20, name="c", age=1)])
    shown = lake.upsert(feed.table, first).lake_version
    then, fence = arm.read(feed.table), lake.read_fence(feed.table)
    lake.upsert(feed.table, second)
    lake.optimize(feed.table)
    latest = arm.read(feed.table)
    back = lake.rewind(feed.table, shown, fence_then=None)
    assert fence is not None
    assert back == lake.read_fence(feed.table) == replace(fence, lake_version=back.lake_version, rewound_from=2)
    assert arm.read(feed.table) == then != latest
    assert lake.rewind(feed.table, shown, fence_then=None) == back
    outcome = lake.upsert(feed.table, second)
    counts = outcome.counts
    assert (counts.inserted, counts.updated, counts.deleted, outcome.already_applied) == (1, 1, 1, False)
    assert arm.read(feed.table) == latest


def test_an_id_that_is_staged_twice_is_found_in_whatever_files_it_is(lake: Lake, arm: Arm) -> None:
    table = table_of()
    keys = tuple(f"{staging_prefix(table.name, 's1')}/{number}.parquet" for number in range(2))
    for key, ids in zip(keys, ([1, 2], [3, 2]), strict=True):
        rows = [{"id": id_, "name": f"n{id_}", "age": id_} for id_ in ids]
        pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(table.schema)), sink := pa.BufferOutputStream())
        arm.store.put_if_absent(key, sink.getvalue().to_pybytes())
    assert [lake.repeated_id(table, found) for found in ((), keys[:1], keys[1:], keys)] == [None, None, None, (2,)]
