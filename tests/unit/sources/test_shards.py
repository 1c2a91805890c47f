"""Shards that are split and merged: what a shard has of those before it stays known, however many there are."""

import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from cdc_pipeline.errors import StreamMoved
from cdc_pipeline.record import PARTITION_ENDED, PARTITION_NAME, TableName, encode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.aws import KinesisSource
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST
from cdc_pipeline.sources.kinesis.shards import ShardPlace, shard_name
from cdc_pipeline.sources.kinesis.source import ShardSource, kinesis_source
from cdc_pipeline.sources.kinesis.stream import in_turn
from cdc_pipeline.sources.kinesis.survey import ShardSurvey
from cdc_pipeline.sources.known import KnownTable, LastCut, PartitionProgress, StreamIdentity, StreamStart
from cdc_pipeline.sources.protocol import Marker
from cdc_pipeline.time_slice import EPOCH
from tests.support.shards import MemoryShard, MemoryStreams

STREAM = "shop.ev"
EVENTS = TableName.parse("shop.shop.ev")
KEYLESS = TableSettings(name=str(EVENTS), columns={"note": "text"})
MOST_SECONDS = 1.0
"""Of the processor: other tests run beside this one."""


@dataclass(slots=True, kw_only=True)
class ShardReads:
    """Runs of one consumer after the other, and what they registered. Implements `KnownStream`."""

    streams: MemoryStreams = field(default_factory=MemoryStreams)
    listed: tuple[TableSettings, ...] = (KEYLESS,)
    registered: dict[int, PartitionProgress] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    position: int = 0
    asked: list[Collection[int] | None] = field(default_factory=list)
    look_every: timedelta = timedelta(seconds=30)

    def identity(self) -> StreamIdentity | None:
        return None

    def next_offset(self) -> str | None:
        return None

    def progress(self, among: Collection[int] | None = None) -> Mapping[int, PartitionProgress]:
        self.asked.append(among)
        return {number: each for number, each in self.registered.items() if among is None or number in among}

    def tables(self) -> Mapping[TableName, KnownTable]:
        names = [each.table for each in self.listed]
        return {name: KnownTable(name=name, source_id=0, key=(), published_as="") for name in names}

    def source(self) -> ShardSource:
        settings = KinesisSource(kind="kinesis", stream="{schema}.{table}", reads_per_second=1_000)
        source = kinesis_source(settings, stream="shop", tables=self.listed, connect=lambda: self.streams)
        return replace(source, clock=lambda: self.streams.now, look_every=self.look_every)

    def survey(self) -> ShardSurvey:
        return self.source().survey(self)

    def start(self, survey: ShardSurvey) -> StreamStart:
        first = PartitionProgress(offset=survey.first_offset)
        places = {number: self.registered.get(number, first) for number in survey.stream_partitions}
        return StreamStart(
            progress={number: each for number, each in places.items() if PARTITION_ENDED not in each.last_position},
            last_cut=LastCut(position=encode_position(self.position), requested=False) if self.position else None,
            tables=self.tables(),
            begun={},
            begin_file=lambda _number, _name: 0,
        )

    def run(self) -> None:
        """Everything that is there now, which is registered at its end."""
        survey, is_end = self.survey(), False
        with closing(survey.open(self.start(survey))) as stream:
            stream.send_marker("end")
            while not is_end:
                batch = stream.read(timedelta(milliseconds=5))
                for events in () if batch is None else batch.events:
                    self.notes += [row["note"] for row in events.rows.to_pylist()]
                    self.refused += [each.reason for each in events.unfit]
                for marker in () if batch is None else batch.markers:
                    self.position, is_end = marker.commit_position + 1, True
            self.registered |= stream.progress_at(self.position)

    def send(self, shard: str, *places: int, server: int = 1) -> None:
        for place in places:
            self.streams.put(STREAM, mysql(place, server), shard)


def mysql(place: int, server: int) -> dict[str, Any]:
    source = {"connector": "mysql", "db": "shop", "table": "ev", "server_id": server, "ts_ms": 1_700_000_000_000}
    at = {"file": f"bin.{place // 1_000:06}", "pos": place % 1_000, "row": 0, "gtid": f"a:{place}"}
    return {"op": "c", "before": None, "after": {"note": f"{server} {place}"}, "source": source | at}


def resharded(*times: int) -> ShardReads:
    """Two rows, and then shards without rows, one after the other. `times`: before which of them a run ends."""
    reads = ShardReads()
    reads.send("shard-0", 1_100, 1_200)
    for number in range(3):
        if number in times:
            reads.run()
        reads.streams.replace_shards(STREAM, (f"shard-{number}",), f"shard-{number + 1}")
    return reads


@pytest.mark.parametrize("times", [(), (1,), (0, 1, 2), (2,)])
@pytest.mark.parametrize("expired", [False, True], ids=["kept", "expired"])
def test_rows_that_are_sent_again_behind_empty_shards_count_once(times: tuple[int, ...], *, expired: bool) -> None:
    """The shards without rows are forgotten by the server once they are read to their ends."""
    reads = resharded(*times)
    reads.run()
    for shard in ("shard-0", "shard-1") if expired else ():
        del reads.streams.streams[STREAM][shard]
    reads.send("shard-3", 1_100, 1_200, 1_300)
    reads.run()
    assert (reads.notes, reads.refused) == (["1 1100", "1 1200", "1 1300"], [])


def test_lower_places_of_another_server_are_refused_behind_empty_shards() -> None:
    reads = resharded(1, 2)
    reads.run()
    reads.send("shard-3", 1_050, server=2)
    reads.run()
    assert reads.notes == ["1 1100", "1 1200"]
    assert ["come from the server 2, at lower places" in why for why in reads.refused] == [True]


def test_what_many_splits_and_merges_cost_grows_with_their_number_alone() -> None:
    """One that goes over every path takes twice as long for each of them, and ends at a thousand."""
    reads = ShardReads()
    reads.send("shard-0", 1_100)
    for number in range(800):
        halves = [f"half-{number}-{half}" for half in range(2)]
        reads.streams.replace_shards(STREAM, (f"shard-{number}",), *halves)
        reads.streams.replace_shards(STREAM, tuple(halves), f"shard-{number + 1}")
    survey, before = reads.survey(), time.process_time()
    survey.open(reads.start(survey)).close()
    assert time.process_time() - before < MOST_SECONDS


def test_a_survey_goes_not_over_the_shards_of_all_streams_for_each_stream() -> None:
    """The shards that ever ended stay registered, and become many."""
    reads = ShardReads()
    tables = [TableSettings(name=f"shop.shop.s{number}", columns={"note": "text"}) for number in range(1_000)]
    over = {PARTITION_ENDED: "", FILE_DIGEST: ShardPlace(sequence="5", known_until=EPOCH, is_ended=True).encode()}
    for stream in (table.table.table for table in tables):
        reads.streams.streams[stream] = {"open": MemoryShard()}
        for number in range(10):
            name = {PARTITION_NAME: shard_name(stream, f"over-{number}")}
            place = PartitionProgress(offset=encode_position(1), last_position=name | over)
            reads.registered[len(reads.registered)] = place
    settings = KinesisSource(kind="kinesis", stream="{table}", begin="kept")
    source = kinesis_source(settings, stream="shop", tables=tuple(tables), connect=lambda: reads.streams)
    registered = {each.table: KnownTable(name=each.table, source_id=0, key=(), published_as="") for each in tables}
    before = time.process_time()
    assert replace(source.survey(reads), registered=registered).stale == {}
    assert time.process_time() - before < MOST_SECONDS


def test_a_stream_that_is_created_again_is_not_read_on_under_its_old_places() -> None:
    reads = ShardReads()
    reads.send("shard-0", 1_100)
    reads.run()
    survey = reads.survey()
    with closing(survey.open(reads.start(survey))) as stream:
        reads.streams.identity = "second"
        reads.streams.streams[STREAM]["shard-0"].is_closed = True  # streams are looked at when a shard has ended, too
        for _ in range(4):
            stream.read(timedelta(milliseconds=5))
        with pytest.raises(StreamMoved, match=r"the stream shop\.ev was deleted and created again"):
            stream.check({})
    assert "was deleted and created again since it was read" in str(reads.survey().stale[EVENTS])


def test_shards_with_a_backlog_take_turns() -> None:
    """Each answer ends with a transaction of which nothing shows yet that it is complete."""
    reads = ShardReads()
    for place in range(1_101, 1_125):
        reads.send("shard-0", place)
        reads.send("shard-1", place + 1_000)
    reads.run()
    halves = [{note.split()[1][0] for note in reads.notes[first : first + 24]} for first in (0, 24)]
    assert halves == [{"1", "2"}, {"1", "2"}]
    assert (len(set(reads.notes)), len(reads.notes), reads.refused) == (48, 48, [])


def test_a_new_shard_costs_no_cut_while_others_are_left_to_read() -> None:
    """What was read of the one that it follows is registered first. Nobody says meanwhile that all was read, nor that
    nothing as old as that one's events can come: the events of the new one may be older than those of the others.
    """
    reads = ShardReads()
    reads.send("shard-0", 1_100)
    reads.send("shard-1", 2_000)
    survey, found = reads.survey(), list[Marker]()
    with closing(survey.open(reads.start(survey))) as stream:
        reads.streams.replace_shards(STREAM, ("shard-0",), "shard-2")
        stream.send_marker("cut")
        while not found:
            batch = stream.read(timedelta(milliseconds=5))
            found += () if batch is None else batch.markers
        assert ([marker.is_end for marker in found], stream.check({})) == ([False], {})
        reads.position = found[0].commit_position + 1
        reads.registered |= stream.progress_at(reads.position)
        assert PARTITION_ENDED not in reads.registered[0].last_position
        assert reads.source().oldest_version_to_come(EVENTS, reads.registered).startswith(f"{1:08x}")
        reads.streams.denied.add(STREAM)  # what was found before the registration is not asked for again after it
        with pytest.raises(StreamMoved, match=r"shop\.ev shard-2 is new"):
            stream.confirm(0)
    reads.streams.denied.clear()
    reads.send("shard-2", 1_500)
    reads.run()
    assert (PARTITION_ENDED in reads.registered[0].last_position, reads.notes) == (True, ["1 1500"])


def test_the_end_of_the_last_shard_is_registered_after_new_ones() -> None:
    reads = ShardReads()
    reads.send("shard-0", 1_100)
    survey = reads.survey()
    with closing(survey.open(reads.start(survey))) as stream:
        reads.streams.replace_shards(STREAM, ("shard-0",), "shard-1")
        for _ in range(4):
            stream.read(timedelta(milliseconds=5))
        with pytest.raises(StreamMoved, match=r"shop\.ev shard-1 is new"):
            stream.check({})


def test_a_shard_that_waits_for_another_consumers_asks_for_that_one_alone() -> None:
    """It asks every two seconds, and the shards that ever ended are many."""
    reads = resharded(1, 2)
    survey = reads.survey()
    parent, own = (number for number, name in survey.stream_partitions.items() if name.endswith(("-2", "-3")))
    start = reads.start(survey)
    with closing(survey.open(replace(start, progress={own: start.progress[own]}))) as stream:
        reads.asked.clear()
        stream.send_marker("looks now")
        stream.read(timedelta(milliseconds=5))
        assert reads.asked == [{parent}]
        reads.run()
        stream.send_marker("looks again")
        with pytest.raises(StreamMoved, match="a shard was read to its end"):
            stream.read(timedelta(milliseconds=5))


def many_streams(*names: str, look_every: timedelta) -> ShardReads:
    """One table and one shard for each."""
    tables = tuple(TableSettings(name=f"shop.shop.{name}", columns={"note": "text"}) for name in names)
    reads = ShardReads(listed=tables, look_every=look_every)
    for name in names:
        reads.streams.put(f"shop.{name}", mysql(1_100, 1))
    return reads


def test_before_a_cut_only_streams_are_asked_for_that_lack_the_successor_of_a_shard() -> None:
    """However many there are: each takes a call to AWS, and nothing is read meanwhile."""
    reads = many_streams("one", "two", "three", look_every=timedelta(hours=1))
    survey, is_read = reads.survey(), False
    with closing(survey.open(reads.start(survey))) as stream:
        reads.streams.replace_shards("shop.two", ("shard-0",), "shard-1")
        stream.send_marker("cut")
        reads.streams.described.clear()
        while not is_read:
            batch = stream.read(timedelta(milliseconds=5))
            is_read = batch is not None and bool(batch.markers)
        assert (stream.check({}), reads.streams.described) == ({}, ["shop.two"])


def test_after_a_cut_streams_are_looked_at_in_turn() -> None:
    reads = many_streams("one", "two", "three", look_every=timedelta(0))
    survey = reads.survey()
    with closing(survey.open(reads.start(survey))) as stream:
        reads.streams.described.clear()
        for _ in range(4):
            stream.confirm(0)
    assert reads.streams.described == ["shop.one", "shop.three", "shop.two", "shop.one"]


@pytest.mark.parametrize(
    ("seconds", "looked_at", "turns"), [(2.9, ["a", "b"], ["c", "a", "b"]), (3_600.0, ["a", "b", "c"], ["a", "b", "c"])]
)
def test_a_look_is_at_one_stream_for_each_second_since_the_last_one(
    seconds: float, looked_at: list[str], turns: list[str]
) -> None:
    """Looks may be an hour apart, as cuts are; so each stream has its turn."""
    assert in_turn(["a", "b", "c"], seconds) == (looked_at, turns)
