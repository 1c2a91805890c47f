"""What topics do while they are read: they grow, lose records, are compacted, deleted, and hold odd records."""

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import PartitionFailed, SourceAway, StreamMoved
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.topics import read_topic_ids
from tests.support.kafka import SecureKafka, TopicFeed
from tests.support.recordings import ORDER_40, PLAIN, WITH_SCHEMA, recorded, shown, until_the_last_statement

pytestmark = pytest.mark.kafka

ORDERS, ITEMS = "public.orders", "public.items"
TABLES = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))


@pytest.fixture
def feed(tmp_path: Path, store_url: str, kafka: str) -> TopicFeed:
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES)
    for table in (ORDERS, ITEMS):
        feed.create(table)
    return feed


@pytest.mark.parametrize(
    ("recording", "tables"), [("postgres_plain", PLAIN), ("postgres_with_schema", WITH_SCHEMA)], ids=["plain", "schema"]
)
def test_what_debezium_recorded_ends_as_the_server_did(
    recording: str, tables: tuple[dict[str, Any], ...], tmp_path: Path, store_url: str, kafka: str
) -> None:
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=tables)
    messages = until_the_last_statement(recorded(recording))
    feed.replay(messages, prefix=messages[0]["topic"].split(".")[0])
    feed.consume()
    assert shown(feed.rows(ORDERS)) == [ORDER_40]
    assert feed.rows("public.keyless") == []
    assert len(feed.shown("quarantine")) == 1


def test_the_offsets_of_the_group_follow_the_registered_ones(feed: TopicFeed) -> None:
    feed.write(ORDERS, 1, "one")
    feed.consume()
    client = Consumer({"bootstrap.servers": feed.servers, "group.id": "shop", "log_level": 2})
    (found,) = client.committed([TopicPartition(feed.topic(ORDERS), 0)], timeout=30)
    client.close()
    assert found.offset == 1


def test_a_new_partition_is_read_from_its_first_record(feed: TopicFeed) -> None:
    feed.write(ORDERS, 1, "one")
    feed.consume()
    feed.topics.grow(feed.topic(ORDERS), partitions=2)
    feed.write(ORDERS, 2, "two", partition=1)
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "one", 2: "two"}


def test_records_that_retention_deleted_make_their_table_stale_and_no_other(feed: TopicFeed) -> None:
    for number in (1, 2):
        feed.write(ORDERS, number, "first")
        feed.write(ITEMS, number, "first")
    feed.consume()
    for number in (3, 4):
        feed.write(ORDERS, number, "later")
        feed.write(ITEMS, number, "later")
    feed.topics.drop_before(feed.topic(ORDERS), 0, 3)
    feed.go_on()
    states = {row["source_table"]: (row["state"], row["reason"]) for row in feed.shown("lag")}
    state, reason = states["shop.public.orders"]
    assert state == "stale"
    assert "keeps" in reason
    assert "from offset 3 on, and it is read up to offset 2" in reason
    assert "have Debezium send the table's rows again" in reason
    assert states["shop.public.items"][0] != "stale"
    assert (len(feed.notes(ORDERS)), len(feed.notes(ITEMS))) == (2, 4)


def test_a_topic_that_was_created_again_makes_its_table_stale(feed: TopicFeed) -> None:
    feed.write(ORDERS, 1, "one")
    feed.consume()
    feed.topics.delete(feed.topic(ORDERS))
    feed.create(ORDERS)
    feed.write(ORDERS, 2, "two")
    feed.go_on()
    (row,) = [row for row in feed.shown("lag") if row["source_table"] == "shop.public.orders"]
    assert (row["state"], "was deleted and created again" in row["reason"]) == ("stale", True)
    assert feed.notes(ORDERS) == {1: "one"}


def test_a_topic_that_is_created_again_while_it_is_read_makes_its_table_stale(feed: TopicFeed) -> None:
    """It soon has the offset at which the old one was read, and the broker goes on there without a word."""
    for number in (1, 2, 3):
        feed.write(ORDERS, number, "old")
    feed.set_up()
    with feed.opened() as pipeline, pipeline.consumer_runs().open() as consumer:
        stream_to_slices_until_idle(consumer)
        feed.topics.delete(feed.topic(ORDERS))
        feed.create(ORDERS)
        for number in range(4, 10):
            feed.write(ORDERS, number, "new")
        with pytest.raises(StreamMoved, match=r"created again while it was read|cannot continue"):
            stream_to_slices_until_idle(consumer)
    feed.write(ITEMS, 1, "later")
    feed.go_on()
    states = {row["source_table"]: (row["state"], row["reason"] or "") for row in feed.shown("lag")}
    assert states["shop.public.orders"][0] == "stale"
    assert "was deleted and created again" in states["shop.public.orders"][1]
    assert feed.notes(ORDERS) == dict.fromkeys((1, 2, 3), "old")
    assert feed.notes(ITEMS) == {1: "later"}


def test_a_topic_that_is_deleted_while_it_is_read_waits_alone(feed: TopicFeed) -> None:
    feed.write(ORDERS, 1, "one")
    feed.set_up()
    with feed.opened() as pipeline, pipeline.consumer_runs().open() as consumer:
        stream_to_slices_until_idle(consumer)
        feed.topics.delete(feed.topic(ORDERS))
        with pytest.raises(StreamMoved, match=r"the broker cannot continue .*\.orders \[0\]"):
            consumer.send_marker()
    feed.write(ITEMS, 1, "later")
    feed.go_on()
    assert (feed.notes(ORDERS), feed.notes(ITEMS)) == ({1: "one"}, {1: "later"})


def test_a_topic_that_is_not_shown_has_no_id(feed: TopicFeed) -> None:
    source = KafkaSource(kind="kafka", servers=feed.servers, topic=f"{feed.prefix}.{{schema}}.{{table}}")
    present, missing = feed.topic(ORDERS), feed.topic("public.none")
    with closing(KafkaClient(source, feed.folder, group="none")) as client:
        before = read_topic_ids(client, (present, missing))
        feed.topics.delete(present)
        feed.create(ORDERS)
        after = read_topic_ids(client, (present, missing))
    assert before.keys() == after.keys() == {present}
    assert before != after


def test_a_topic_without_its_first_records_is_refused_unless_what_is_kept_suffices(feed: TopicFeed) -> None:
    for number in (1, 2):
        feed.write(ORDERS, number, "kept")
    feed.topics.drop_before(feed.topic(ORDERS), 0, 1)
    (refused,) = feed.set_up().refused.values()
    assert "from offset 1 on, and it is read up to offset 0" in str(refused)
    assert "begin: kept" in refused.remedy
    kept = TopicFeed(
        folder=feed.folder,
        store_url=feed.store_url,
        servers=feed.servers,
        tables=TABLES,
        source={"begin": "kept"},
        prefix=feed.prefix,
    )
    kept.consume()
    assert kept.notes(ORDERS) == {2: "kept"}


def test_begin_kept_misses_what_expired_after_the_begin_and_nothing_before(
    tmp_path: Path, store_url: str, kafka: str
) -> None:
    source = {"begin": "kept"}
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES, source=source)
    for table in (ORDERS, ITEMS):
        feed.create(table, partitions=2)
        feed.write(table, 1, "expired before the begin")
        feed.topics.drop_before(feed.topic(table), 0, 1)
    feed.consume()
    feed.write(ITEMS, 2, "in an empty partition that lacks its first record")
    feed.write(ORDERS, 2, "expires unread", partition=1)
    feed.topics.drop_before(feed.topic(ORDERS), 1, 1)
    feed.write(ORDERS, 3, "later", partition=1)
    feed.go_on()
    states = {row["source_table"]: (row["state"], row["reason"] or "") for row in feed.shown("lag")}
    assert states["shop.public.items"][0] != "stale"
    assert feed.notes(ITEMS) == {2: "in an empty partition that lacks its first record"}
    assert states["shop.public.orders"][0] == "stale"
    assert "[1] from offset 1 on, and it is read up to offset 0" in states["shop.public.orders"][1]


def test_a_compacted_topic_is_refused_unless_its_records_are_declared_as_upserts(
    tmp_path: Path, store_url: str, kafka: str
) -> None:
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES[:1])
    feed.create(ORDERS, settings={"cleanup.policy": "compact"})
    (refused,) = feed.set_up().refused.values()
    assert "is compacted" in str(refused)
    upserts = TopicFeed(
        folder=tmp_path,
        store_url=store_url,
        servers=kafka,
        tables=TABLES[:1],
        source={"compacted": "upserts"},
        prefix=feed.prefix,
    )
    for number in (1, 2):
        feed.write(ORDERS, number, "kept")
    feed.topics.write(feed.topic(ORDERS), None, key={"id": 1})
    upserts.consume()
    assert upserts.notes(ORDERS) == {2: "kept"}


def test_a_tombstone_of_another_table_in_the_same_topic_is_quarantined(
    tmp_path: Path, store_url: str, kafka: str
) -> None:
    """Debezium's ByLogicalTableRouter writes several tables to one topic, and adds the table's name to the key."""
    source = {"compacted": "upserts"}
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES[:1], source=source)
    feed.create(ORDERS, settings={"cleanup.policy": "compact"})
    feed.write(ORDERS, 1, "kept")
    feed.topics.write(feed.topic(ORDERS), None, key={"id": 1, "__dbz__physicalTableIdentifier": "public.visits"})
    feed.consume()
    assert feed.notes(ORDERS) == {1: "kept"}
    (found,) = feed.shown("quarantine")
    assert "has a key with more than the id of shop.public.orders" in found["reason"]


def test_a_compacted_topic_whose_records_retention_deleted_stops_its_table_and_no_other(
    tmp_path: Path, store_url: str, kafka: str
) -> None:
    source = {"compacted": "upserts"}
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES, source=source)
    feed.create(ORDERS, settings={"cleanup.policy": "compact,delete"})
    feed.create(ITEMS, settings={"cleanup.policy": "compact"})
    for table in (ORDERS, ITEMS):
        feed.write(table, 1, "first")
    feed.consume()
    for table in (ORDERS, ITEMS):
        feed.write(table, 2, "later")
        feed.write(table, 3, "later")
    feed.topics.drop_before(feed.topic(ORDERS), 0, 2)
    feed.go_on()
    assert {row["source_table"]: row["state"] == "stale" for row in feed.shown("lag")} == {
        "shop.public.orders": True,
        "shop.public.items": False,
    }
    assert (len(feed.notes(ORDERS)), len(feed.notes(ITEMS))) == (1, 3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\xff\xfe", "is no JSON"),
        (b'{"op":"c"},"value":null', "is no JSON"),
        (b'"text"', "no JSON object"),
        ({"op": "z", "after": {"id": 9}}, "unknown operation"),
    ],
    ids=["no text", "two values", "no object", "operation"],
)
def test_a_record_that_cannot_be_read_is_quarantined_at_its_topics_table(
    value: Any, words: str, feed: TopicFeed
) -> None:
    feed.write(ITEMS, 1, "before")
    feed.topics.write(feed.topic(ITEMS), value, None, key={"id": 9})
    feed.write(ITEMS, 2, "after")
    feed.consume()
    (kept,) = feed.shown("quarantine")
    assert kept["source_table"] == "shop.public.items"
    assert f"{feed.topic(ITEMS)} [0] line 1" in kept["reason"]
    assert words in kept["reason"]
    assert feed.notes(ITEMS) == {1: "before", 2: "after"}


@pytest.mark.parametrize("compression", ["uncompressed", "gzip"])
def test_records_that_were_damaged_on_the_brokers_disk_are_refused_by_partition_and_offset(
    compression: str, feed: TopicFeed, secure_kafka: SecureKafka
) -> None:
    feed.create("public.packed", settings={"compression.type": compression})
    topic = feed.topic("public.packed")
    feed = replace(feed, tables=({**TABLES[0], "name": "public.packed"},))
    feed.write("public.packed", 1, "one")
    feed.consume()
    feed.write("public.packed", 2, "x" * 1_000)
    (log,) = secure_kafka.ca.parent.rglob(f"{topic}-0/*0.log")
    with log.open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"\x55" * 5)
    with pytest.raises(PartitionFailed, match=r"packed \[0\] from offset 1 on cannot be read"):
        feed.go_on()
    assert feed.notes("public.packed") == {1: "one"}


def test_brokers_that_do_not_answer_are_an_outage_with_a_remedy(tmp_path: Path, store_url: str) -> None:
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers="127.0.0.1:1", tables=TABLES)
    with pytest.raises(SourceAway, match=r"127.0.0.1:1 do not answer.*correct source.servers"):
        feed.set_up()
