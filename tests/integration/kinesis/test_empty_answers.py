"""A server that does not say how far an answer is behind: records may follow an empty one, as in DynamoDB's streams."""

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.record import VERSION, TableName
from cdc_pipeline.sources.kinesis.shards import EMPTY_ANSWERS, Fetched, Shard, ShardStream
from tests.support.event_files import events_of
from tests.support.shards import MemoryStreams, ShardFeed

ORDERS = "public.orders"
TABLES = ({"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}},)


@dataclass(slots=True, kw_only=True)
class PortionedStreams(MemoryStreams):
    """An answer has one record at most, and before each record there are `empty` answers without any."""

    empty: int = 3

    def describe(self, name: str) -> ShardStream | None:
        """With the last sequence number of each closed shard."""
        found = MemoryStreams.describe(self, name)
        if found is None:
            return None
        shards = {
            shard: Shard(name=shard, parents=each.parents, last=each.records[-1].sequence if each.is_closed else "")
            for shard, each in self.streams[name].items()
        }
        return replace(found, shards=shards)

    def fetch(self, stream: ShardStream, iterator: str) -> Fetched | None:
        place, _, passed = iterator.partition("+")
        fetched = MemoryStreams.fetch(self, stream, place)
        if fetched is None:
            return None
        if fetched.following is not None or fetched.records:
            if not fetched.records or int(passed or 0) < self.empty:
                return Fetched(records=(), following=f"{place}+{int(passed or 0) + 1}", behind=None)
            head, shard, _, generation = place.split("/")
            after = self.streams[stream.name][shard].records.index(fetched.records[0]) + 1
            following = f"{head}/{shard}/{after}/{generation}"
            return Fetched(records=fetched.records[:1], following=following, behind=None)
        return Fetched(records=(), following=None, behind=timedelta(0))


@pytest.fixture
def feed(tmp_path: Path, store_url: str) -> ShardFeed:
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=TABLES, streams=PortionedStreams())
    feed.write(ORDERS, 1, "first")
    return feed


def states(feed: ShardFeed) -> list[str]:
    return [row["state"] for row in feed.shown("lag")]


def test_records_behind_empty_answers_are_read_before_a_consumer_is_idle(feed: ShardFeed) -> None:
    feed.consume()
    feed.streams.now += timedelta(hours=2)
    for id_ in (2, 3):
        feed.write(ORDERS, id_, "later")
    feed.streams.now += timedelta(hours=8)
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "first", 2: "later", 3: "later"}


def test_a_record_that_was_read_is_not_read_again_behind_empty_answers(feed: ShardFeed) -> None:
    feed.consume()
    feed.write(ORDERS, 2, "later")
    feed.go_on()
    feed.go_on()
    with feed.opened() as pipeline:
        events = events_of(pipeline, TableName.parse(f"shop.{ORDERS}"))
    assert [event["id"] for event in events] == [1, 2]
    assert len({event[VERSION] for event in events}) == 2


def test_a_last_record_that_is_still_kept_is_found_behind_empty_answers(feed: ShardFeed) -> None:
    """Its time alone does not show that nothing after it is gone."""
    feed.consume()
    feed.streams.now += timedelta(hours=23, minutes=55)
    feed.write(ORDERS, 2, "later")
    feed.go_on()
    assert "stale" not in states(feed)
    assert feed.notes(ORDERS) == {1: "first", 2: "later"}


def test_a_quiet_shard_is_read_on_though_its_last_record_expired(feed: ShardFeed) -> None:
    feed.consume()
    for _ in range(3):
        feed.streams.now += timedelta(hours=20)
        feed.go_on()
    feed.write(ORDERS, 2, "after sixty hours")
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "first", 2: "after sixty hours"}


def test_a_closed_shard_is_read_to_its_end_however_many_answers_are_empty(feed: ShardFeed) -> None:
    assert isinstance(feed.streams, PortionedStreams)
    feed.streams.empty = 2 * EMPTY_ANSWERS
    feed.write(ORDERS, 1, "last of parent")
    feed.set_up()
    feed.streams.replace_shards(ORDERS, ("shard-0",), "shard-1")
    feed.streams.empty = EMPTY_ANSWERS - 1
    feed.write(ORDERS, 1, "child", shard="shard-1")
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "child"}
