"""Shards that may begin late: nothing of their stream was read when their first records were gone."""

from datetime import UTC, datetime, timedelta

from cdc_pipeline.record import PARTITION_NAME, encode_position
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST
from cdc_pipeline.sources.kinesis.kept import surveyed_shards
from cdc_pipeline.sources.kinesis.shards import Shard, ShardPlace, ShardStream
from cdc_pipeline.sources.known import PartitionProgress
from tests.support.shards import MemoryStreams

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def progress(shard: str, *, was_read: bool) -> PartitionProgress:
    place = {FILE_DIGEST: ShardPlace(sequence="", known_until=NOW, retention=DAY).encode()} if was_read else {}
    return PartitionProgress(offset=encode_position(0), last_position={PARTITION_NAME: f"orders {shard}"} | place)


def test_a_child_may_begin_late_as_its_sibling_did_whose_parent_was_gone_at_the_first_read() -> None:
    """A cut has registered the place of the sibling, and not yet that of the child."""
    stream = ShardStream(
        name="orders",
        address="orders",
        identity="1",
        created=NOW - 9 * DAY,
        retention=DAY,
        shards={name: Shard(name=name, parents=("parent",)) for name in ("child", "sibling")},
    )
    registered = {
        1: progress("parent", was_read=False),
        2: progress("sibling", was_read=True),
        3: progress("child", was_read=False),
    }
    found = surveyed_shards(MemoryStreams(), {"orders": stream}, registered, NOW, begins_kept=True)
    assert {name: each.keeps_the_rest for name, each in found.items()} == {"orders child": True, "orders sibling": True}
