"""A stream that is not shown any more waits alone, holds back its tables, and is read once it is shown again."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import PartitionFailed, SourceError, StreamDenied, StreamMoved
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.kinesis.shards import CLOCK_MARGIN, ShardStream
from cdc_pipeline.sources.kinesis.survey import ShardSurvey
from tests.integration.kinesis.test_removal import ITEMS, ORDERS, declared
from tests.integration.kinesis.test_shared import member, read_all
from tests.integration.kinesis.test_successors import ClosingStreams
from tests.support.shards import RETENTION, MemoryShard, MemoryStreams, ShardFeed


@pytest.fixture
def feed(tmp_path: Path, store_url: str) -> ShardFeed:
    """Both tables were read, that of items from a shard that was replaced."""
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=declared(ORDERS, ITEMS), streams=MemoryStreams())
    feed.write(ORDERS, 1, "a")
    feed.write(ITEMS, 1, "a")
    feed.streams.replace_shards(ITEMS, ("shard-0",), "shard-1")
    feed.consume()
    return feed


def hide(feed: ShardFeed, table: str) -> dict[str, MemoryShard]:
    return feed.streams.streams.pop(table)


def partitions(feed: ShardFeed) -> dict[str, Any]:
    return {row["partition"]: row for row in feed.shown("partitions")}


def stale(feed: ShardFeed) -> list[str]:
    return [row["source_table"] for row in feed.shown("lag") if row["state"] == "stale"]


def test_a_stream_that_is_not_shown_any_more_waits_alone_and_holds_back_its_table(feed: ShardFeed) -> None:
    before = partitions(feed)[f"{ITEMS} shard-1"]["watermark"]
    hidden = hide(feed, ITEMS)
    feed.write(ORDERS, 2, "b")
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "a", 2: "b"}
    rows = partitions(feed)
    held_back = rows.pop(f"{ITEMS} shard-1")
    assert held_back["watermark"] == before
    assert f"the stream {ITEMS} of shop.{ITEMS} is not shown to these credentials any more" in held_back["held_back"]
    (other,) = rows.values()
    assert (other["watermark"] > before, other["held_back"]) == (True, None)
    reasons = {row["source_table"]: row["reason"] or "" for row in feed.shown("lag")}
    assert f"{ITEMS} shard-1 is not read" in reasons[f"shop.{ITEMS}"]
    assert "is not read" not in reasons[f"shop.{ORDERS}"]

    feed.streams.streams[ITEMS] = hidden
    feed.write(ITEMS, 2, "b", shard="shard-1")
    feed.go_on()
    assert feed.notes(ITEMS) == {1: "a", 2: "b"}
    assert {row["held_back"] for row in partitions(feed).values()} == {None}


def test_shards_that_were_read_to_their_ends_wait_for_nothing(feed: ShardFeed) -> None:
    hide(feed, ITEMS)
    with feed.opened() as pipeline:
        opening = pipeline.consumer_runs().opening
        survey = opening.source.survey(opening.registered)
    assert isinstance(survey, ShardSurvey)
    assert [survey.stream_partitions[number] for number in survey.resting] == [f"{ITEMS} shard-1"]
    assert survey.refused.keys() == {TableName.parse(f"shop.{ITEMS}")}
    assert "take shop.public.items out of pipeline.yml" in survey.refused[TableName.parse(f"shop.{ITEMS}")].remedy


def test_a_consumer_that_runs_takes_a_stream_up_that_is_shown_again(feed: ShardFeed) -> None:
    hidden = hide(feed, ITEMS)
    with member(replace(feed, look_every=timedelta(0)), "one") as (membership, opened):
        membership.keep_alive()
        consumer = opened()
        feed.streams.streams[ITEMS] = hidden
        feed.write(ORDERS, 2, "b")
        with pytest.raises(StreamMoved, match=r"public\.items shard-\d is new"):
            stream_to_slices_until_idle(consumer)


def test_a_consumer_of_which_every_stream_is_hidden_ends_once_it_is_idle(feed: ShardFeed) -> None:
    feed = replace(feed, tables=declared(ITEMS))
    before = partitions(feed)[f"{ITEMS} shard-1"]
    hide(feed, ITEMS)
    feed.go_on()
    after = partitions(feed)[f"{ITEMS} shard-1"]
    assert (after["watermark"], feed.notes(ITEMS)) == (before["watermark"], {1: "a"})


class ClosingHidden(ClosingStreams):
    """The stream is not shown any more from the first fetch on, though it can be read."""

    def describe(self, name: str) -> ShardStream | None:
        return None if self.is_away else MemoryStreams.describe(self, name)


def test_the_end_of_a_shard_is_not_registered_while_its_stream_is_not_shown(tmp_path: Path, store_url: str) -> None:
    """Otherwise nothing would be left of the stream that holds its table back."""
    streams = ClosingHidden()
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=declared(ORDERS), streams=streams)
    feed.write(ORDERS, 1, "parent")
    feed.consume()
    (row,) = feed.shown("partitions")
    assert (row["partition"], "is not shown" in (row["held_back"] or "")) == (f"{ORDERS} shard-0", True)
    streams.is_away = False
    feed.write(ORDERS, 2, "child", shard="shard-1")
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "parent", 2: "child"}


def test_a_stream_that_may_not_be_described_waits_alone_with_the_servers_words(feed: ShardFeed) -> None:
    feed = replace(feed, tables=declared(ORDERS, ITEMS, "public.new"))
    feed.streams.denied |= {ITEMS, "public.new"}
    feed.write(ORDERS, 2, "b")
    feed.write(ITEMS, 2, "b", shard="shard-1")
    refused = feed.set_up().refused
    assert {name.table: error.found for name, error in refused.items()} == {
        "items": "describing the stream public.items failed",
        "new": "describing the stream public.new failed",
    }
    feed.go_on()
    assert (feed.notes(ORDERS), feed.notes(ITEMS)) == ({1: "a", 2: "b"}, {1: "a"})
    assert "describing the stream public.items failed" in partitions(feed)[f"{ITEMS} shard-1"]["held_back"]
    feed.streams.denied.clear()
    feed.go_on()
    assert feed.notes(ITEMS) == {1: "a", 2: "b"}


def test_a_consumer_that_runs_reads_on_when_one_stream_may_not_be_described_any_more(feed: ShardFeed) -> None:
    with member(feed, "one") as (membership, opened):
        membership.keep_alive()
        consumer = opened()
        feed.streams.denied.add(ITEMS)
        feed.streams.replace_shards(ORDERS, ("shard-0",), "shard-1")  # streams are looked at when a shard has ended
        list(consumer.read_cuts())
        consumer.check_tables()


def test_credentials_that_may_describe_no_stream_at_all_are_refused(feed: ShardFeed) -> None:
    feed.streams.denied |= {ORDERS, ITEMS}
    with pytest.raises(StreamDenied, match=r"describing the stream public\.items failed"):
        feed.set_up()


LATE = RETENTION - CLOCK_MARGIN / 2
"""So long after a read, only the last record that was read shows that the stream still keeps the rest."""
UNREAD = StreamDenied("opening shard-1 failed: AccessDeniedException")


@pytest.mark.parametrize(
    ("later", "error"),
    [(timedelta(0), UNREAD), (LATE, UNREAD), (LATE, SourceError("opening shard-1 failed: KMSDisabledException"))],
    ids=["recently read", "read long ago", "encrypted"],
)
def test_a_stream_that_may_be_described_and_not_read_fails_alone(
    feed: ShardFeed, later: timedelta, error: SourceError
) -> None:
    feed.write(ITEMS, 2, "b", shard="shard-1")
    feed.go_on()
    before = partitions(feed)[f"{ITEMS} shard-1"]["watermark"]
    feed.streams.now += later
    feed.streams.unreadable[ITEMS] = error
    feed.write(ORDERS, 2, "b")
    feed.write(ITEMS, 3, "c", shard="shard-1")
    assert not feed.set_up().refused
    with pytest.raises(PartitionFailed, match=error.found):
        feed.go_on()
    assert (feed.notes(ORDERS), feed.notes(ITEMS)) == ({1: "a", 2: "b"}, {1: "a", 2: "b"})
    items = partitions(feed)[f"{ITEMS} shard-1"]
    assert (error.found in items["held_back"], items["watermark"]) == (True, before)
    feed.streams.unreadable.clear()
    feed.go_on()
    assert feed.notes(ITEMS) == {1: "a", 2: "b", 3: "c"}


def test_a_stream_that_may_be_read_again_too_late_makes_its_table_stale(feed: ShardFeed) -> None:
    feed.write(ITEMS, 2, "b", shard="shard-1")
    feed.go_on()
    feed.streams.unreadable[ITEMS] = UNREAD
    for id_ in 2, 3, 4:
        feed.write(ORDERS, id_, "b")
        feed.streams.now += RETENTION / 2
        with pytest.raises(PartitionFailed, match=UNREAD.found):
            feed.go_on()
    feed.streams.unreadable.clear()
    feed.go_on()
    assert stale(feed) == [f"shop.{ITEMS}"]
    assert feed.notes(ORDERS) == {1: "a", 2: "b", 3: "b", 4: "b"}


def test_a_consumer_that_runs_reads_the_others_while_a_stream_may_not_be_read(feed: ShardFeed) -> None:
    feed.write(ITEMS, 2, "b", shard="shard-1")
    feed.go_on()
    feed.streams.now += LATE
    feed.streams.unreadable[ITEMS] = UNREAD
    feed.write(ORDERS, 2, "b")
    with member(feed, "one") as (membership, opened):
        membership.keep_alive()
        with pytest.raises(PartitionFailed) as failed:
            read_all(opened())
        membership.set_aside(failed.value.stream_partition)
        consumer = opened()
        read_all(consumer)
        consumer.check_tables()
    assert feed.notes(ORDERS) == {1: "a", 2: "b"}


def test_a_stream_that_fails_again_is_left_out_for_longer(feed: ShardFeed) -> None:
    """Each try throws away what was read of the others since their last cut."""
    with member(feed, "one") as (membership, _):
        assert [membership.set_aside(1) for _ in range(7)] == [30, 60, 120, 240, 480, 600, 600]
        assert membership.set_aside(2) == 30


class ReadableAgain(MemoryStreams):
    """What cannot be read can be at the second try."""

    def iterator(self, stream: ShardStream, shard: str, sequence: str) -> str | None:
        try:
            return MemoryStreams.iterator(self, stream, shard, sequence)
        finally:
            self.unreadable.pop(stream.name, None)


def test_records_that_expired_are_missed_though_the_survey_could_not_look(tmp_path: Path, store_url: str) -> None:
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=declared(ITEMS), streams=ReadableAgain())
    feed.write(ITEMS, 1, "a")
    feed.consume()
    feed.write(ITEMS, 2, "b")
    feed.streams.now += RETENTION
    feed.write(ITEMS, 3, "c")
    feed.streams.unreadable[ITEMS] = UNREAD
    feed.go_on()
    assert (feed.notes(ITEMS), stale(feed)) == ({1: "a"}, [f"shop.{ITEMS}"])
