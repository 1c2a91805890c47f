"""Shards that the server lists later than it closes those before them."""

from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import PartitionFailed, StreamMoved
from cdc_pipeline.sources.kinesis.shards import ShardStream
from tests.support.shards import MemoryStreams
from tests.unit.sources.test_shards import STREAM, ShardReads

NOW = timedelta(0)


@dataclass(slots=True, kw_only=True)
class LastShown(MemoryStreams):
    """Names the last record of a closed shard, as DynamoDB does. `hides`: children are not listed."""

    hides: bool = False

    def describe(self, name: str) -> ShardStream | None:
        found = MemoryStreams.describe(self, name)
        if found is None:
            return None
        ends = {
            shard: each.records[-1].sequence
            for shard, each in self.streams[name].items()
            if each.is_closed and each.records
        }
        return replace(
            found,
            shards={
                shard: replace(each, last=ends.get(shard, ""))
                for shard, each in found.shards.items()
                if not (self.hides and each.parents)
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedReads:
    """A shard closes after everything was registered, and its child is not listed yet."""

    streams: LastShown
    reads: ShardReads

    def read_on(self, *, lists: bool) -> None:
        """A consumer opens the stream now and reads for a while. `lists`: the child is listed once it is open."""
        survey = self.reads.survey()
        with closing(survey.open(self.reads.start(survey))) as stream:
            self.streams.hides = not lists
            for _ in range(9):
                stream.read(timedelta(milliseconds=5))


def closed_reads(*others: str) -> ClosedReads:
    streams = LastShown(hides=True)
    reads = ShardReads(streams=streams, look_every=NOW)
    reads.send("shard-0", 1_100)
    for other in others:
        reads.send(other, 1_200)
    reads.run()
    streams.replace_shards(STREAM, ("shard-0",), "shard-1")
    return ClosedReads(streams=streams, reads=reads)


@pytest.fixture
def closed() -> ClosedReads:
    return closed_reads("shard-9")


def test_a_shard_whose_end_was_known_at_the_opening_stops_until_its_child_is_listed() -> None:
    """There is nothing of it to register, so no cut looks for the child."""
    with pytest.raises(PartitionFailed, match=r"shop\.ev shard-0 has ended, and the server lists no shard"):
        closed_reads().read_on(lists=False)


def test_a_shard_without_a_child_costs_no_open_slice_of_its_neighbours(closed: ClosedReads) -> None:
    with capture_logs() as said:
        closed.read_on(lists=False)
    assert [each["found"] for each in said if each["event"] == "stream partition waits"] == [
        f"{STREAM} shard-0 has ended, and the server lists no shard that follows it"
    ]


def test_a_child_is_read_that_is_listed_after_the_opening(closed: ClosedReads) -> None:
    """Nothing else may come that would be registered, so nobody is waited for."""
    with pytest.raises(StreamMoved, match=r"shop\.ev shard-1 is new"):
        closed.read_on(lists=True)
    closed.reads.send("shard-1", 1_300)
    closed.reads.run()
    assert closed.reads.notes == ["1 1100", "1 1200", "1 1300"]


@pytest.mark.parametrize("look_every", [NOW, timedelta(hours=1)], ids=["due", "not due"])
def test_a_new_shard_is_found_after_a_cut_though_none_has_ended(look_every: timedelta) -> None:
    """As the shards of a second half that Kinesis lists late."""
    reads = ShardReads(look_every=look_every)
    reads.send("shard-0", 1_100)
    survey = reads.survey()
    with closing(survey.open(reads.start(survey))) as stream:
        reads.send("shard-1", 1_200)
        is_due = look_every == NOW
        with pytest.raises(StreamMoved, match=r"shop\.ev shard-1 is new") if is_due else nullcontext():
            stream.confirm(0)
