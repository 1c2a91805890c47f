"""Lines of the log on their way through a Kafka broker."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Producer

from tests.support.kafka import TIMEOUT_SECONDS, Topics


@dataclass(slots=True, kw_only=True)
class TopicRecords:
    """Implements `Paper`: records in topics, one for each table. `prefix` begins their names.

    A partition of the log is in the partition of the same number, as far as the topic has so many. `grows`: topics get
    more partitions, so that the next records of a row are in another one. `most`: how many they get.
    """

    topics: Topics
    prefix: str
    counts: dict[str, int]
    grows: bool
    most: int
    producer: Producer
    ends: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table, count in self.counts.items():
            self.topics.create(self._topic(table), partitions=count)

    def write(self, partition: int, texts: Sequence[str]) -> None:
        for text in texts:
            self._put(partition, text)
        assert self.producer.flush(TIMEOUT_SECONDS) == 0

    def odd(self, partition: int, text: str) -> None:
        self._append("orders", partition, None, text.encode(), {})
        assert self.producer.flush(TIMEOUT_SECONDS) == 0

    def roll(self, partition: int) -> None:
        """The topic of orders gets another partition, if it may."""
        del partition
        if self.grows and self.counts["orders"] < self.most:
            self.counts["orders"] += 1
            self.topics.grow(self._topic("orders"), partitions=self.counts["orders"])
            while self._writable("orders") < self.counts["orders"]:
                continue

    def expire(self) -> bool:
        for (table, partition), end in self.ends.items():
            self.topics.drop_before(self._topic(table), partition, end)
        return True

    def _put(self, partition: int, text: str) -> None:
        record = json.loads(text)
        table = record["table"]
        headers = {name: value.encode() for name, value in record["headers"]}
        key, value = (None if record[part] is None else json.dumps(record[part]).encode() for part in ("key", "value"))
        self._append(table, partition, key, value, headers)

    def _append(
        self, table: str, partition: int, key: bytes | None, value: bytes | None, headers: Mapping[str, bytes]
    ) -> None:
        at = partition % self.counts[table]
        self.producer.produce(self._topic(table), key=key, value=value, partition=at, headers=dict(headers))
        self.ends[table, at] = self.ends.get((table, at), 0) + 1

    def _writable(self, table: str) -> int:
        """The number of partitions that the producer knows."""
        name = self._topic(table)
        return len(self.producer.list_topics(name, TIMEOUT_SECONDS).topics[name].partitions)

    def _topic(self, table: str) -> str:
        return f"{self.prefix}.public.{table}"
