"""A retention that is raised while no consumer runs: what had expired before stays gone, as AWS documents it."""

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.sources.kinesis.shards import ShardPlace, ShardRecord, ShardStream
from cdc_pipeline.time_slice import EPOCH
from tests.support.shards import RETENTION, MemoryShard, MemoryStreams, ShardFeed

ORDERS = "public.orders"
TABLES = ({"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}},)
WEEK, YEAR = timedelta(days=7), timedelta(days=365)


@dataclass(slots=True, kw_only=True)
class RaisedStreams(MemoryStreams):
    """`retention`: what the stream says of itself. `kept_for`: what it did for the records that were not read."""

    retention: timedelta = RETENTION
    kept_for: timedelta = RETENTION

    def describe(self, name: str) -> ShardStream | None:
        found = MemoryStreams.describe(self, name)
        return None if found is None else replace(found, retention=self.retention)

    def _first_kept(self, records: list[ShardRecord]) -> int:
        return sum(self.now - each.arrived >= self.kept_for for each in records)


def read_after_30_hours(folder: Path, store_url: str, *, kept_for: timedelta) -> ShardFeed:
    """The retention is a week when the consumer is started again."""
    streams = RaisedStreams()
    feed = ShardFeed(folder=folder, store_url=store_url, tables=TABLES, streams=streams)
    feed.write(ORDERS, 1, "read")
    feed.consume()
    streams.now += timedelta(hours=1)
    feed.write(ORDERS, 2, "not read yet")
    streams.now += timedelta(hours=28)
    feed.write(ORDERS, 3, "newest")
    streams.retention, streams.kept_for = WEEK, kept_for
    streams.now += timedelta(hours=1)
    feed.go_on()
    return feed


def test_a_retention_that_is_raised_too_late_makes_its_table_stale(tmp_path: Path, store_url: str) -> None:
    feed = read_after_30_hours(tmp_path, store_url, kept_for=RETENTION)
    (row,) = feed.shown("lag")
    assert row["state"] == "stale"
    assert f"{ORDERS} keeps records for {RETENTION}, and shard-0 was read up to" in row["reason"]
    assert feed.notes(ORDERS) == {1: "read"}


def test_a_retention_that_is_raised_in_time_keeps_what_was_not_read(tmp_path: Path, store_url: str) -> None:
    """The last record that was read shows it. From then on the new retention counts."""
    feed = read_after_30_hours(tmp_path, store_url, kept_for=WEEK)
    assert feed.notes(ORDERS) == {1: "read", 2: "not read yet", 3: "newest"}
    feed.streams.now += timedelta(days=6)
    feed.write(ORDERS, 4, "after six days")
    feed.go_on()
    assert feed.notes(ORDERS)[4] == "after six days"


@pytest.mark.parametrize("retention", [None, WEEK], ids=["of an earlier release", "known"])
def test_a_place_is_read_as_it_was_written(retention: timedelta | None) -> None:
    place = ShardPlace(sequence="5", known_until=EPOCH, retention=retention)
    assert ShardPlace.decode(place.encode()) == place
    assert ShardPlace.decode("5 0 open") == replace(place, retention=None)


def test_a_shard_without_records_that_is_read_all_the_time_stays_as_it_is(tmp_path: Path, store_url: str) -> None:
    streams = RaisedStreams()
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=TABLES, streams=streams)
    streams.streams[ORDERS] = {"shard-0": MemoryShard()}
    feed.consume()
    streams.retention = streams.kept_for = YEAR
    for _ in range(5):
        streams.now += timedelta(hours=6)
        feed.go_on()
    (row,) = feed.shown("lag")
    assert row["state"] != "stale"
