"""A base of the cut files has where each shard was read to, and needs no old cut file for shards that have ended."""

from pathlib import Path

import pytest

from cdc_pipeline.consume.chain_base import ChainBase
from cdc_pipeline.record import PARTITION_ENDED
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Failpoint
from tests.support.shards import MemoryStreams, ShardFeed

ORDERS = "public.orders"
TABLES = ({"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}},)


@pytest.fixture
def feed(tmp_path: Path, store_url: str) -> ShardFeed:
    return ShardFeed(folder=tmp_path, store_url=store_url, tables=TABLES, streams=MemoryStreams())


def put_base(feed: ShardFeed) -> tuple[ChainBase, int]:
    """Puts a base after the last cut. Returns it, and how many cut files were read for it."""
    steps = Failpoint()
    with feed.opened(steps) as pipeline:
        boundary = pipeline.store.lake_positions.last_boundary("shop")
        assert boundary is not None
        chain = pipeline.removal().chain
        base = chain.base_behind(boundary, {})
        chain.put_base(base)
    return base, sum((site.name, site.moment) == ("cut_file.get", Moment.BEFORE) for site in steps.recorded)


def write_cuts(feed: ShardFeed, *ids: int) -> None:
    for id_ in ids:
        feed.write(ORDERS, id_, "b", shard="shard-1")
        feed.go_on()


def test_ended_shards_are_taken_from_the_base_before(feed: ShardFeed) -> None:
    feed.write(ORDERS, 1, "a")
    feed.write(ORDERS, 2, "a", shard="shard-1")
    feed.consume()
    feed.streams.replace_shards(ORDERS, ("shard-0",), "shard-2")
    write_cuts(feed, 3, 4, 5)
    first, _ = put_base(feed)
    write_cuts(feed, 6, 7, 8)
    second, read = put_base(feed)
    assert read == 1
    assert [PARTITION_ENDED in part.last_position for part in second.partitions] == [True, False, False]
    assert first.partitions[0] == second.partitions[0]
    assert first.partitions[1].next_offset < second.partitions[1].next_offset
