"""A shard that closes while its successors cannot be asked for."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cdc_pipeline.errors import PartitionFailed, SourceAway
from cdc_pipeline.sources.kinesis.shards import Fetched, ShardStream
from tests.integration.kinesis.test_removal import ITEMS, declared
from tests.support.shards import MemoryStreams, ShardFeed

ORDERS = "public.orders"
TABLES = ({"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}},)


@dataclass(slots=True, kw_only=True)
class ClosingStreams(MemoryStreams):
    """The first fetch closes the only shard, and from then on the server does not answer what shards there are."""

    closes: bool = True
    is_away: bool = False

    def fetch(self, stream: ShardStream, iterator: str) -> Fetched | None:
        if self.closes:
            self.replace_shards(ORDERS, ("shard-0",), "shard-1")
            self.closes, self.is_away = False, True
        return MemoryStreams.fetch(self, stream, iterator)

    def describe(self, name: str) -> ShardStream | None:
        if self.is_away:
            raise SourceAway("the server does not answer")
        return MemoryStreams.describe(self, name)


def test_the_end_of_a_shard_is_registered_once_its_successors_are_known(tmp_path: Path, store_url: str) -> None:
    """Otherwise the stream would have no shard to read, and each consumer would wait for one."""
    streams = ClosingStreams()
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=TABLES, streams=streams)
    feed.write(ORDERS, 1, "parent")
    feed.set_up()
    with pytest.raises(SourceAway):
        feed.go_on()
    streams.is_away = False
    assert feed.notes(ORDERS) == {}
    feed.write(ORDERS, 2, "child", shard="shard-1")
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "parent", 2: "child"}


class LateListing(ClosingStreams):
    """The child is not listed yet after the parent has ended."""

    def describe(self, name: str) -> ShardStream | None:
        found = MemoryStreams.describe(self, name)
        if found is None or not self.is_away:
            return found
        return replace(found, shards={shard: each for shard, each in found.shards.items() if not each.parents})


def test_the_end_of_a_shard_is_registered_once_a_successor_is_listed(tmp_path: Path, store_url: str) -> None:
    """AWS may list it later than it closes the parent. Other streams are read meanwhile."""
    streams = LateListing()
    feed = ShardFeed(folder=tmp_path, store_url=store_url, tables=declared(ORDERS, ITEMS), streams=streams)
    feed.write(ORDERS, 1, "parent")
    feed.write(ITEMS, 1, "other")
    feed.set_up()
    for _ in range(2):
        with pytest.raises(PartitionFailed, match=r"public\.orders shard-0 has ended, and the server lists no shard"):
            feed.go_on()
    assert (feed.notes(ORDERS), feed.notes(ITEMS)) == ({}, {1: "other"})
    (row,) = (row for row in feed.shown("partitions") if row["partition"] == f"{ORDERS} shard-0")
    assert "has ended" in row["held_back"]
    streams.is_away = False
    feed.write(ORDERS, 2, "child", shard="shard-1")
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "parent", 2: "child"}
