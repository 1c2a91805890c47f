"""A partition that cannot be read stops alone: the others are registered, and the store says why it is held back."""

import ctypes
import json
import os
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import pytest

from cdc_pipeline.consume.stream_to_slices import stream_to_slices_until_idle
from cdc_pipeline.errors import PartitionFailed
from tests.support.eventually import eventually
from tests.support.kafka import SecureKafka, TopicFeed

pytestmark = pytest.mark.kafka

ORDERS, ITEMS = "public.orders", "public.items"
TABLES = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))
_TOPIC, _PARTITION, _VALUE, _HEADER, _END = 1, 3, 4, 9, 0
"""Kinds of arguments of librdkafka's `rd_kafka_producev`."""


@pytest.fixture
def feed(tmp_path: Path, store_url: str, kafka: str) -> TopicFeed:
    return TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES)


def test_a_topic_that_is_not_shown_any_more_waits_alone_and_holds_back_its_table(feed: TopicFeed) -> None:
    feed = replace(feed, source={"topic": f"^{feed.prefix}[a-z]?\\.{{schema}}\\.{{table}}"})
    shards = {shard: replace(feed, prefix=f"{feed.prefix}{shard}") for shard in "ab"}
    for shard in shards.values():
        shard.create(ORDERS)
    shards["a"].create(ITEMS)
    shards["a"].write(ORDERS, 1, "a1")
    shards["b"].write(ORDERS, 2, "b1")
    shards["a"].write(ITEMS, 1, "i1")
    feed.consume()
    lost = shards["b"].topic(ORDERS)
    (before,) = [row["watermark"] for row in feed.shown("partitions") if row["partition"] == f"{lost} [0]"]
    feed.topics.delete(lost)
    assert eventually(lambda: lost not in feed.topics.names(), 30)
    shards["a"].write(ORDERS, 3, "a2")
    feed.go_on()
    assert feed.notes(ORDERS) == {1: "a1", 2: "b1", 3: "a2"}
    rows = {row["partition"]: row for row in feed.shown("partitions")}
    held_back = rows.pop(f"{lost} [0]")
    assert held_back["watermark"] == before
    assert f"does not show the topic {lost} of shop.public.orders" in held_back["held_back"]
    assert all(row["watermark"] > before and row["held_back"] is None for row in rows.values())
    reasons = {row["source_table"]: row["reason"] for row in feed.shown("lag")}
    assert f"{lost} [0] is not read" in reasons["shop.public.orders"]
    assert "is not read" not in reasons["shop.public.items"]


def test_a_consumer_of_which_every_topic_is_hidden_ends_once_it_is_idle(feed: TopicFeed) -> None:
    feed = replace(feed, tables=TABLES[:1])
    feed.create(ORDERS)
    feed.write(ORDERS, 1, "one")
    feed.consume()
    (before,) = feed.shown("partitions")
    feed.topics.delete(feed.topic(ORDERS))
    assert eventually(lambda: feed.topic(ORDERS) not in feed.topics.names(), 30)
    feed.go_on()
    (after,) = feed.shown("partitions")
    assert (after["watermark"], feed.notes(ORDERS)) == (before["watermark"], {1: "one"})


def test_what_other_partitions_hold_is_registered_before_the_failure_is_raised(
    feed: TopicFeed, secure_kafka: SecureKafka
) -> None:
    for table in (ORDERS, ITEMS):
        feed.create(table, settings={"compression.type": "uncompressed"})
    feed.write(ORDERS, 1, "one")
    feed.consume()
    feed.write(ORDERS, 2, "x" * 1_000)
    feed.write(ITEMS, 1, "good")
    (log,) = secure_kafka.ca.parent.rglob(f"{feed.topic(ORDERS)}-0/*0.log")
    with log.open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"\x55" * 5)
    with pytest.raises(PartitionFailed, match=r"orders \[0\] from offset 1 on cannot be read"):
        feed.go_on()
    assert (feed.notes(ORDERS), feed.notes(ITEMS)) == ({1: "one"}, {1: "good"})
    held_back = {row["partition"]: row["held_back"] for row in feed.shown("partitions")}
    assert "cannot be read" in held_back[f"{feed.topic(ORDERS)} [0]"]
    assert held_back[f"{feed.topic(ITEMS)} [0]"] is None


def test_a_marker_asks_for_the_ends_of_many_partitions_at_once(feed: TopicFeed) -> None:
    """One by one, each answer would wait for the one of a fetch before it: half a second for each partition."""
    feed = replace(feed, tables=TABLES[:1])
    feed.create(ORDERS, partitions=60)
    for partition in range(60):  # each has a leader once it takes a record
        feed.write(ORDERS, partition, "one", partition=partition)
    feed.set_up()
    with feed.opened() as pipeline, pipeline.consumer_runs().open() as consumer:
        stream_to_slices_until_idle(consumer)
        begun = os.times().elapsed
        stream_to_slices_until_idle(consumer)
        assert os.times().elapsed - begun < 15
    assert len(feed.notes(ORDERS)) == 60


def test_a_header_whose_name_is_no_text_stops_nothing(feed: TopicFeed) -> None:
    feed = replace(feed, tables=TABLES[:1])
    feed.create(ORDERS)
    for number in range(30):
        write_with_header(feed, number, b"caf\xe9")
    feed.consume()
    assert feed.notes(ORDERS) == dict.fromkeys(range(30), "odd")


def write_with_header(feed: TopicFeed, id_: int, name: bytes) -> None:
    """Writes by librdkafka itself, since its Python client takes no such name."""
    (path,) = Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    settings, why = ctypes.c_void_p(library.rd_kafka_conf_new()), ctypes.create_string_buffer(500)
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", feed.servers.encode(), why, ctypes.c_size_t(500))
    producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, why, ctypes.c_size_t(500)))
    value = json.dumps(feed.event(ORDERS, id_, "odd")).encode()
    topic = ctypes.c_char_p(feed.topic(ORDERS).encode())
    of_value = ctypes.c_char_p(value), ctypes.c_size_t(len(value))
    of_header = ctypes.c_char_p(name), ctypes.c_char_p(b"x"), ctypes.c_ssize_t(1)
    arguments = _TOPIC, topic, _PARTITION, ctypes.c_int32(0), _VALUE, *of_value, _HEADER, *of_header, _END
    assert library.rd_kafka_producev(producer, *arguments) == 0
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)
