"""Many streams that cannot be read beside one that can."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.errors import PartitionFailed, StreamDenied, StreamMoved
from cdc_pipeline.operations.source_setup.sharing import Membership
from tests.integration.kinesis.test_removal import ORDERS, declared
from tests.integration.kinesis.test_shared import member, read_all
from tests.support.shards import MemoryStreams, ShardFeed

UNREADABLE = tuple(f"public.hidden_{number}" for number in range(5))
LONG = 10_000.0
"""Seconds after which each of them is due."""


@pytest.fixture
def feed(tmp_path: Path, store_url: str) -> ShardFeed:
    feed = ShardFeed(
        folder=tmp_path, store_url=store_url, tables=declared(ORDERS, *UNREADABLE), streams=MemoryStreams()
    )
    for table in (ORDERS, *UNREADABLE):
        feed.write(table, 1, "a")
    feed.set_up()
    for table in UNREADABLE:
        feed.streams.unreadable[table] = StreamDenied("opening shard-0 failed: AccessDeniedException")
    return feed


@dataclass(slots=True, kw_only=True)
class Reader:
    """A consumer that opens the stream again after each failure. `now`: its time, in seconds."""

    membership: Membership
    opened: Callable[[], Consumer]
    now: float = 0.0
    failures: int = 0

    def open(self) -> Consumer:
        """Opens until what is read does not fail. A try takes as long as the longest pause between two openings."""
        while True:
            consumer = self.opened()
            self.membership.check(consumer.position)
            try:
                list(consumer.read_cuts())
            except PartitionFailed as error:
                self.membership.set_aside(error.stream_partition)
                self.failures += 1
                self.now += 30
            else:
                return consumer

    def is_to_open(self, consumer: Consumer) -> bool:
        try:
            self.membership.check(consumer.position)
        except StreamMoved:
            return True
        return False


@contextmanager
def reading(feed: ShardFeed) -> Iterator[Reader]:
    """A consumer whose clock is the reader's."""
    with member(feed, "one") as (membership, opened):
        reader = Reader(membership=membership, opened=opened)
        membership.clock = lambda: reader.now
        yield reader


def test_a_cut_is_registered_between_two_tries_of_what_fails(feed: ShardFeed) -> None:
    with reading(feed) as reader:
        consumer = reader.open()
        assert reader.failures == len(UNREADABLE)
        reader.now += LONG
        assert not reader.is_to_open(consumer)
        for number in range(2, 5):
            feed.write(ORDERS, number, "b")
            read_all(consumer)
            assert reader.is_to_open(consumer)
            consumer = reader.open()
            reader.now += LONG
            assert not reader.is_to_open(consumer)
        assert reader.failures == len(UNREADABLE) + 3
    assert feed.notes(ORDERS) == {1: "a", 2: "b", 3: "b", 4: "b"}


def test_what_can_be_read_again_comes_back_without_a_cut_for_each(feed: ShardFeed) -> None:
    with reading(feed) as reader:
        consumer = reader.open()
        read_all(consumer)
        feed.streams.unreadable.clear()
        for _ in UNREADABLE:
            reader.now += LONG
            assert reader.is_to_open(consumer)
            consumer = reader.open()
            assert not reader.is_to_open(consumer)
        reader.now += LONG
        assert not reader.is_to_open(consumer)
        read_all(consumer)
    assert {table: feed.notes(table) for table in UNREADABLE} == {table: {1: "a"} for table in UNREADABLE}


def test_a_consumer_of_which_everything_failed_waits_for_no_cut(feed: ShardFeed) -> None:
    with reading(feed) as reader:
        reader.opened()
        for number in range(1 + len(UNREADABLE)):
            reader.membership.set_aside(number)
        reader.now += LONG
        assert reader.membership.wait_for_share(Event(), lambda: None)
        assert len(reader.membership.take("").next_offset) == 1


def test_one_that_is_tried_has_a_minute_to_fail_before_the_next(feed: ShardFeed) -> None:
    """Shards are looked for half a minute after the opening, and one may fail only then."""
    with reading(feed) as reader:
        consumer = reader.open()
        read_all(consumer)
        feed.streams.unreadable.clear()
        reader.now += 30
        assert reader.is_to_open(consumer)
        consumer = reader.open()
        reader.now += 59
        assert not reader.is_to_open(consumer)
        reader.now += 1
        assert reader.is_to_open(consumer)
