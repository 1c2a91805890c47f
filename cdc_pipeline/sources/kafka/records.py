"""Reads records of several topic partitions by one client, and returns them as lines of each partition."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from operator import methodcaller
from typing import Never

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from msgspec import structs

from cdc_pipeline.errors import PartitionFailed, SourceError, StreamMoved
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.debezium.envelope import LAST_TIME, EnvelopeEvent
from cdc_pipeline.sources.debezium.one_line import attempt
from cdc_pipeline.sources.debezium.partition import Content, LinesWithoutFiles, SourceLine
from cdc_pipeline.sources.debezium.record_line import RecordLine, record_content
from cdc_pipeline.sources.kafka.client import CALL_SECONDS, KafkaClient
from cdc_pipeline.sources.kafka.topics import partition_name, read_ends, read_offset

_MOST_AT_ONCE = 5_000
_MOST_WAITING_BYTES = 64 << 20
"""What may wait of up to 64 partitions. Above its share, a partition is paused until its records were taken."""
_FEWEST_SHARES = 4
_LEAST_SHARE = 1 << 20
"""The share of each of more partitions: then more waits in all."""
_MICROSECONDS = 1_000
_HAS_TIME = (TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME)
_GONE = {
    KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - librdkafka's own codes begin with an underscore
    KafkaError._LOG_TRUNCATION,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_CALL_HEADERS = methodcaller("headers")
"""The client returns a broken list with the error of a name that is no UTF-8. The interpreter passes over that error in
a plain call that it has optimized, and dies of the list."""
_DAMAGED = {KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG}  # noqa: SLF001


@dataclass(slots=True, kw_only=True)
class PartitionRecords(LinesWithoutFiles):
    """The records of one topic partition from `offset` on, as a queue that `TopicRecords` fills. A `LineSource`.

    `deleted_rows`: the table whose rows tombstones delete, None if tombstones have no effect. `id`: the columns of its
    id, () if they are not known yet.
    """

    topic: str
    partition: int
    offset: int
    deleted_rows: TableName | None = None
    id: tuple[str, ...] = ()
    fetch: Callable[[], None] = lambda: None
    waiting: deque[RecordLine] = field(default_factory=deque)
    waiting_bytes: int = 0
    ended_at: int | None = None
    """The end of the partition, once it was reached; None while the broker has more."""
    must_reach: int = 0
    """The partition's end when a marker message was sent. `at_end` is False before it."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = partition_name(self.topic, self.partition)

    @property
    def at_end(self) -> bool:
        return not self.waiting and self.ended_at is not None and self.ended_at >= self.must_reach

    @property
    def next_offset(self) -> int:
        """The offset after the last record that came."""
        return self.waiting[-1].place + 1 if self.waiting else self.offset

    def read_until(self, offset: int) -> int:
        """Returns the offset before which no record is left, `offset` if that is not known.

        It may be higher than the last record's if all records that were returned are before `offset`: markers and
        aborted records of Kafka's transactions have offsets, too, and are never returned.
        """
        is_all = offset >= self.offset and not self.waiting and self.ended_at is not None
        return max(offset, self.ended_at or 0) if is_all else offset

    def next_lines(self, most_bytes: int, *, fresh: bool) -> list[RecordLine]:
        """Returns fetched records of about `most_bytes`. Asks the broker for more if there are none."""
        del fresh  # The broker is asked each time.
        if not self.waiting:
            self.fetch()
        lines: list[RecordLine] = []
        left = most_bytes
        while self.waiting and left > 0:
            line = self.waiting.popleft()
            lines.append(line)
            size = line.size_bytes
            left -= size
            self.waiting_bytes -= size
            self.offset = line.place + 1
        return lines

    def add(self, message: Message) -> None:
        """Adds a record. One that came before is dropped: a paused partition may send it again."""
        if (message.offset() or 0) < self.next_offset:
            return
        line = record_line(message, self.name, self.deleted_rows)
        if line.value is None and self._names_more_than_id(line):
            line = structs.replace(line, deleted_rows=None)
        self.ended_at = None
        self.waiting.append(line)
        self.waiting_bytes += line.size_bytes

    def content(self, raw: SourceLine) -> Content:
        """Returns the content of a record, or why it cannot be read: a tombstone may be that of another table."""
        if isinstance(raw, RecordLine) and raw.value is None and raw.deleted_rows != self.deleted_rows:
            return attempt(self._refuse_tombstone)
        return record_content(raw)

    def _names_more_than_id(self, tombstone: RecordLine) -> bool:
        """Returns whether its key has fields beyond the id, so that the row of that id may be another one's, too."""
        found = record_content(tombstone) if self.id else None
        return isinstance(found, EnvelopeEvent) and found.key is not None and set(self.id) < found.key.keys()

    def _refuse_tombstone(self) -> Never:
        raise SourceError(
            f"a tombstone of {self.topic} has a key with more than the id of {self.deleted_rows}",
            expected=f"a key with {', '.join(self.id)} alone: with more, it may delete a row of another table, too",
            remedy="give each table a topic of its own, or correct message.key.columns of the connector",
        )


class TopicRecords:
    """Fetches the records of `partitions`, by stream partition, by one client."""

    def __init__(self, client: KafkaClient, partitions: Mapping[int, PartitionRecords]) -> None:
        self.partitions = partitions
        self._client = client
        self._by_place = {(part.topic, part.partition): part for part in partitions.values()}
        self._share = max(_LEAST_SHARE, _MOST_WAITING_BYTES // max(_FEWEST_SHARES, len(partitions)))
        self._paused: dict[str, PartitionRecords] = {}
        for part in partitions.values():
            part.fetch = self.fetch
        places = [TopicPartition(part.topic, part.partition, part.offset) for part in partitions.values()]
        client.ask(lambda: client.consumer.assign(places))

    def fetch(self, wait: timedelta = timedelta(0)) -> None:
        """Adds records to their partitions; waits up to `wait` if there are none yet.

        Raises StreamMoved for an offset that the broker does not have: a new survey finds out why. Raises SourceAway or
        SourceError if the connection broke and nothing came.
        """
        self._resume_taken()
        messages = self._client.ask(partial(self._messages, wait))
        for message in messages:
            error, part = message.error(), self._by_place.get((message.topic() or "", message.partition() or 0))
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
                self._refuse(error, part)
            elif part is not None and error is not None:
                part.ended_at = message.offset()
            elif part is not None:
                part.add(message)
                self._pause_full(part)
        if messages:
            self._client.forget_trouble()
        elif wait and self._client.trouble is not None:
            self._client.fail(self._client.trouble)

    def _messages(self, wait: timedelta) -> list[Message]:
        """Returns what has come. `consume` with a time would wait for all of it, until so many records are there."""
        consumer = self._client.consumer
        found = consumer.consume(_MOST_AT_ONCE, timeout=0)
        if not found and wait:
            first = consumer.poll(wait.total_seconds())
            found = [] if first is None else [first, *consumer.consume(_MOST_AT_ONCE, timeout=0)]
        return found

    def mark_ends(self) -> None:
        """Makes `at_end` wait for everything that the broker has now. Raises as `fetch` does."""
        places = [TopicPartition(part.topic, part.partition) for part in self.partitions.values()]
        for place, end in read_ends(self._client, places).items():
            part = self._by_place[place.topic, place.partition]
            try:
                found = read_offset(self._client, end)
            except KafkaException:
                found = self._end_of(part)
            part.must_reach = max(part.must_reach, found)

    def _end_of(self, part: PartitionRecords) -> int:
        """Returns the end of one partition. Unlike the request for many, it is repeated while a leader is elected."""
        place = TopicPartition(part.topic, part.partition)
        try:
            ends = self._client.consumer.get_watermark_offsets(place, timeout=CALL_SECONDS)
        except KafkaException as error:
            self._refuse(error.args[0], part)
        return part.must_reach if ends is None else ends[1]

    def _pause_full(self, part: PartitionRecords) -> None:
        """Pauses a partition whose records wait to be taken, so that the memory of a consumer is bounded."""
        if part.waiting_bytes > self._share and part.name not in self._paused:
            self._client.consumer.pause([TopicPartition(part.topic, part.partition)])
            self._paused[part.name] = part

    def _resume_taken(self) -> None:
        for part in [part for part in self._paused.values() if not part.waiting]:
            self._client.consumer.resume([TopicPartition(part.topic, part.partition)])
            del self._paused[part.name]

    def _refuse(self, error: KafkaError, part: PartitionRecords | None) -> Never:
        name = "a topic" if part is None else part.name
        if error.code() in _GONE:
            raise StreamMoved(
                f"the broker cannot continue {name}: {error.str()}",
                expected="a topic that keeps its records until they are read",
                remedy="the consumer opens the stream again, and finds out which tables are stale",
            )
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and part is not None:
            raise PartitionFailed(
                f"the broker refuses to send {name}: {error.str()}",
                stream_partition=self._number(part),
                expected="a user who may read the topic",
                remedy="give source.username the right to read it: the consumer tries again by itself",
            )
        if error.code() in _DAMAGED and part is not None:
            raise PartitionFailed(
                f"records of {name} from offset {part.next_offset} on cannot be read: {error.str()}",
                stream_partition=self._number(part),
                expected="records as their producer wrote them",
                remedy="let a whole replica lead the partition: the consumer tries again by itself",
            )
        self._client.fail(error)

    def _number(self, part: PartitionRecords) -> int:
        return next(number for number, each in self.partitions.items() if each is part)


def record_line(message: Message, name: str, deleted_rows: TableName | None = None) -> RecordLine:
    """Returns a record of the partition `name`. `deleted_rows`: as for `RecordLine`."""
    kind, time = message.timestamp()
    offset = message.offset() or 0
    return RecordLine(
        place=offset,
        file=name,
        number=offset,
        written=min(max(time * _MICROSECONDS, 0), LAST_TIME) if kind in _HAS_TIME else 0,
        key=message.key(),
        value=message.value(),
        headers=_headers(message),
        deleted_rows=deleted_rows,
    )


def _headers(message: Message) -> dict[str, str | None] | None:
    """Returns the record's headers, None if they cannot be read: the client refuses a name that is no UTF-8."""
    try:
        headers = _CALL_HEADERS(message) or []
    except SystemError:
        return None
    return {name: _text(content) for name, content in (headers.items() if isinstance(headers, dict) else headers)}


def _text(content: str | bytes | None) -> str | None:
    return content.decode(errors="backslashreplace") if isinstance(content, bytes) else content
