"""What shards do while they are read: they split, merge, expire, and hold odd records."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.errors import StreamMoved
from cdc_pipeline.record import VERSION, TableName
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.world import make_lake
from tests.support.event_files import events_of
from tests.support.ledgers import forget_store
from tests.support.shards import FIRST_SEQUENCE, MemoryStreams, ShardFeed

ORDERS, ITEMS = "public.orders", "public.items"
TABLES = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))
LATER = timedelta(hours=30)


@pytest.fixture
def feed(tmp_path: Path, store_url: str) -> ShardFeed:
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=TABLES, streams=MemoryStreams())
    for table in (ORDERS, ITEMS):
        feed.write(table, 0, "first")
    return feed


def states(feed: ShardFeed) -> dict[str, tuple[str, str]]:
    return {row["source_table"]: (row["state"], row["reason"] or "") for row in feed.shown("lag")}


def test_shards_are_read_after_those_they_came_from(feed: ShardFeed) -> None:
    """The same row is written by parent, child and grandchild; only their order shows which one is the newest."""
    feed.write(ORDERS, 1, "other parent", shard="shard-1")
    for note in ("parent", "parent again", "last of parent"):
        feed.write(ORDERS, 1, note)
    feed.set_up()
    feed.streams.replace_shards(ORDERS, ("shard-0",), "shard-2", "shard-3")
    feed.write(ORDERS, 1, "child", shard="shard-2")
    feed.write(ORDERS, 2, "child", shard="shard-3")
    feed.streams.replace_shards(ORDERS, ("shard-2", "shard-3"), "shard-4")
    feed.write(ORDERS, 1, "grandchild", shard="shard-4")
    feed.write(ORDERS, 2, None, shard="shard-4", operation="d")
    feed.go_on()
    assert feed.notes(ORDERS) == {0: "first", 1: "grandchild"}
    feed.write(ORDERS, 1, "after a restart", shard="shard-4")
    feed.go_on()
    assert feed.notes(ORDERS)[1] == "after a restart"


def test_a_split_between_two_runs_is_followed(feed: ShardFeed) -> None:
    feed.write(ORDERS, 1, "parent")
    feed.consume()
    feed.streams.replace_shards(ORDERS, ("shard-0",), "shard-1", "shard-2")
    feed.write(ORDERS, 1, "child", shard="shard-1")
    feed.write(ORDERS, 2, "child", shard="shard-2")
    feed.go_on()
    assert feed.notes(ORDERS) == {0: "first", 1: "child", 2: "child"}
    del feed.streams.streams[ORDERS]["shard-0"]
    feed.streams.now += LATER
    feed.write(ORDERS, 1, "much later", shard="shard-1")
    feed.go_on()
    assert states(feed)["shop.public.orders"][0] == "stale", "it was away for longer than its children are kept"


@pytest.mark.parametrize("server", ["begins later", "refuses"])
def test_records_that_may_have_expired_make_their_table_stale_and_no_other(feed: ShardFeed, server: str) -> None:
    feed.streams.refuses_expired = server == "refuses"
    feed.consume()
    feed.streams.now += timedelta(hours=23)
    feed.write(ITEMS, 1, "in time")
    feed.go_on()
    feed.write(ORDERS, 1, "lost")
    feed.streams.now += timedelta(hours=2)
    feed.write(ITEMS, 2, "later")
    feed.go_on()
    assert {name: state for name, (state, _) in states(feed).items() if state == "stale"} == {}
    feed.streams.now += timedelta(hours=23)
    feed.write(ITEMS, 3, "later still")
    feed.go_on()
    feed.streams.now += LATER
    for table in (ORDERS, ITEMS):
        feed.write(table, 9, "too late")
    feed.go_on()
    state, reason = states(feed)["shop.public.orders"]
    assert state == "stale"
    assert "keeps records for 1 day" in reason
    assert "have the table's rows sent again" in reason
    assert 9 not in feed.notes(ORDERS)


def test_a_quiet_shard_whose_last_record_expired_is_read_on(feed: ShardFeed) -> None:
    feed.consume()
    feed.streams.now += timedelta(hours=20)
    feed.go_on()
    feed.streams.now += timedelta(hours=20)
    feed.write(ORDERS, 1, "after forty hours")
    feed.go_on()
    assert feed.notes(ORDERS)[1] == "after forty hours"


def test_a_stream_that_was_created_again_makes_its_table_stale(feed: ShardFeed) -> None:
    feed.consume()
    feed.streams.identity = "second"
    feed.write(ORDERS, 1, "other stream")
    feed.go_on()
    state, reason = states(feed)["shop.public.orders"]
    assert (state, "was deleted and created again" in reason) == ("stale", True)


def test_a_stream_that_shows_not_every_change_any_more_makes_its_table_stale(feed: ShardFeed) -> None:
    """DynamoDB closes the shards of a stream that is disabled; no record shows what is written after that."""
    feed.consume()
    with feed.opened() as pipeline, pipeline.consumer_runs().open() as consumer:
        feed.streams.refusals[ORDERS] = "the table has no stream that is enabled"
        feed.streams.streams[ORDERS]["shard-0"].is_closed = True
        for _ in range(10):
            list(consumer.read_cuts())
        with pytest.raises(StreamMoved, match="no stream that is enabled"):
            consumer.check_tables()
    feed.write(ITEMS, 1, "read on")
    feed.go_on()
    state, reason = states(feed)["shop.public.orders"]
    assert (state, "no stream that is enabled" in reason) == ("stale", True)
    assert feed.notes(ITEMS)[1] == "read on"


@pytest.mark.parametrize("began", [False, True], ids=["before its first claim", "later"])
def test_a_stale_table_stays_stale_when_slices_are_applied_and_in_a_rebuilt_store(
    feed: ShardFeed, *, began: bool
) -> None:
    """Records are missing: whatever is applied behind them would look whole."""
    feed.consume()
    if began:
        apply(feed)
    feed.streams.identity = "second"
    feed.write(ORDERS, 1, "other stream")
    feed.go_on()
    assert set(apply(feed)) == {"TableStale"}
    forget_store(feed.store_url)
    with feed.opened(make_lake=make_lake) as pipeline:
        pipeline.rebuild().run()
    assert set(apply(feed)) == {"TableStale"}


def test_a_rebuild_keeps_the_names_of_shards_that_no_cut_has(feed: ShardFeed) -> None:
    """Nobody would read a shard without a name, and it would count as one whose events of every table are to come."""
    feed.consume()
    feed.streams.replace_shards(ORDERS, (), "shard-1")
    with feed.opened(make_lake=make_lake) as pipeline:
        with pipeline.consumer_runs().open():
            assert len(feed.shown("partitions")) == 3
        pipeline.rebuild().run()
    feed.write(ORDERS, 1, "new", shard="shard-1")
    feed.go_on()
    names = [f"{ITEMS} shard-0", f"{ORDERS} shard-0", f"{ORDERS} shard-1"]
    assert sorted(str(row["partition"]) for row in feed.shown("partitions")) == names
    assert feed.notes(ORDERS) == {0: "first", 1: "new"}


def apply(feed: ShardFeed) -> list[str]:
    """The class of the error of each table."""
    with feed.opened(make_lake=make_lake) as pipeline:
        results = pipeline.slice_runs().apply(pipeline.table_names(), by_hand=True)
    return [type(result.error).__name__ if result.error else "" for result in results]


def test_a_stream_older_than_what_it_keeps_is_refused_unless_what_is_kept_suffices(feed: ShardFeed) -> None:
    feed.streams.created -= LATER
    refused = feed.set_up().refused
    assert {str(table) for table in refused} == {"shop.public.orders", "shop.public.items"}
    assert "is older" in str(next(iter(refused.values())))
    kept = replace(feed, source={"begin": "kept"})
    kept.consume()
    assert kept.notes(ORDERS) == {0: "first"}


def test_what_was_read_before_a_kill_is_registered_once(feed: ShardFeed) -> None:
    """Whether the kill came before the cut was durable or after, reading continues at the right record."""
    feed.consume()
    sites = [("slice_file.put", Moment.AFTER), ("cut_file.put", Moment.AFTER), ("registry.register", Moment.AFTER)]
    for id_, (name, moment) in enumerate(sites, 1):
        feed.write(ORDERS, id_, name)
        failpoint = Failpoint(site=Site(name, moment, 1))
        with pytest.raises(Crash):
            feed.go_on(failpoint)
    feed.go_on()
    with feed.opened() as pipeline:
        events = events_of(pipeline, TableName.parse(f"shop.{ORDERS}"))
    assert [event["id"] for event in events] == list(range(len(sites) + 1))
    assert [event[VERSION][-16:] for event in events] == [f"{number:016x}" for number in range(len(sites) + 1)]


def test_an_expired_iterator_is_opened_again_where_reading_was(feed: ShardFeed) -> None:
    feed.set_up()
    with feed.opened() as pipeline, pipeline.consumer_runs().open() as consumer:
        for number in range(1, 8):
            feed.write(ORDERS, number, "new")
        list(consumer.read_cuts())
        feed.streams.generation += 1
        marker = consumer.send_marker()
        rows = []
        while not consumer.has_registered_through(marker):
            for cut in consumer.read_cuts():
                rows += [row["id"] for part in cut.slices.values() for row in part.rows.to_pylist()]
    assert sorted(rows) == sorted([0, 0, *range(1, 8)])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "is no JSON"),
        (b"\xf3\x89\x9a\xc2aggregated", "is no JSON"),
        ({"op": "z", "after": {"id": 9}}, "unknown operation"),
        ({"op": "c", "after": {"id": "x"}, "source": {"schema": "public", "table": "items"}}, "does not fit"),
    ],
    ids=["no text", "aggregated", "operation", "type"],
)
def test_a_record_that_cannot_be_read_is_quarantined_with_shard_and_sequence_number(
    content: Any, words: str, feed: ShardFeed
) -> None:
    feed.streams.put(ITEMS, content)
    feed.write(ITEMS, 2, "after")
    feed.consume()
    (kept,) = feed.shown("quarantine")
    assert kept["source_table"] == "shop.public.items"
    assert f"{ITEMS} shard-0 line {FIRST_SEQUENCE + 3 * (1 << 70)}: " in kept["reason"]
    assert words in kept["reason"]
    assert feed.notes(ITEMS) == {0: "first", 2: "after"}
    assert feed.notes(ORDERS) == {0: "first"}
