"""Reads topic partitions in batches of change events, and keeps the broker's group offsets for tools that show lag."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import structlog
from confluent_kafka import KafkaException, TopicPartition

from cdc_pipeline.errors import SourceAway, StreamMoved
from cdc_pipeline.record import TableName, decode_position, encode_position
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.records import TopicRecords
from cdc_pipeline.sources.kafka.topics import partition_name, read_cluster, read_topic_ids, read_topics
from cdc_pipeline.sources.known import Document, PartitionProgress
from cdc_pipeline.sources.protocol import EventBatch

log = structlog.get_logger()

_CHECK_SECONDS = 30.0
_NOW = timedelta(0)


class KafkaStream:
    """Implements `ChangeStream` for topic partitions.

    `tables`: those whose topics are watched for partitions that are not in `shown`, as the transaction topic is.
    `topic_ids`: of each topic that is read, its id when it was surveyed. `inner` turns lines into batches.
    """

    def __init__(
        self,
        *,
        client: KafkaClient,
        settings: KafkaSource,
        tables: Sequence[TableName],
        records: TopicRecords,
        shown: frozenset[str],
        topic_ids: Mapping[str, str],
        inner: DebeziumStream,
    ) -> None:
        self._client = client
        self._patterns = [settings.topic_pattern(table) for table in tables]
        if settings.transactions is not None:
            self._patterns.append(re.compile(re.escape(settings.transactions)))
        self._records = records
        self._shown = shown
        self._topic_ids = topic_ids
        self._inner = inner
        self.position = inner.position
        self._places: Mapping[int, PartitionProgress] = {}
        self._reached: dict[int, int] = {}
        """Offsets that no record is left before, beyond the last record that was read."""
        self._next_check = time.monotonic() + _CHECK_SECONDS

    def read(self, wait: timedelta) -> EventBatch | None:
        batch = self._inner.read(_NOW)
        if batch is not None:
            return batch
        self._records.fetch(wait)
        return self._inner.read(_NOW)

    def send_marker(self, text: str, *, is_heartbeat: bool = False) -> None:
        """Adds a marker message to this reader's own stream; nothing is written to the cluster."""
        ends = {}
        if not is_heartbeat:
            self._records.mark_ends()
            ends = {number: part.must_reach for number, part in self._records.partitions.items()}
        self._inner.send_marker(text, is_heartbeat=is_heartbeat, ends=ends)

    def progress_at(self, position: int) -> dict[int, PartitionProgress]:
        places = self._inner.progress_at(position)
        for number, part in self._records.partitions.items():
            offset = decode_position(places[number].offset)
            reached = max(part.read_until(offset), self._reached.get(number, 0))
            if reached > offset:
                self._reached[number] = reached
                places[number] = replace(places[number], offset=encode_position(reached))
        self._places = places
        return places

    def check(self, registered: Mapping[TableName, str | None]) -> dict[TableName, list[Document]]:
        """Raises StreamMoved if a topic was created again: what was read of it may lack its first records.

        Also if a partition can be read that could not be, or is new: looks for those every half minute, if the cluster
        answers.
        """
        self._check_topic_ids()
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + _CHECK_SECONDS
            self._check_partitions()
        return self._inner.check(registered)

    def confirm(self, commit_position: int) -> None:
        """Commits the registered offsets as those of the group, for tools that show the lag. Does not wait for it.

        The pipeline never reads them: where reading continues is in the metadata store.
        """
        del commit_position
        offsets = [
            TopicPartition(part.topic, part.partition, decode_position(self._places[number].offset))
            for number, part in self._records.partitions.items()
            if number in self._places
        ]
        try:
            self._client.consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            log.warning("group offsets not committed", found=error.args[0].str())

    def close(self) -> None:
        self._inner.close()
        self._client.close()

    def _check_topic_ids(self) -> None:
        """A topic that is not shown now is passed over: nothing else came under its name, and it cannot be read on."""
        if not self._topic_ids:
            return
        for name, found in read_topic_ids(self._client, self._topic_ids).items():
            if found != self._topic_ids[name]:
                raise StreamMoved(
                    f"the topic {name} was deleted and created again while it was read",
                    remedy="the consumer opens the stream again, and finds out which tables are stale",
                )

    def _check_partitions(self) -> None:
        try:
            cluster = read_cluster(self._client)
            names = [name for name, partitions in cluster.topics.items() if self._new(name, range(partitions))]
            topics = read_topics(self._client, cluster, names)
        except SourceAway as error:
            log.warning("new partitions not looked for", found=error.found)
            return
        new = [name for topic in topics.values() for name in self._new(topic.name, topic.kept)]
        if new:
            raise StreamMoved(
                f"{min(new)} is new, or can be read again",
                remedy="the consumer opens the stream again and reads it, too",
            )

    def _new(self, topic: str, partitions: Iterable[int]) -> set[str]:
        """Returns those of a topic's partitions that are to be read, and of which the survey did not know enough."""
        is_named = any(pattern.fullmatch(topic) for pattern in self._patterns)
        return {partition_name(topic, number) for number in partitions} - self._shown if is_named else set()
