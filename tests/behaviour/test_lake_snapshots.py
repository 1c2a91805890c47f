"""What every lake does with snapshots: they are shown whole, once, and never over what they do not hold."""

from dataclasses import replace

import pytest

from cdc_pipeline.errors import FenceMismatch
from cdc_pipeline.lake.deleted_rows import right_before
from cdc_pipeline.lake.protocol import Lake, LakePublication, LakeTable
from cdc_pipeline.record import BEFORE_ALL, DELETED, VERSION, Column
from tests.support.history_tables import publish, taken
from tests.support.lake import PEOPLE, Feed, event, move, table_of, version
from tests.support.lakes import Arm, published


def test_a_snapshot_is_invisible_until_it_is_published_whole(lake: Lake, arm: Arm, feed: Feed) -> None:
    files = published(arm.store, lake, feed.table, 10, "s1")
    assert arm.values(feed.table) == {}
    content = LakePublication(snapshot_id="s1", files=files, fence_number=7)
    shown = lake.publish(feed.table, content)
    assert arm.values(feed.table) == {number: (f"n{number}", number) for number in range(10)}
    fence = lake.read_fence(feed.table)
    assert fence is not None
    assert (fence.number, fence.snapshot_id, fence.lake_version) == (7, "s1", shown)
    assert (lake.publish(feed.table, content), lake.read_version(feed.table)) == (shown, shown)


def test_a_second_snapshot_replaces_the_first_and_an_older_one_is_refused(lake: Lake, arm: Arm, feed: Feed) -> None:
    first = LakePublication(snapshot_id="s1", files=published(arm.store, lake, feed.table, 10, "s1"), fence_number=0)
    shown = lake.publish(feed.table, first)
    lake.upsert(feed.table, feed.claim([event("i", 101, 50, name="new", age=1)]))
    assert lake.publish(feed.table, first) == shown
    second = LakePublication(snapshot_id="s2", files=published(arm.store, lake, feed.table, 3, "s2"), fence_number=0)
    with pytest.raises(FenceMismatch, match="at slice 1"):
        lake.publish(feed.table, second)
    lake.publish(feed.table, replace(second, fence_number=1))
    assert set(arm.values(feed.table)) == {0, 1, 2}
    assert lake.upsert(feed.table, feed.claim([event("u", 102, 1, age=9)])).counts.updated == 1


def test_a_snapshot_of_an_older_position_replaces_the_version_that_it_names_and_no_later_one(
    lake: Lake, arm: Arm, feed: Feed
) -> None:
    first = LakePublication(snapshot_id="s1", files=published(arm.store, lake, feed.table, 10, "s1"), fence_number=0)
    shown = lake.publish(feed.table, first)
    lake.upsert(feed.table, feed.claim([event("i", 101, 50, name="new", age=1)]))
    older = LakePublication(snapshot_id="s2", files=published(arm.store, lake, feed.table, 3, "s2"), fence_number=0)
    with pytest.raises(FenceMismatch, match="at slice 1"):
        lake.publish(feed.table, replace(older, replaces=shown))
    version = lake.publish(feed.table, replace(older, replaces=shown + 1))
    assert lake.publish(feed.table, replace(older, replaces=shown + 1)) == version
    fence = lake.read_fence(feed.table)
    assert fence is not None
    assert (fence.number, fence.rewound_from, set(arm.values(feed.table))) == (0, 1, {0, 1, 2})


def test_an_empty_snapshot_begins_no_table_that_has_another_one(lake: Lake, arm: Arm, feed: Feed) -> None:
    """As of a worker that paused behind its last look at its lease, while another one published an export."""
    empty = LakePublication(snapshot_id="empty", files=(), fence_number=0, begins=True)
    begun = lake.publish(feed.table, empty)
    assert lake.publish(feed.table, empty) == begun
    files = published(arm.store, lake, feed.table, 3, "export")
    shown = lake.publish(feed.table, LakePublication(snapshot_id="export", files=files, fence_number=0))
    with pytest.raises(FenceMismatch, match="has snapshot export"):
        lake.publish(feed.table, replace(empty, snapshot_id="empty-1"))
    assert (lake.read_version(feed.table), set(arm.values(feed.table))) == (shown, {0, 1, 2})
    listed_again = replace(feed.table, table_uuid="listed again")
    lake.publish(listed_again, empty)
    assert arm.values(feed.table) == {}


def test_a_new_snapshot_keeps_the_rows_that_the_source_deleted_flagged(lake: Lake, arm: Arm) -> None:
    table = with_five_people(lake, arm, "soft")
    claim = Feed(store=arm.store, table=table).claim(
        [event("d", 101, 0), event("d", 102, 1), event("u", 103, 2, age=20)]
    )
    lake.upsert(table, claim)
    ages_are_texts = replace(PEOPLE, columns=(*PEOPLE.columns[:2], Column(name="age", type="text")))
    new = replace(table, schema=ages_are_texts)
    content = taken(lake, arm.store, new, [(1, "n1", "1"), (3, "n3", "3"), (4, "n4", "4")], at=200, fence=1)
    shown = lake.publish(new, content)
    assert (lake.publish(new, content), lake.read_version(new)) == (shown, shown)
    assert all_rows(arm, new) == {
        0: ("n0", "0", True, version(101)),
        1: ("n1", "1", False, version(200)),
        2: ("n2", "20", True, right_before(version(200))),
        3: ("n3", "3", False, version(200)),
        4: ("n4", "4", False, version(200)),
    }
    changes = [event("i", 201, 0, name="back", age="7"), event("d", 202, 3), event("u", 203, 2, age="8")]
    lake.upsert(new, Feed(store=arm.store, table=new, next_number=2).claim([*changes, *move(204, (4,), (5,))]))
    assert arm.values(new) == {0: ("back", "7"), 1: ("n1", "1"), 5: ("n4", "4")}
    assert {id_ for id_, row in all_rows(arm, new).items() if row[2]} == {2, 3, 4}


def test_deleted_rows_are_older_than_every_event_behind_a_snapshot_as_of_the_start(lake: Lake, arm: Arm) -> None:
    table = with_five_people(lake, arm, "soft")
    lake.upsert(table, Feed(store=arm.store, table=table).claim([event("t", 101)]))
    publish(lake, arm.store, table, [], at=BEFORE_ALL, fence=1, replaces=lake.read_version(table))
    assert {row[-1] for row in all_rows(arm, table).values()} == {"-"}


def test_a_new_snapshot_of_a_table_with_hard_deletes_keeps_nothing_else(lake: Lake, arm: Arm) -> None:
    table = with_five_people(lake, arm, "hard")
    publish(lake, arm.store, table, [(1, "n1", 1), (3, "n3", 3)], at=200, fence=0)
    assert set(all_rows(arm, table)) == {1, 3}


def test_an_empty_snapshot_keeps_every_row_flagged_and_an_empty_beginning_keeps_none(lake: Lake, arm: Arm) -> None:
    """A beginning says nothing of what the source deleted: all rows come by the stream."""
    table = with_five_people(lake, arm, "soft")
    empty = taken(lake, arm.store, table, [], at=200, fence=0)
    lake.publish(table, empty)
    assert all_rows(arm, table) == {
        number: (f"n{number}", number, True, right_before(version(200))) for number in range(5)
    }
    lake.upsert(table, Feed(store=arm.store, table=table).claim([event("i", 200, 2, name="quarantined", age=2)]))
    assert arm.values(table) == {2: ("quarantined", 2)}
    lake.publish(replace(table, table_uuid="listed again"), replace(empty, snapshot_id="empty", begins=True))
    assert all_rows(arm, table) == {}


def test_rows_of_a_former_id_are_not_kept(lake: Lake, arm: Arm) -> None:
    table = with_five_people(lake, arm, "soft")
    lake.upsert(table, Feed(store=arm.store, table=table).claim([event("d", 101, 0)]))
    by_name = replace(table, schema=replace(PEOPLE, key=("name",)))
    publish(lake, arm.store, by_name, [(1, "n1", 1), (3, "n3", 3)], at=200, fence=1)
    assert set(all_rows(arm, by_name)) == {1, 3}


def with_five_people(lake: Lake, arm: Arm, deletes: str) -> LakeTable:
    table = table_of(deletes="soft" if deletes == "soft" else "hard")
    lake.create_table(table)
    publish(lake, arm.store, table, [(number, f"n{number}", number) for number in range(5)], at=100, fence=0)
    return table


def all_rows(arm: Arm, table: LakeTable) -> dict[object, tuple[object, ...]]:
    """Flagged ones, too."""
    return {row["id"]: (row["name"], row["age"], row[DELETED], row[VERSION]) for row in arm.read(table).values()}
