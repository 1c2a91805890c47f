"""Reads the records of one shard as lines of a stream partition."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog

from cdc_pipeline.errors import StreamMoved
from cdc_pipeline.sources.debezium.partition import LinesWithoutFiles
from cdc_pipeline.sources.files.partition_files import RawLine
from cdc_pipeline.sources.kinesis.shards import (
    EMPTY_ANSWERS,
    Fetched,
    ShardClient,
    ShardPlace,
    ShardRecord,
    ShardStream,
    keeps_the_rest,
    shard_name,
)
from cdc_pipeline.time_slice import EPOCH

log = structlog.get_logger()

_MICROSECOND = timedelta(microseconds=1)
_NOTES_PER_RETENTION = 96


@dataclass(slots=True, kw_only=True)
class ShardRecords(LinesWithoutFiles):
    """The records of one shard from `place` on. Implements `LineSource`.

    `offset` counts the lines that were read of the shard and of its parents: sequence numbers have up to 56 digits, and
    a line's sequence number is kept beside the offset, as its digest. The same record always has the same offset, since
    both are registered together. A shard that was read to its end gets a last line without a row. So does a shard that
    is quiet for long, so that `known_until` is registered. `place` is None for a shard that was never read.
    `begins`: see `SurveyedShard`.
    """

    client: ShardClient
    stream: ShardStream
    shard: str
    offset: int
    place: ShardPlace | None
    begins: datetime | None
    pause: timedelta
    clock: Callable[[], datetime]
    _waiting: deque[RawLine] = field(default_factory=deque)
    _iterator: str | None = None
    _expects: str = ""
    """The sequence number of the record that an iterator must return first. It was read before."""
    _at_tip: bool = False
    _must_look: bool = False
    _looked_at: datetime | None = None
    _empty_answers: deque[datetime] = field(default_factory=lambda: deque(maxlen=EMPTY_ANSWERS))
    """When they were asked for: those since the last record."""
    _next_fetch: float = 0.0
    _begins_late: bool = False
    _open_at: datetime | None = None
    """A time at which the shard was surely open."""

    @property
    def name(self) -> str:
        return shard_name(self.stream.name, self.shard)

    @property
    def is_ended(self) -> bool:
        """Whether the shard is closed and every line of it was returned."""
        return self.place is not None and self.place.is_ended and not self._waiting

    @property
    def at_end(self) -> bool:
        return self.is_ended or (self._at_tip and not self._waiting and not self._must_look)

    @property
    def next_fetch(self) -> float:
        """When the shard may be read again, on the monotonic clock."""
        return self._next_fetch

    def look_again(self) -> None:
        """Makes `at_end` wait for everything that the shard has now."""
        self._must_look, self._looked_at = True, self.clock()

    def next_lines(self, most_bytes: int, *, fresh: bool) -> list[RawLine]:
        """Returns records of about `most_bytes`. Asks for more if none is here and the pause is over."""
        del fresh  # The pause between two reads holds for everybody.
        if not self._waiting:
            self._fetch()
        lines: list[RawLine] = []
        left = most_bytes
        while self._waiting and left > 0:
            line = self._waiting.popleft()
            lines.append(line)
            left -= len(line.text)
            self.offset = line.place + 1
        return lines

    def begin_after(self, parents: "Sequence[ShardRecords]") -> None:
        """Begins a shard that was never read behind those that it came from, which were read to their ends."""
        if self.place is None:
            self.offset = max([self.offset, *(each.offset for each in parents)])
            closed = (each.place.known_until for each in parents if each.place is not None)
            self.begins = max((time for time in (self.begins, *closed) if time is not None), default=None)

    def _fetch(self) -> None:
        """Reads once. Raises StreamMoved if records may have expired since the last read: a new survey finds out."""
        if self.is_ended or time.monotonic() < self._next_fetch:
            return
        began = self.clock()
        self._begins_late = self._begins_late or self._known_until is None
        self._open_at = self._open_at or self._known_until
        if self._iterator is None:
            self._open()
        fetched = None if self._iterator is None else self.client.fetch(self.stream, self._iterator)
        self._next_fetch = time.monotonic() + self.pause.total_seconds()
        if fetched is None:
            self._iterator = None
            return
        self._iterator = fetched.following
        known_until, self._must_look = self._look(fetched, began), False
        self._add(self._new_records(fetched.records), known_until, is_last=fetched.following is None)

    def _look(self, fetched: Fetched, began: datetime) -> datetime:
        """Notes whether the answer is the shard's present end. Returns up to which time every record was read, if so.

        If the server does not say it, several empty answers in a row do; so does a record that came after `look_again`.
        """
        if fetched.behind is not None:
            self._at_tip = not fetched.behind
            return began - fetched.behind
        if fetched.records:
            newest = fetched.records[-1].arrived
            self._empty_answers.clear()
            self._at_tip = self._looked_at is not None and newest > self._looked_at
            return newest
        self._empty_answers.append(began)
        self._at_tip = self.stream.counts_as_read(self.shard, len(self._empty_answers))
        return self._empty_answers[0]

    def _open(self) -> None:
        """Opens an iterator at the last record that was read, which shows that it is still kept."""
        self._expects = "" if self.place is None else self.place.sequence
        self._iterator = self.client.iterator(self.stream, self.shard, self._expects)
        if self._iterator is None:
            self._refuse_gap()
            self._expects = ""
            self._iterator = self.client.iterator(self.stream, self.shard, "")

    def _new_records(self, records: tuple[ShardRecord, ...]) -> tuple[ShardRecord, ...]:
        """Returns the records after the last one that was read."""
        if not records:
            if self._at_tip:
                self._refuse_gap()
            return ()
        expected, self._expects = self._expects, ""
        if records[0].sequence == expected:
            return records[1:]
        self._refuse_gap()
        return records

    def _refuse_gap(self) -> None:
        """Raises StreamMoved unless the time, or the last record that was read, shows that nothing after it is gone."""
        until, now = self._known_until, self.clock()
        if until is None or (self.place is None and self.stream.keeps(until, now)):
            return
        if self.place is None or not keeps_the_rest(self.client, self.stream, self.shard, self.place, now):
            kept = self.stream if self.place is None else self.place.kept_by(self.stream)
            raise StreamMoved(
                f"unread records of {self.name} after {until:%Y-%m-%d %H:%M} UTC may be gone",
                expected=f"a consumer that is never behind by more than the stream kept: {kept.retention}",
                remedy="the consumer opens the stream again, and finds out which tables are stale",
            )

    @property
    def _known_until(self) -> datetime | None:
        """Every record up to this time was read, or is not missed. None for a shard that begins late."""
        return self.begins if self.place is None else self.place.known_until

    def _add(self, records: tuple[ShardRecord, ...], known_until: datetime, *, is_last: bool) -> None:
        after = self.offset
        for number, record in enumerate(records):
            is_newest = number == len(records) - 1
            place = self._place(record.sequence, max(record.arrived, known_until) if is_newest else record.arrived)
            written = (record.arrived - EPOCH) // _MICROSECOND
            self._waiting.append(self._line(after + number, place, record.line, written))
            self.place, self._open_at = place, record.arrived
        if is_last:
            # What a shard lacks that begins late is not missed in the shards after it, either.
            was_open = known_until if self._begins_late else self._open_at or known_until
            self._note(replace(self._place(self._sequence, was_open), is_ended=True))
        elif self._at_tip and self._is_due(known_until):
            self._note(self._place(self._sequence, known_until))

    def _place(self, sequence: str, known_until: datetime) -> ShardPlace:
        return ShardPlace(sequence=sequence, known_until=known_until, retention=self.stream.retention)

    @property
    def _sequence(self) -> str:
        return "" if self.place is None else self.place.sequence

    def _is_due(self, known_until: datetime) -> bool:
        place, retention = self.place, self.stream.retention
        if place is None or place.retention != retention:
            return True
        return known_until - place.known_until > retention / _NOTES_PER_RETENTION

    def _note(self, place: ShardPlace) -> None:
        """Adds a line without a row, with which the place is registered."""
        last = self._waiting[-1].place + 1 if self._waiting else self.offset
        self._waiting.append(self._line(last, place, b"", 0))
        self.place, self._open_at = place, place.known_until

    def _line(self, offset: int, place: ShardPlace, text: bytes, written: int) -> RawLine:
        number = int(place.sequence or 0)
        return RawLine(place=offset, file=self.name, number=number, text=text, written=written, digest=place.encode())
