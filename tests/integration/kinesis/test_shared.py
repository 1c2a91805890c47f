"""Consumers share shards: one of them reads a shard, after those that it came from, whoever read these."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.errors import StreamMoved
from cdc_pipeline.operations.source_setup.sharing import Membership
from cdc_pipeline.record import VERSION, TableName
from tests.support.command_line import CommandLine, consuming, query
from tests.support.command_server import CommandServer
from tests.support.event_files import events_of
from tests.support.eventually import eventually
from tests.support.shards import KinesisStreams, MemoryStreams, ShardFeed, debezium_event

ORDERS = "public.orders"
TABLES = ({"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}},)
ROUND = 40
Member = tuple[Membership, Callable[[], Consumer]]
"""A consumer's membership, and what opens the consumer for its share."""
_OWNERS = """
SELECT assignment_owner, count(*) FROM cdc.stream_partition WHERE assignment_owner IS NOT NULL GROUP BY 1 ORDER BY 2
"""
_ROWS = "SELECT coalesce(sum(rows), 0) FROM cdc.slice"


@pytest.fixture
def feed(tmp_path: Path, store_url: str) -> ShardFeed:
    return ShardFeed(folder=tmp_path, store_url=store_url, tables=TABLES, streams=MemoryStreams())


@contextmanager
def member(feed: ShardFeed, owner: str) -> Iterator[Member]:
    """A consumer among others: its membership, and what opens it for its share."""
    with ExitStack() as opened:
        pipeline = opened.enter_context(feed.opened())
        membership = Membership(store=pipeline.store, stream="shop", owner=owner)
        opening = replace(pipeline.consumer_runs().opening, owner=owner)
        yield membership, lambda: opened.enter_context(opening.opened(membership.take))


@contextmanager
def two_members(feed: ShardFeed) -> Iterator[tuple[Member, Member, list[float]]]:
    """Two consumers that are alive, of two shards with a row each; and the first one's clock, in seconds."""
    for number in range(2):
        feed.write(ORDERS, number, "new", shard=f"shard-{number}")
    feed.set_up()
    now = [0.0]
    with member(feed, "one") as one, member(feed, "two") as two:
        one[0].clock = lambda: now[0]
        for each, _ in (one, two):
            each.keep_alive()
        yield one, two, now


def read_all(consumer: Consumer) -> list[int]:
    """Registers everything that the consumer's shards hold. Returns the stream partitions that had rows."""
    marker, found = consumer.send_marker(), list[int]()
    while not consumer.has_registered_through(marker):
        for cut in consumer.read_cuts():
            ranges = consumer.offset_ranges(cut)
            consumer.decide_and_register(cut, ranges, consumer.write_slice_files(cut, ranges))
            found += [number for _, number in cut.slices]
    return found


def owned(feed: ShardFeed) -> dict[str, str]:
    """The owner of each shard."""
    return {row["partition"]: row["assignment_owner"] for row in feed.shown("partitions")}


def test_a_shard_waits_for_its_parent_that_another_consumer_reads(feed: ShardFeed) -> None:
    """The same row is written by parent and children; only their order shows which one is the newest."""
    for note in ("parent", "parent again", "last of parent"):
        feed.streams.put(ORDERS, debezium_event(ORDERS, 1, note))
    feed.streams.replace_shards(ORDERS, ("shard-0",), "shard-1", "shard-2")
    feed.write(ORDERS, 2, "child", shard="shard-1")
    feed.write(ORDERS, 1, "child", shard="shard-2")
    feed.set_up()
    with member(feed, "one") as (one, open_one), member(feed, "two") as (two, open_two):
        for each in (one, two):
            each.keep_alive()
        first, second = open_one(), open_two()
        assert owned(feed) == {f"{ORDERS} shard-0": "one", f"{ORDERS} shard-1": "one", f"{ORDERS} shard-2": "two"}
        assert read_all(second) == []
        assert read_all(first) == [0, 1]
        with pytest.raises(StreamMoved, match="read to its end"):
            read_all(second)
        second = open_two()
        assert read_all(second) == [2]
        for each in (one, two):
            each.keep_alive()
        with pytest.raises(StreamMoved, match=r"reads the stream partitions \[0, 1\].*\[1\], its share"):
            one.check(first.position)
        two.check(second.position)
    assert feed.notes(ORDERS) == {1: "child", 2: "child"}
    with feed.opened() as pipeline:
        events = events_of(pipeline, TableName.parse(f"shop.{ORDERS}"))
    versions = [event[VERSION] for event in events if event["id"] == 1]
    assert versions == sorted(set(versions))


def test_a_shard_waits_for_ancestors_of_other_consumers_though_its_parent_is_its_own(feed: ShardFeed) -> None:
    feed.write(ORDERS, 1, "grandparent")
    feed.streams.replace_shards(ORDERS, ("shard-0",), "shard-1")
    feed.streams.replace_shards(ORDERS, ("shard-1",), "shard-2")
    feed.write(ORDERS, 1, "grandchild", shard="shard-2")
    feed.set_up()
    with member(feed, "one") as (one, open_one), member(feed, "two") as (two, open_two):
        for each in (one, two):
            each.keep_alive()
        second, first = open_two(), open_one()
        assert owned(feed) == {f"{ORDERS} shard-0": "two", f"{ORDERS} shard-1": "one", f"{ORDERS} shard-2": "one"}
        assert read_all(first) == []
        assert read_all(second) == [0]
        with pytest.raises(StreamMoved, match="read to its end"):
            read_all(first)
        assert read_all(open_one()) == [], "shard-1 has only its end"
        assert read_all(open_one()) == [2], "the only shard that is left"
    assert feed.notes(ORDERS) == {1: "grandchild"}


def test_a_shard_that_was_read_to_its_end_is_nobodys_share(feed: ShardFeed) -> None:
    """So the shards of past reshards cost a consumer nothing, however many they are."""
    feed.write(ORDERS, 0, "first")
    for number in count():
        feed.streams.replace_shards(ORDERS, (f"shard-{number}",), f"shard-{number + 1}")
        feed.write(ORDERS, number, "later", shard=f"shard-{number + 1}")
        if number == 4:
            break
    feed.consume()
    with member(feed, "one") as (one, open_one):
        one.keep_alive()
        consumer = open_one()
        feed.write(ORDERS, 9, "newest", shard="shard-5")
        assert read_all(consumer) == [5]
        assert [row["partition"] for row in feed.shown("partitions")] == [f"{ORDERS} shard-5"]
    assert feed.notes(ORDERS) == {**dict.fromkeys(range(5), "later"), 9: "newest"}


def test_a_consumer_of_a_shard_without_records_sets_no_time_back(feed: ShardFeed) -> None:
    feed.write(ORDERS, 1, "new")
    feed.streams.replace_shards(ORDERS, (), "shard-1")
    feed.set_up()
    with member(feed, "one") as (one, open_one), member(feed, "two") as (two, open_two):
        for each in (one, two):
            each.keep_alive()
        assert read_all(open_one()) == [0]
        assert read_all(open_two()) == []
    newest, before = (row["commit_time"] for row in feed.shown("boundaries"))
    assert newest >= before - timedelta(hours=1), "no cut is older than the interval of the one before it"


def test_others_read_the_share_of_a_consumer_that_cannot_reach_the_source_until_it_can(feed: ShardFeed) -> None:
    stop = Event()
    with two_members(feed) as ((one, open_one), (two, open_two), now):
        open_one()
        second = open_two()
        assert one.wait_for_share(stop, stop.set)
        open_one()
        now[0] += 121
        assert one.wait_for_share(stop, stop.set), "it has opened the stream since"
        assert set(owned(feed).values()) == {"one", "two"}
        now[0] += 121
        assert one.wait_for_share(stop, stop.set), "it tries on"
        for each in (one, two):
            each.keep_alive()
        with pytest.raises(StreamMoved, match="its share"):
            two.check(second.position)
        second = open_two()
        assert sorted(read_all(second)) == [0, 1]
        with pytest.raises(StreamMoved, match="no stream partition is left"):
            open_one()
        two.keep_alive()
        open_two()
        assert one.wait_for_share(stop, stop.set)
        open_one()
        assert set(owned(feed).values()) == {"one", "two"}


def test_a_consumer_whose_reads_fail_keeps_its_share_so_that_the_others_keep_their_slices(feed: ShardFeed) -> None:
    stop = Event()
    with two_members(feed) as ((one, open_one), (two, open_two), now):
        open_one()
        second = open_two()
        for _ in range(5):
            now[0] += 61
            assert one.wait_for_share(stop, stop.set)
            two.keep_alive()
            two.check(second.position)
            open_one()
        assert set(owned(feed).values()) == {"one", "two"}


def test_a_consumer_without_others_keeps_its_share_however_long_it_cannot_reach_the_source(feed: ShardFeed) -> None:
    feed.write(ORDERS, 1, "new")
    feed.set_up()
    now, stop = [0.0], Event()
    with member(feed, "one") as (one, open_one):
        one.clock = lambda: now[0]
        open_one()
        for _ in range(3):
            assert one.wait_for_share(stop, stop.set)
            now[0] += 1_000
        assert owned(feed) == {f"{ORDERS} shard-0": "one"}
        assert read_all(open_one()) == [0]


@pytest.mark.slow
def test_every_record_is_registered_once_when_one_of_two_consumers_is_killed(
    kinesis_endpoint: str, tmp_path: Path, store_url: str, command_server: CommandServer
) -> None:
    streams = KinesisStreams(endpoint=kinesis_endpoint)
    streams.create(shards=4)
    cdc = CommandLine(folder=tmp_path, source_url=store_url, store_url=store_url, server=command_server)
    source = {"kind": "kinesis", "stream": streams.name} | streams.server
    tables = [{**table, "name": f"shop.{table['name']}"} for table in TABLES]
    cdc.write_settings(source=source, tables=tables, slice_length="1s")
    written = count(ROUND, ROUND)

    def write() -> int:
        """Writes a round of records, spread over the shards. Returns the number of all records."""
        end = next(written)
        for number in range(end - ROUND, end):
            streams.put(debezium_event(ORDERS, number, "new"), key=str(number))
        return end

    def registers(rows: int) -> bool:
        return eventually(lambda: query(store_url, _ROWS) == [(rows,)], 60)

    def shares() -> list[int]:
        return [shards for _, shards in query(store_url, _OWNERS)]

    assert cdc.run("setup-source").exit_code == 0
    with consuming(cdc, "first") as first, consuming(cdc, "second"):
        assert eventually(lambda: shares() == [2, 2], 60)
        assert registers(write())
        first.kill()
        assert registers(write())
        assert shares() == [4]
