"""Reads topic partitions in batches that end where every transaction of the source is whole."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import numpy as np
import structlog

from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.held_lines import MissedEvents, Release
from cdc_pipeline.sources.debezium.one_line import Undecodable
from cdc_pipeline.sources.debezium.partition import Line, PartitionLines
from cdc_pipeline.sources.debezium.record_line import RecordLine
from cdc_pipeline.sources.debezium.transaction_records import transaction_record
from cdc_pipeline.sources.debezium.whole_transactions import LONGEST_WAIT, ReadEnds, WholeTransactions
from cdc_pipeline.sources.files.stream import DebeziumStream, OpenMarker, Reached, transactions_of
from cdc_pipeline.sources.kafka.records import PartitionRecords
from cdc_pipeline.sources.known import PartitionProgress
from cdc_pipeline.sources.protocol import EventBatch, TableEvents

log = structlog.get_logger()

_MOST_BYTES = 1 << 20
_ROOM = 1 << 20
"""Stream positions that are kept free before lines that cannot be registered yet, for marker messages in between."""
_SECONDS_BETWEEN_WARNINGS = 10.0


class _OpenRelease(msgspec.Struct, kw_only=True):
    """Lines that were released and not closed. `first`, `next`: their stream positions, and the next one.

    `reached`: by stream partition, its offset after the last of them, and the new states of its tables.
    """

    first: int
    next: int
    commit_time: int
    reached: dict[int, tuple[int, dict[str, str]]] = msgspec.field(default_factory=dict)


class WholeTransactionStream(DebeziumStream):
    """Implements `ChangeStream` for topic partitions and the one partition of Debezium's transaction topic.

    `partitions`, `records`: those that are read. `transactions`: the number of the transaction topic's partition.
    `mark_ends`: has the broker asked for the present end of each partition. `whole`: decides which lines are released.
    `clock`: seconds that never go back.
    """

    def __init__(
        self,
        *,
        partitions: Mapping[int, PartitionLines],
        progress: Mapping[int, PartitionProgress],
        decoder: DebeziumDecoder,
        position: int,
        commit_time: datetime,
        records: Mapping[int, PartitionRecords],
        transactions: int,
        mark_ends: Callable[[], None],
        whole: WholeTransactions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            partitions=partitions,
            progress=progress,
            decoder=decoder,
            position=position,
            commit_time=commit_time,
            folders=progress.keys,
        )
        self._mark_ends = mark_ends
        self._topic = records[transactions]
        self._topic_number = transactions
        self._data = {number: part for number, part in records.items() if number != transactions}
        self._whole = whole
        self._clock = clock
        self._release: _OpenRelease | None = None
        self._asked: ReadEnds | None = None
        self._released_at = clock()
        self._warned_at = -_SECONDS_BETWEEN_WARNINGS
        self._not_warned = 0

    def read(self, wait: timedelta) -> EventBatch | None:
        """Returns the next batch that was released. Does not wait: its caller waits for records."""
        del wait
        self._take_lines()
        self._take_transactions()
        self._meet_markers()
        release = self._whole.release()
        if release is not None:
            self._released_at = self._clock()
            self._warn_of(release.missed)
            return self._batch(release)
        if self._awaits_ends():
            return None
        self._meet_blocked_markers()
        finished = self._finished_markers()
        if finished:
            return self._marked(finished, holds_lines=self._whole.holds_lines)
        self._warn_if_it_stands()
        return None

    def _take_lines(self) -> None:
        for number, part in self._data.items():
            if self._whole.is_full(number):
                continue
            found = part.next_lines(_MOST_BYTES, fresh=False)
            if found:
                lines = [Line(raw=raw, content=part.content(raw)) for raw in found]
                self._whole.add(number, lines, sum(raw.size_bytes for raw in found))

    def _take_transactions(self) -> None:
        if not self._whole.has_room_for_records:
            return
        for raw in self._topic.next_lines(_MOST_BYTES, fresh=False):
            try:
                record = transaction_record(raw)
            except Undecodable as error:
                self._warn_of_record(raw, str(error))
                continue
            if record is not None:
                self._whole.add_record(record)

    def _awaits_ends(self) -> bool:
        """Has the broker asked for the ends of the partitions, if a decision needs them. Returns whether it does."""
        if self._asked is None:
            self._asked = self._whole.asks_for
            if self._asked is not None:
                self._mark_ends()
            return self._asked is not None
        short = [number for number, part in self._data.items() if not _has_reached_end(part)]
        if all(self._whole.is_full(number) for number in short):
            self._whole.reached_ends(self._asked, short)
            self._asked = None
        return True

    def _meet_markers(self) -> None:
        for number, lines in self._partitions.items():
            if lines.files.at_end:
                for marker in self._markers:
                    marker.waits_for.discard(number)

    def _meet_blocked_markers(self) -> None:
        """Lets marker messages pass partitions that are full, if nothing else is to be read: the lines stay held."""
        full = {number for number in self._data if self._whole.is_full(number)}
        if full and all(lines.files.at_end or number in full for number, lines in self._partitions.items()):
            for marker in self._markers:
                marker.waits_for -= full

    def _finished_markers(self) -> list[OpenMarker]:
        has_room = self._release is None or self._next + len(self._markers) < self._release.first
        return super()._finished_markers() if has_room else []

    def _batch(self, release: Release) -> EventBatch:
        opened = self._release
        if opened is None:
            first = self._next if release.is_closed else self._next + _ROOM
            opened = _OpenRelease(first=first, next=first, commit_time=self._commit_time)
        events: list[TableEvents] = []
        for number, taken in release.taken.items():
            for _, lines in taken:
                self._decode(number, lines, opened)
            events.extend(_at(found, opened.first) for found in self._decoder.take(number))
        if release.offset is not None:
            opened.next += 1
            opened.reached[self._topic_number] = release.offset, {}
        self._release = opened
        ended = [self._close(opened)] if release.is_closed else []
        return EventBatch(events=tuple(events), transactions=transactions_of(ended))

    def _decode(self, number: int, lines: Sequence[Line], opened: _OpenRelease) -> None:
        decoded = self._decoder.add(number, lines, opened.next)
        self._skipped.update(decoded.skipped)
        opened.next += len(lines)
        if decoded.commit_time is not None:
            opened.commit_time = max(opened.commit_time, decoded.commit_time)
        _, last_position = opened.reached.get(number) or (0, {})
        last_position.update(decoded.last_position)
        opened.reached[number] = lines[-1].raw.place + 1, last_position

    def _close(self, opened: _OpenRelease) -> tuple[int, int, int]:
        self._release = None
        self._next, self._commit_time = opened.next, opened.commit_time
        self._reached.extend(
            Reached(end=opened.next, stream_partition=number, offset=offset, last_position=last_position)
            for number, (offset, last_position) in opened.reached.items()
        )
        return opened.first, opened.next, opened.commit_time

    def _warn_of(self, missed: Sequence[MissedEvents]) -> None:
        for each in missed:
            if self._may_warn():
                log.warning(
                    "a boundary may have a part of a transaction",
                    topic=self._topic.topic,
                    transaction=each.transaction,
                    found=each.found,
                    expected=each.expected,
                    remedy="nothing is lost: what comes later is read, too. See docs/how-to/kafka.md for the causes",
                )

    def _warn_of_record(self, raw: RecordLine, why: str) -> None:
        if self._may_warn():
            log.warning(
                "record of the transaction topic not read",
                found=f"{raw.file} line {raw.number} {why}",
                expected="a BEGIN or an END, as JSON",
                remedy="name Debezium's transaction topic in source.transactions",
            )

    def _may_warn(self) -> bool:
        """Returns whether enough time has passed since the last warning. Says how many were left out."""
        now = self._clock()
        if now - self._warned_at < _SECONDS_BETWEEN_WARNINGS:
            self._not_warned += 1
            return False
        if self._not_warned:
            log.warning("further warnings of transactions left out", count=self._not_warned)
        self._warned_at, self._not_warned = now, 0
        return True

    def _warn_if_it_stands(self) -> None:
        now = self._clock()
        if not self._whole.holds_lines and self._release is None:
            self._released_at = now
        elif now - self._released_at >= LONGEST_WAIT.total_seconds():
            self._released_at = now
            found, expected = self._whole.waits_for()
            log.warning(
                "the stream waits for the rest of a transaction",
                topic=self._topic.topic,
                found=found,
                expected=expected,
                remedy="see that Debezium runs with provide.transaction.metadata = true and writes to this topic;"
                " or leave out source.transactions, and read each partition by itself",
            )


def _has_reached_end(part: PartitionRecords) -> bool:
    return part.at_end or part.offset >= part.must_reach


def _at(events: TableEvents, position: int) -> TableEvents:
    """Returns the events at one commit position: they are registered together."""
    return replace(
        events,
        commit_position=np.full(len(events.commit_position), position, dtype=np.int64),
        unfit=tuple(replace(event, commit_position=position) for event in events.unfit),
    )
