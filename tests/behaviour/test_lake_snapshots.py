"""What every lake does with snapshots: they are shown whole, once, and never over what they do not hold."""

from dataclasses import replace

import pytest

from cdc_pipeline.errors import FenceMismatch
from cdc_pipeline.lake.protocol import Lake, LakePublication
from tests.support.lake import Feed, event
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
