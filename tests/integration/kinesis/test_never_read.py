"""Shards of which nothing was read yet: what they lost by the time of their first read makes their tables stale."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.record import TableName
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.integration.kinesis.test_shared import member, read_all
from tests.support.shards import MemoryStreams, ShardFeed

ORDERS = "public.orders"
TABLES = ({"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}},)
LATER = timedelta(hours=30)
BEFORE_THE_CUT = Site("cut_file.put", Moment.BEFORE, 1)


@pytest.fixture
def feed(tmp_path: Path, store_url: str) -> ShardFeed:
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=TABLES, streams=MemoryStreams())
    feed.write(ORDERS, 1, "first")
    return feed


def state(feed: ShardFeed) -> tuple[str, str]:
    (row,) = feed.shown("lag")
    return row["state"], row["reason"] or ""


def go_on(feed: ShardFeed, later: timedelta) -> None:
    feed.streams.now += later
    feed.go_on()


def test_a_consumer_that_begins_after_the_first_records_expired_finds_its_table_stale(feed: ShardFeed) -> None:
    feed.set_up()
    feed.write(ORDERS, 2, "within the first hour")
    go_on(feed, LATER)
    found, reason = state(feed)
    assert found == "stale"
    assert f"{ORDERS} shard-0 was never read, and its first records may be gone" in reason
    assert feed.notes(ORDERS) == {}


def test_a_consumer_that_begins_while_the_first_records_are_kept_reads_them(feed: ShardFeed) -> None:
    feed.set_up()
    go_on(feed, timedelta(hours=23))
    assert feed.notes(ORDERS) == {1: "first"}


def test_what_a_stream_does_not_keep_at_its_first_read_is_not_missed_with_begin_kept(feed: ShardFeed) -> None:
    kept = replace(feed, source={"begin": "kept"})
    kept.set_up()
    kept.streams.replace_shards(ORDERS, ("shard-0",), "shard-1")
    kept.streams.now += LATER
    kept.write(ORDERS, 2, "later", shard="shard-1")
    kept.go_on()
    assert kept.notes(ORDERS) == {2: "later"}
    kept.streams.replace_shards(ORDERS, ("shard-1",), "shard-2")
    kept.write(ORDERS, 3, "in the child", shard="shard-2")
    with pytest.raises(Crash):
        kept.go_on(Failpoint(site=BEFORE_THE_CUT))
    go_on(kept, LATER)
    assert state(kept)[0] == "stale"


def test_a_shard_that_is_gone_before_its_first_read_makes_its_table_stale_with_begin_kept(feed: ShardFeed) -> None:
    """What is kept sufficed for the stream's first read, which was that of the shard before it."""
    kept = replace(feed, source={"begin": "kept"})
    kept.set_up()
    kept.streams.replace_shards(ORDERS, ("shard-0",), "shard-1")
    read_by_two(kept)
    kept.write(ORDERS, 2, "in the child", shard="shard-1")
    kept.streams.replace_shards(ORDERS, ("shard-1",), "shard-2")
    kept.streams.now += LATER
    for gone in ("shard-0", "shard-1"):
        del kept.streams.streams[ORDERS][gone]
    kept.write(ORDERS, 3, "in its child", shard="shard-2")
    kept.go_on()
    found, reason = state(kept)
    assert found == "stale"
    assert f"{ORDERS} shard-2 was never read, and its first records may be gone" in reason
    assert kept.notes(ORDERS) == {1: "first"}


def test_a_new_shard_that_nobody_read_before_its_records_expired_makes_its_table_stale(feed: ShardFeed) -> None:
    """The end of its parent was registered; the consumer that was to read it had not registered anything yet."""
    feed.set_up()
    feed.streams.replace_shards(ORDERS, ("shard-0",), "shard-1")
    feed.write(ORDERS, 2, "in the child", shard="shard-1")
    read_by_two(feed)
    feed.streams.now += LATER
    feed.write(ORDERS, 3, "after the outage", shard="shard-1")
    feed.go_on()
    found, reason = state(feed)
    assert found == "stale"
    assert f"{ORDERS} shard-1 was never read" in reason
    assert feed.notes(ORDERS) == {1: "first"}


def test_a_new_shard_is_read_though_its_stream_and_the_first_record_after_its_parents_place_are_too_old(
    feed: ShardFeed,
) -> None:
    """It has no records from before its parent was closed."""
    feed.consume()
    for note in ("later", "last of parent"):
        feed.streams.now += timedelta(hours=10)
        feed.write(ORDERS, 1, note)
    feed.streams.replace_shards(ORDERS, ("shard-0",), "shard-1")
    feed.write(ORDERS, 2, "in the child", shard="shard-1")
    feed.streams.now += timedelta(hours=3)
    read_by_two(feed)
    go_on(feed, timedelta(hours=10))
    assert state(feed)[0] != "stale"
    assert feed.notes(ORDERS) == {1: "last of parent", 2: "in the child"}


def read_by_two(feed: ShardFeed) -> None:
    """Two consumers, which are gone then. The first one reads shard-0 to its end, the second one nothing of shard-1."""
    with member(feed, "one") as (one, open_one), member(feed, "two") as (two, open_two):
        for each in (one, two):
            each.keep_alive()
        first, _ = open_one(), open_two()
        assert set(read_all(first)) == {0}
    with feed.opened() as pipeline:
        for owner in ("one", "two"):
            pipeline.store.consumers.leave("shop", owner=owner)


def test_a_stream_that_is_created_again_before_its_first_read_makes_its_table_stale(feed: ShardFeed) -> None:
    feed.set_up()
    feed.write(ORDERS, 2, "gone with the first stream")
    create_again(feed)
    feed.write(ORDERS, 3, "in the second stream")
    feed.go_on()
    found, reason = state(feed)
    assert found == "stale"
    assert f"{ORDERS} was deleted and created again since shop.{ORDERS} was set up" in reason
    assert feed.notes(ORDERS) == {}


def test_a_stream_that_was_created_again_before_its_table_was_set_up_is_read(feed: ShardFeed) -> None:
    """The shards were registered while the table was refused; only what came after its set-up must not be lost."""
    feed.streams.created -= LATER
    assert list(feed.set_up().refused) == [TableName.parse(f"shop.{ORDERS}")]
    create_again(feed)
    feed.write(ORDERS, 2, "in the second stream")
    feed.consume()
    assert feed.notes(ORDERS) == {2: "in the second stream"}


def create_again(feed: ShardFeed) -> None:
    feed.streams.streams.pop(ORDERS)
    feed.streams.identity, feed.streams.created = "second", feed.streams.now
