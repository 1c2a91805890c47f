"""A partition without a leader, and a topic whose settings are hidden, wait alone: the other tables are read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cdc_pipeline.errors import SourceAway, SourceError
from tests.support.command_line import CommandLine, consuming, query
from tests.support.eventually import eventually
from tests.support.kafka import PASSWORD, TIMEOUT_SECONDS, USER, KafkaBroker, SecureKafka, TopicFeed
from tests.support.second_broker import FIRST_NODE, SecondBroker

pytestmark = pytest.mark.kafka

ORDERS, ITEMS = "public.orders", "public.items"
TABLES = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))
_ROWS = "SELECT coalesce(sum(rows), 0) FROM cdc.slice"
_STALE = "SELECT count(*) FROM cdc.source_table WHERE state = 'stale'"


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[KafkaBroker, SecondBroker]]:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first = KafkaBroker(folder=tmp_path / "first")
    second = SecondBroker(first=first, folder=tmp_path / "second")
    first.start()
    try:
        second.start()
        yield first, second
    finally:
        second.kill()
        first.kill()


def held_back(feed: TopicFeed) -> dict[str, str]:
    return {row["partition"]: row["held_back"] or "" for row in feed.shown("partitions")}


def test_a_partition_without_a_leader_waits_alone_and_is_read_again_with_one(
    brokers: tuple[KafkaBroker, SecondBroker], tmp_path: Path, store_url: str
) -> None:
    first, second = brokers
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=first.servers, tables=TABLES)
    cdc = CommandLine(folder=tmp_path, source_url=store_url, store_url=store_url)
    cdc.write_settings(**feed.document | {"slice_length": "1s"})

    def registers(rows: int) -> bool:
        return eventually(lambda: query(store_url, _ROWS) == [(rows,)], TIMEOUT_SECONDS)

    second.create(feed.topic(ORDERS))
    second.create(feed.topic(ITEMS), node=FIRST_NODE)
    feed.write(ORDERS, 1, "one")
    assert cdc.run("setup-source").exit_code == 0
    with consuming(cdc, "before"):
        assert registers(1)
    second.kill()
    with consuming(cdc, "consumer") as consumer:  # opens while the cluster still names the dead leader
        feed.write(ITEMS, 1, "while it answers no more")
        assert registers(2)
        assert eventually(lambda: not second.leads(feed.topic(ORDERS)))
        assert eventually(lambda: "which records it keeps of" in held_back(feed)[f"{feed.topic(ORDERS)} [0]"])
        feed.write(ITEMS, 2, "without a leader")
        assert registers(3)
        assert held_back(feed)[f"{feed.topic(ITEMS)} [0]"] == ""
        second.start()
        assert eventually(lambda: second.leads(feed.topic(ORDERS)))
        feed.write(ORDERS, 2, "two")
        assert registers(4)
        assert consumer.poll() is None
    assert feed.notes(ORDERS) == {1: "one", 2: "two"}
    assert query(store_url, _STALE) == [(0,)]
    second.kill()
    assert eventually(lambda: not second.leads(feed.topic(ORDERS)))
    with pytest.raises(SourceAway, match="which records it keeps of"):
        replace(feed, tables=TABLES[:1]).go_on()


class Rights:
    """The rights of `USER` on a topic. One without any is everyone's."""

    def __init__(self, feed: TopicFeed, table: str) -> None:
        self._servers, self._topic = feed.servers, feed.topic(table)

    def give(self, *operations: AclOperation) -> None:
        admin = self._admin
        rights = [AclBinding(**self._right, operation=operation) for operation in operations]
        for answer in admin.create_acls(rights).values():
            answer.result(TIMEOUT_SECONDS)

    def take(self, operation: AclOperation) -> None:
        admin = self._admin
        right = AclBindingFilter(**self._right, operation=operation)
        admin.delete_acls([right])[right].result(TIMEOUT_SECONDS)

    @property
    def _right(self) -> dict[str, Any]:
        return {
            "restype": ResourceType.TOPIC,
            "name": self._topic,
            "resource_pattern_type": ResourcePatternType.LITERAL,
            "principal": f"User:{USER}",
            "host": "*",
            "permission_type": AclPermissionType.ALLOW,
        }

    @property
    def _admin(self) -> AdminClient:
        """A client that has to be kept until its request is answered."""
        return AdminClient({"bootstrap.servers": self._servers, "log_level": 2})


def test_a_topic_whose_settings_are_hidden_waits_alone(
    tmp_path: Path, store_url: str, kafka: str, secure_kafka: SecureKafka
) -> None:
    login = {"servers": secure_kafka.servers, "security": "sasl_ssl", "username": USER, "password": PASSWORD}
    source = login | {"ca_file": str(secure_kafka.ca)}
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES, source=source)
    for table in (ORDERS, ITEMS):
        feed.create(table)
        feed.write(table, 1, "one")
    orders = Rights(feed, ORDERS)
    orders.give(AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    feed.consume()
    orders.take(AclOperation.DESCRIBE_CONFIGS)
    for table in (ORDERS, ITEMS):
        feed.write(table, 2, "two")
    feed.go_on()
    assert (feed.notes(ORDERS), feed.notes(ITEMS)) == ({1: "one"}, {1: "one", 2: "two"})
    said = f"how the topic {feed.topic(ORDERS)} deletes its records"
    assert said in held_back(feed)[f"{feed.topic(ORDERS)} [0]"]
    assert held_back(feed)[f"{feed.topic(ITEMS)} [0]"] == ""
    with pytest.raises(SourceError, match=said) as alone:
        replace(feed, tables=TABLES[:1]).go_on()
    assert not alone.value.outage
    assert "DescribeConfigs" in alone.value.remedy
    orders.give(AclOperation.DESCRIBE_CONFIGS)
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "one", 2: "two"}
