"""A compacted topic with the events of several listed tables: its tombstones do not say whose rows they delete."""

from dataclasses import replace
from pathlib import Path

import pytest

from cdc_pipeline.record import TableName
from tests.support.kafka import TopicFeed

pytestmark = pytest.mark.kafka

ORDERS, ITEMS = "public.orders", "public.items"
TABLES = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))
WHY = "is compacted, and several tables share it"


@pytest.fixture
def feed(tmp_path: Path, store_url: str, kafka: str) -> TopicFeed:
    """Both tables are in the topic of the orders."""
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES)
    feed.create(ORDERS, settings={"cleanup.policy": "compact"})
    return replace(feed, source={"compacted": "upserts", "topic": feed.topic(ORDERS)})


def test_a_compacted_topic_that_several_tables_share_is_refused(feed: TopicFeed) -> None:
    refused = feed.set_up().refused
    assert refused.keys() == {TableName.parse(f"shop.{name}") for name in (ORDERS, ITEMS)}
    for error in refused.values():
        assert WHY in str(error)
        assert "a topic of its own" in error.remedy


def test_a_registered_table_waits_while_another_one_is_listed_for_its_compacted_topic(feed: TopicFeed) -> None:
    """Its delete is compacted away while no consumer runs, so that only the tombstone is left."""
    alone = replace(feed, tables=TABLES[:1])
    for number in (1, 2):
        feed.write(ORDERS, number, "kept")
    alone.consume()
    feed.topics.write(feed.topic(ORDERS), None, key={"id": 1})
    feed.set_up()
    feed.go_on()
    (partition,) = feed.shown("partitions")
    assert WHY in partition["held_back"]
    assert [row["state"] for row in feed.shown("lag") if row["state"] == "stale"] == []
    alone.go_on()
    assert alone.notes(ORDERS) == {2: "kept"}
