"""Records of Kafka as lines, and topics of tables."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, Message
from pydantic import ValidationError

from cdc_pipeline.consume.slice_cutter import SliceCutter
from cdc_pipeline.errors import PartitionFailed, SettingsError, SourceAway, SourceError, StreamMoved
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.debezium.envelope import LAST_TIME, EnvelopeEvent, Skipped, content_of
from cdc_pipeline.sources.debezium.one_line import LineRefused, TableRefused
from cdc_pipeline.sources.debezium.partition import Content
from cdc_pipeline.sources.debezium.record_line import record_content
from cdc_pipeline.sources.files.stream import transactions_of
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.records import PartitionRecords, TopicRecords, record_line
from cdc_pipeline.sources.protocol import EventBatch
from cdc_pipeline.time_slice import EPOCH

ORDERS = TableName.parse("shop.public.orders")
CREATE = {"op": "c", "before": None, "after": {"id": 1}, "source": {"table": "orders"}}


def source(**changes: object) -> KafkaSource:
    return KafkaSource.model_validate({"kind": "kafka", "servers": "b:9092", "topic": "{schema}.{table}"} | changes)


def content(message: Message, deleted_rows: TableName | None = None) -> Content:
    """What the record says, which is what it says as a line in quarantine."""
    record = record_line(message, "orders 0", deleted_rows)
    found, as_line = record_content(record), content_of(record.text)
    assert repr(found) == repr(as_line)
    return found


def test_a_record_keeps_key_value_and_headers() -> None:
    headers: list[tuple[str, str | bytes | None]] = [("__debezium.oldkey", b'{"id": 7}')]
    message = Message(key=b'{"id": 1}', value=json.dumps(CREATE).encode(), headers=headers)
    event = content(message)
    assert isinstance(event, EnvelopeEvent)
    assert (event.key, event.after, event.old_key) == ({"id": 1}, {"id": 1}, {"id": 7})


@pytest.mark.parametrize(
    ("milliseconds", "written"),
    [(1_790_000_000_000, 1_790_000_000_000_000), (-1, 0), (1_790_000_000_000_000, LAST_TIME), (2**63 - 1, LAST_TIME)],
    ids=["milliseconds", "none", "microseconds", "the last one"],
)
def test_the_time_of_a_record_can_be_cut_at_whatever_its_producer_wrote(milliseconds: int, written: int) -> None:
    message = Message(key=None, value=b"{}", timestamp=(TIMESTAMP_CREATE_TIME, milliseconds))
    line = record_line(message, "orders 0")
    assert line.written == written
    cutter = SliceCutter(start=0, commit_time=EPOCH, slice_length=timedelta(hours=1), slice_rows=10)
    cutter.add(EventBatch(events=(), transactions=transactions_of([(0, 1, line.written), (1, 2, line.written)])))
    assert cutter.due >= EPOCH + timedelta(microseconds=written)


def test_a_tombstone_has_no_effect_unless_records_are_upserts() -> None:
    tombstone = Message(key=b'{"id": 1}', value=None)
    assert content(tombstone) == Skipped(kind="tombstone")
    deleted = content(tombstone, ORDERS)
    assert isinstance(deleted, EnvelopeEvent)
    assert (deleted.operation, deleted.key, deleted.source["table"]) == ("d", {"id": 1}, "orders")


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ({"id": 1}, EnvelopeEvent),
        ({"schema": {}, "payload": {"id": 1}}, EnvelopeEvent),
        ({"id": 1, "__dbz__physicalTableIdentifier": "s.public.visits"}, TableRefused),
        ({"schema": {}, "payload": {"id": 1, "region": "a"}}, TableRefused),
    ],
)
def test_a_tombstone_whose_key_has_more_than_the_id_deletes_no_row(key: dict[str, object], kind: type) -> None:
    """It may be of another table that shares the topic. In quarantine it stays a tombstone, which is no event."""
    part = PartitionRecords(topic="shop", partition=0, offset=0, deleted_rows=ORDERS, id=("id",))
    part.add(Message(key=json.dumps(key).encode(), value=None))
    part.add(Message(key=json.dumps(key).encode(), value=json.dumps(CREATE).encode(), offset=1))
    tombstone, event = part.next_lines(1_000, fresh=True)
    found = part.content(tombstone)
    assert isinstance(found, kind)
    assert isinstance(part.content(event), EnvelopeEvent)
    if kind is TableRefused:
        assert "a tombstone of shop has a key with more than the id of shop.public.orders" in str(found)
        assert "a topic of its own" in str(found)
        assert content_of(tombstone.text) == Skipped(kind="tombstone")


@pytest.mark.parametrize("value", [b"\xff", b"{", b'{"op": "c"}, "value": null', b"1", b""])
def test_what_is_no_event_is_refused_and_never_taken_for_a_tombstone(value: bytes) -> None:
    assert isinstance(content(Message(key=None, value=value)), LineRefused)


@pytest.mark.parametrize(
    ("topic", "named", "other"),
    [
        ("p.{schema}.{table}", "p.public.orders", "pxpublic.orders"),
        ("^shard[0-9]+\\.{database}\\.{table}", "shard12.shop.orders", "shard.shop.orders"),
    ],
)
def test_a_topic_is_named_or_matched_as_a_whole(topic: str, named: str, other: str) -> None:
    pattern = source(topic=topic).topic_pattern(ORDERS)
    assert pattern.fullmatch(named)
    assert not pattern.fullmatch(other)
    assert not pattern.fullmatch(f"{named}2")


def test_a_pattern_that_a_table_makes_unreadable_names_the_table() -> None:
    with pytest.raises(SettingsError, match=r"is no regular expression for the table shop\.public\.c-d: bad char"):
        source(topic="^a(?P<{table}>b)").topic_pattern(TableName.parse("shop.public.c-d"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"security": "sasl_ssl"}, "needs username"),
        ({"username": "cdc"}, "sends no username"),
        ({"security": "sasl_ssl", "username": "cdc", "password": "x", "password_file": "y"}, "keep one of them"),
        ({"ca_file": "ca.pem"}, "uses no certificates"),
        ({"security": "ssl", "key_file": "k"}, "belong together"),
        ({"topic": "^("}, "no regular expression"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        source(**changes)


def test_a_password_is_not_shown() -> None:
    found = source(security="sasl_ssl", username="cdc", password="hidden-word")
    assert "hidden-word" not in f"{found!r} {found.model_dump_json()}"


@pytest.fixture
def records(tmp_path: Path) -> Iterator[TopicRecords]:
    """One partition by a client that meets no broker."""
    client = KafkaClient(source(servers="127.0.0.1:1"), tmp_path, group="none")
    yield TopicRecords(client, {3: PartitionRecords(topic="orders", partition=0, offset=7)})
    client.close()


@pytest.mark.parametrize(
    "code", [KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError.TOPIC_AUTHORIZATION_FAILED]
)
def test_records_that_cannot_be_read_stop_their_partition_alone(records: TopicRecords, code: int) -> None:
    with pytest.raises(PartitionFailed, match=r"orders \[0\]") as failed:
        records._refuse(KafkaError(code), records.partitions[3])
    assert failed.value.stream_partition == 3


def test_a_log_that_was_truncated_is_surveyed_again(records: TopicRecords) -> None:
    with pytest.raises(StreamMoved, match=r"the broker cannot continue orders \[0\]"):
        records._refuse(KafkaError(KafkaError._LOG_TRUNCATION), records.partitions[3])


def test_an_answer_that_came_too_late_for_a_process_that_was_stopped_is_an_outage(records: TopicRecords) -> None:
    late: Future[int] = Future()
    late.set_exception(TimeoutError())  # as `result` raises it once its time is over
    with pytest.raises(SourceAway, match="do not answer"):
        records._client.result(late)


def test_the_more_partitions_there_are_the_less_waits_of_each(tmp_path: Path) -> None:
    client = KafkaClient(source(servers="127.0.0.1:1"), tmp_path, group="none")
    parts = {number: PartitionRecords(topic="orders", partition=number, offset=0) for number in range(100)}
    records = TopicRecords(client, parts)
    for size, paused in ((1 << 19, {}), (1 << 20, {"orders [5]": parts[5]})):
        parts[5].add(Message(key=None, value=bytes(size), offset=parts[5].next_offset))
        records._pause_full(parts[5])
        assert records._paused == paused
    records.fetch()
    assert records._paused
    parts[5].next_lines(4 << 20, fresh=False)
    records.fetch()
    assert not records._paused
    client.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SASL PLAIN mechanism handshake failed: Local: Broker transport failure", SourceAway),
        ("SASL authentication error: Disconnected", SourceAway),
        ("SASL authentication error: Authentication failed", SourceError),
    ],
)
def test_a_connection_that_is_lost_during_the_login_is_no_refusal(
    text: str, kind: type[SourceError], records: TopicRecords
) -> None:
    with pytest.raises(SourceError) as failed:
        records._client.fail(KafkaError(KafkaError._AUTHENTICATION, text))
    assert type(failed.value) is kind


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0\0\0\0\5\2", json.dumps(CREATE).encode()), (b'{"id": 1}', b"\0\0\0\0\5\xfe\2abc")],
    ids=["key", "value"],
)
def test_what_a_schema_registrys_converter_wrote_is_refused_by_what_it_is(key: bytes, value: bytes) -> None:
    found = record_content(record_line(Message(key=key, value=value), "orders 0"))
    assert "is encoded by a schema registry's converter; set JsonConverter for key and value" in str(found)
