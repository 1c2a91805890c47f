"""Reads shards in batches of change events: a shard after the shards that were split or merged into it."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from threading import Event as Signal

import structlog

from cdc_pipeline.errors import PartitionFailed, SourceAway, StreamDenied, StreamMoved
from cdc_pipeline.record import PARTITION_ENDED, TableName
from cdc_pipeline.sources.debezium.partition import Decode, Group, PartitionLines
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.kinesis.records import ShardRecords
from cdc_pipeline.sources.kinesis.shards import ShardClient, ShardStream, place_of, shard_name
from cdc_pipeline.sources.known import Document, PartitionProgress
from cdc_pipeline.sources.protocol import EventBatch

log = structlog.get_logger()

_AWAIT_SECONDS = 2.0
"""Between two looks at what other consumers registered of the shards before those of this consumer."""
_NOW = timedelta(0)


class ShardLines(PartitionLines):
    """The lines of one shard. Nothing is returned before everything of `parents` was.

    `begin` is called once, right before the first line: what the parents' lines left behind is known then.
    """

    def __init__(self, records: ShardRecords, decode: Decode, begin: Callable[[], None]) -> None:
        super().__init__(records, decode)
        self.records = records
        self.parents: Sequence[ShardLines] = ()
        self.has_nothing_to_register = records.is_ended
        """The server said at the opening that the last registered record is the shard's last."""
        self._begin = begin
        self._has_begun = False

    @property
    def is_done(self) -> bool:
        """Whether the shard is closed, and its last line was returned."""
        return self._has_begun and self.records.is_ended and not self._held

    def lacks_successor(self, stream: ShardStream) -> bool:
        """Returns whether the shard is done, and `stream` shows it without a shard that was made of it.

        AWS may list a shard later than it closes those before it.
        """
        shard = self.records.shard
        return self.is_done and shard in stream.shards and all(shard not in s.parents for s in stream.shards.values())

    def next_groups(self, *, everything: bool) -> list[Group]:
        if not self._has_begun:
            if not all(parent.is_done for parent in self.parents):
                return []
            self._has_begun = True
            self.records.begin_after([parent.records for parent in self.parents])
            self._begin()
        groups = super().next_groups(everything=everything)
        if self._held and self.records.is_ended:
            # Nothing follows in this shard, so its last transaction is complete.
            groups += super().next_groups(everything=True)
        return groups


class ShardsStream:
    """Implements `ChangeStream` for shards.

    `streams`: names of the streams, whose shards are watched for some that are not in `shown`. `awaits`: a shard of
    this reader waits for another consumer; `is_to_open`: it can be read now. `look_every`: between two looks at the
    streams. `inner` turns lines into batches.
    """

    def __init__(
        self,
        *,
        client: ShardClient,
        streams: Sequence[str],
        lines: Mapping[int, ShardLines],
        shown: frozenset[str],
        awaits: bool,
        is_to_open: Callable[[], bool],
        look_every: timedelta,
        inner: DebeziumStream,
    ) -> None:
        self._client = client
        self._streams = list(streams)
        self._lines = lines
        self._shown = shown
        self._awaits = awaits
        self._is_to_open = is_to_open
        self._inner = inner
        self.position = inner.position
        self._new = ""
        """The name of a new shard that waits until the cut is registered."""
        self._said_to_wait = set[int]()
        self._look_seconds = look_every.total_seconds()
        self._looked_at = time.monotonic()
        self._next_look = self._looked_at + self._look_seconds
        """When `read` looks for the successors of shards that have nothing to register."""
        self._next_await = time.monotonic() + _AWAIT_SECONDS

    def read(self, wait: timedelta) -> EventBatch | None:
        """Raises StreamMoved when a shard can be read that waited for another consumer.

        For a shard without anything to register, `check` may never be called. So while it lacks a successor, this looks
        for one: raises StreamMoved if there is one or the stream is not shown; PartitionFailed if there is none yet and
        this reader has only such shards, so that no other one's open slice is read again for it.
        """
        if time.monotonic() >= self._next_await:
            self._next_await = time.monotonic() + _AWAIT_SECONDS
            if self._is_to_open():
                raise StreamMoved("a shard was read to its end", remedy="the consumer reads the one that follows it")
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self._look_seconds
            ended = (each for each in self._lines.values() if each.has_nothing_to_register)
            self._check_shards(self._lacking(ended), is_needed=False)
        batch = self._read()
        if batch is not None:
            return batch
        Signal().wait(max(0.0, min(self._next_fetch() - time.monotonic(), wait.total_seconds())))
        return self._read()

    def _next_fetch(self) -> float:
        """Returns when a shard can be read; while a transaction is open, when its shard can be."""
        number = self._inner.waits_for
        lines = self._lines.values() if number is None else [self._lines[number]]
        return min((each.records.next_fetch for each in lines if not each.records.is_ended), default=math.inf)

    def send_marker(self, text: str, *, is_heartbeat: bool = False) -> None:
        """Adds a marker message to this reader's own stream; nothing is written to the shards."""
        if not is_heartbeat:
            self._next_await = time.monotonic()
            for lines in self._lines.values():
                lines.records.look_again()
        self._inner.send_marker(text, is_heartbeat=is_heartbeat)

    def _read(self) -> EventBatch | None:
        """While a shard waits for another consumer, or is not known yet, no marker message shows that all was read."""
        batch = self._inner.read(_NOW)
        if batch is None or not batch.markers or not (self._awaits or self._lacking(self._lines.values())):
            return batch
        return replace(batch, markers=tuple(replace(marker, is_end=False) for marker in batch.markers))

    def progress_at(self, position: int) -> dict[int, PartitionProgress]:
        """Leaves a shard unended while its successors are not known: older events than all others' may come there."""
        lacking = {number for number, each in self._lines.items() if each.lacks_successor(each.records.stream)}
        return {
            number: place if number in lacking else _with_end(place)
            for number, place in self._inner.progress_at(position).items()
        }

    def check(self, registered: Mapping[TableName, str | None]) -> dict[TableName, list[Document]]:
        """Looks at the streams of shards that have ended and whose successors are not known.

        Raises StreamMoved if nothing else of this reader is left to read, since somebody has to read the successors;
        SourceAway if it cannot look then, StreamMoved if the shard's stream is not shown, PartitionFailed if its
        successors are not: once the end of the last shard is registered without them, nobody looks again.
        """
        self._check_shards(self._lacking(self._lines.values()), is_needed=True)
        if not self._lines:
            self._look_in_turn()
        return self._inner.check(registered)

    def confirm(self, commit_position: int) -> None:
        """Raises StreamMoved if there is a new shard or another stream, or one shows not every change any more.

        Before the registration, all of the cut would have to be read again. There is nothing to confirm: the streams
        keep every record for a fixed time.
        """
        self._inner.confirm(commit_position)
        if self._new:
            raise _moved_to(self._new)
        self._look_in_turn()

    def close(self) -> None:
        self._inner.close()
        self._client.close()

    @staticmethod
    def _lacking(lines: Iterable[ShardLines]) -> list[str]:
        """Returns the streams of those that have ended, and whose successors were not known at the last look."""
        return sorted({each.records.stream.name for each in lines if each.lacks_successor(each.records.stream)})

    def _described(self, name: str) -> ShardStream | None:
        """Returns the stream, None if it is not shown to these credentials."""
        try:
            return self._client.describe(name)
        except StreamDenied as error:
            log.warning("new shards not looked for", found=error.found)
            return None

    def _look_in_turn(self) -> None:
        """Looks at some of the streams every half minute at most."""
        waited = time.monotonic() - self._looked_at
        if waited >= self._look_seconds:
            self._looked_at += waited
            names, self._streams = in_turn(self._streams, waited)
            self._check_shards(names, is_needed=False)

    def _check_shards(self, streams: Iterable[str], *, is_needed: bool) -> None:
        """`is_needed`: the last of a shard is to be registered. New ones wait until after that, if others are left."""
        can_wait = is_needed and not all(each.is_done for each in self._lines.values())
        for name in streams:
            try:
                stream = self._described(name)
            except SourceAway as error:
                if is_needed:
                    raise
                log.warning("new shards not looked for", found=error.found)
                return
            lines = {number: each for number, each in self._lines.items() if each.records.stream.name == name}
            if stream is None:
                if self._lacking(lines.values()):
                    raise StreamMoved(
                        f"a shard of {name} has ended, and its successors are not shown",
                        remedy="the consumer opens the stream again: its shards wait until it is shown",
                    )
                continue
            self._check_stream(stream, lines, can_wait=can_wait, is_needed=is_needed)

    def _check_stream(
        self, stream: ShardStream, lines: Mapping[int, ShardLines], *, can_wait: bool, is_needed: bool
    ) -> None:
        new = {shard_name(stream.name, shard) for shard in stream.shards} - self._shown
        if new and not can_wait:
            raise _moved_to(min(new))
        if stream.refusal:
            raise StreamMoved(stream.refusal, remedy="the consumer opens the stream again: its table is stale")
        if any(each.records.stream.identity != stream.identity for each in lines.values()):
            raise StreamMoved(
                f"the stream {stream.name} was deleted and created again",
                remedy="the consumer opens the stream again: its table is stale",
            )
        self._await_successors(stream, lines, is_needed=is_needed)
        if new:
            self._new = min(new)
            return
        for each in lines.values():
            each.records.stream = stream

    def _await_successors(self, stream: ShardStream, lines: Mapping[int, ShardLines], *, is_needed: bool) -> None:
        """Raises PartitionFailed, or warns once, for a shard that was read to its end and has no successor yet."""
        reads_others = not all(each.has_nothing_to_register for each in self._lines.values())
        for number, each in lines.items():
            if not each.lacks_successor(stream):
                continue
            failure = _has_no_successor(each.records.name, number)
            if is_needed or not reads_others:
                raise failure
            if number not in self._said_to_wait:
                self._said_to_wait.add(number)
                log.warning("stream partition waits", found=failure.found, remedy=failure.remedy)


def in_turn(streams: Sequence[str], seconds: float) -> tuple[list[str], list[str]]:
    """Returns the streams to look at so long after the last look, one for each second; and all, in their next order.

    AWS allows some ten such calls a second to everybody together, and nothing is read meanwhile.
    """
    count = max(1, int(seconds))
    return [*streams[:count]], [*streams[count:], *streams[:count]]


def _moved_to(shard: str) -> StreamMoved:
    return StreamMoved(f"{shard} is new", remedy="the consumer opens the stream again and reads it, too")


def _has_no_successor(shard: str, number: int) -> PartitionFailed:
    return PartitionFailed(
        f"{shard} has ended, and the server lists no shard that follows it",
        stream_partition=number,
        expected="a shard that was split or merged out of it: the stream goes on there",
        remedy="wait: its end is registered once the next shard is listed. The others are read meanwhile",
    )


def _with_end(progress: PartitionProgress) -> PartitionProgress:
    """Marks the progress of a shard that was read to its end, so that no consumer takes it again."""
    place = place_of(progress)
    if place is None or not place.is_ended:
        return progress
    return replace(progress, last_position={**progress.last_position, PARTITION_ENDED: ""})
