"""A Kafka topic with one table, for the suite of sources; see `source_arms`."""

import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.wiring import Pipeline
from tests.support.event_files import NOBODY_LISTENS
from tests.support.kafka import Topics
from tests.support.memory_source import Change
from tests.support.pipelines import opened_pipeline
from tests.support.source_arms import debezium_events
from tests.support.transaction_lines import begin_value, end_value, event_value


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaArm:
    """One topic with one partition on a broker that other tests use, too.

    `announced`: another topic says where each transaction begins and ends.
    """

    folder: Path
    servers: str
    store_url: str
    announced: bool = False
    prefix: str = field(default_factory=lambda: f"shop{secrets.token_hex(4)}")
    transactions: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        for topic in (self.topic, *([self.announcing] if self.announced else [])):
            Topics(servers=self.servers).create(topic)

    @property
    def topic(self) -> str:
        return f"{self.prefix}.public.orders"

    @property
    def announcing(self) -> str:
        return f"{self.prefix}.transaction"

    @property
    def table(self) -> TableName:
        return TableName.parse("shop.public.orders")

    def opened(self) -> AbstractContextManager[Pipeline]:
        pattern = self.topic.replace("public.orders", "{schema}.{table}")
        announced = {"transactions": self.announcing} if self.announced else {}
        document = {
            "folder": self.folder,
            "name": "shop",
            "lake": "lake",
            "slice_length": "1h",
            "source": {"kind": "kafka", "servers": self.servers, "topic": pattern} | announced,
            "tables": [{"name": str(self.table), "id": ["id"], "columns": {"id": "int", "note": "text"}}],
        }
        settings = Settings.model_validate(document)
        return opened_pipeline(settings, store_url=self.store_url, spark_url=NOBODY_LISTENS)

    def commit(self, *changes: Change) -> None:
        topics, number = Topics(servers=self.servers), next(self.transactions)
        if self.announced:
            topics.write(self.announcing, begin_value(number))
        for order, event in enumerate(debezium_events(number, *changes), 1):
            key = {"id": (event["after"] or event["before"])["id"]}
            topics.write(self.topic, _of_transaction(event, number, order) if self.announced else event, key=key)
        if self.announced:
            topics.write(self.announcing, end_value(number, {"public.orders": len(changes)}, second=number))

    def made(self) -> list[Any]:
        """Nothing but the topic that is there."""
        return [name.rpartition(".")[2] for name in Topics(servers=self.servers).names() if name == self.topic]


def _of_transaction(event: dict[str, Any], transaction: int, order: int) -> dict[str, Any]:
    """The event with its place in a transaction that is announced."""
    placed = event_value(transaction, order)
    return (
        event
        | {"source": placed["source"] | event["source"] | {"lsn": placed["source"]["lsn"]}}
        | {"transaction": placed["transaction"]}
    )
