"""Topics that Kafka Connect writes exactly once, in Kafka's own transactions: their markers have offsets, too."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.kafka import TopicFeed
from tests.support.transaction_lines import begin_value, end_value, event_value

pytestmark = pytest.mark.kafka

ORDERS = "public.orders"
TABLES = ({"name": ORDERS, "id": ["id"], "columns": {"id": "int", "note": "text"}},)


@pytest.fixture
def feed(tmp_path: Path, store_url: str, kafka: str) -> TopicFeed:
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES)
    feed.create(ORDERS)
    return feed


def write(feed: TopicFeed, id_: int, *, aborts: bool = False) -> None:
    with feed.topics.transaction(aborts=aborts) as producer:
        producer.produce(feed.topic(ORDERS), json.dumps(feed.event(ORDERS, id_, "kept")))


def expire_all(feed: TopicFeed, *topics: str) -> None:
    for topic in topics:
        feed.topics.drop_before(feed.topic(topic), 0, -1)


def test_markers_and_aborted_records_are_no_missing_ones(feed: TopicFeed) -> None:
    write(feed, 1)
    write(feed, 2, aborts=True)
    feed.consume()
    expire_all(feed, ORDERS)
    feed.go_on()
    (state,) = [row["state"] for row in feed.shown("lag")]
    assert state != "stale"
    with feed.topics.transaction() as producer:
        producer.produce(feed.topic(ORDERS), json.dumps(feed.event(ORDERS, 3, "kept")))
        producer.flush(30)
        write(feed, 4)
        feed.go_on()
        assert feed.notes(ORDERS) == {1: "kept"}, "an open transaction holds back what is after it"
    feed.go_on()
    assert feed.notes(ORDERS) == dict.fromkeys((1, 3, 4), "kept")


def test_a_transaction_topic_that_retention_emptied_misses_nothing(feed: TopicFeed) -> None:
    feed.create("transaction")
    feed = replace(feed, source={"transactions": feed.topic("transaction")})

    def transfer(number: int) -> None:
        source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders"}
        event: dict[str, Any] = event_value(number, 1)
        event |= {"source": event["source"] | source, "before": None, "after": {"id": number, "note": "kept"}}
        with feed.topics.transaction() as producer:
            for topic, value in (
                ("transaction", begin_value(number)),
                (ORDERS, event),
                ("transaction", end_value(number, {ORDERS: 1})),
            ):
                producer.produce(feed.topic(topic), json.dumps(value))

    transfer(1)
    feed.consume()
    expire_all(feed, ORDERS, "transaction")
    with capture_logs() as logs:
        feed.go_on()
        transfer(2)
        feed.go_on()
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == []
    assert feed.notes(ORDERS) == {1: "kept", 2: "kept"}
