"""A stream over topic partitions and a transaction topic: batches, marker messages, offsets and warnings."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.record import decode_position, encode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.partition import PartitionLines
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.debezium.whole_transactions import WholeTransactions
from cdc_pipeline.sources.kafka.records import PartitionRecords
from cdc_pipeline.sources.kafka.whole_stream import WholeTransactionStream
from cdc_pipeline.sources.known import PartitionProgress
from cdc_pipeline.sources.protocol import EventBatch
from cdc_pipeline.time_slice import EPOCH
from tests.support.transaction_lines import MINUTE, begin_value, end_value, event_value, record

A, B, TOPIC, RESTING = range(4)
NOW = timedelta(0)
COLUMNS = {"id": "int", "note": "text"}
TABLES = {A: "a", B: "b"}
NAMES = [f"shop.public.{name}" for name in TABLES.values()]


@dataclass(slots=True, kw_only=True)
class Broker:
    """What has arrived in the partitions, all of it fetched. `asked`: how often the ends were asked for."""

    parts: dict[int, PartitionRecords] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    asked: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for number, name in ((A, "a"), (B, "b"), (TOPIC, "transaction")):
            self.parts[number] = PartitionRecords(topic=name, partition=0, offset=0, ended_at=0)

    def send(self, number: int, *values: object, written: int = 0) -> None:
        part = self.parts[number]
        for value in values:
            place = self.places.get(number, 0)
            part.waiting.append(record(value, place, written))
            part.waiting_bytes += part.waiting[-1].size_bytes
            part.ended_at = self.places[number] = place + 1

    def event(self, number: int, transaction: int, order: int, note: str = "x") -> None:
        event = event_value(transaction, order)
        source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": TABLES[number]}
        images = {"before": None, "after": {"id": order, "note": note}}
        self.send(number, event | images | {"source": event["source"] | source | {"ts_ms": 1_000 * transaction}})

    def mark_ends(self) -> None:
        self.asked += 1
        for part in self.parts.values():
            part.must_reach = part.ended_at or 0


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def stream(broker: Broker) -> Iterator[WholeTransactionStream]:
    tables = [TableSettings.model_validate({"name": name, "id": ["id"], "columns": COLUMNS}) for name in NAMES]
    progress = {number: PartitionProgress(offset=encode_position(0)) for number in (A, B, TOPIC, RESTING)}
    stream = WholeTransactionStream(
        partitions={number: PartitionLines(part) for number, part in broker.parts.items()},
        progress=progress,
        decoder=DebeziumDecoder(
            tables=DebeziumTables(tables, {}), sequence_by=(), last_position={number: {} for number in progress}
        ),
        position=100,
        commit_time=EPOCH,
        records=broker.parts,
        transactions=TOPIC,
        mark_ends=broker.mark_ends,
        whole=WholeTransactions(
            collections={"public.a": frozenset({A}), "public.b": frozenset({B})}, positions={A: 0, B: 0}
        ),
        clock=lambda: broker.seconds,
    )
    yield stream
    stream.close()


def read(stream: WholeTransactionStream) -> EventBatch:
    batch = stream.read(NOW)
    assert batch is not None
    return batch


def rows(batch: EventBatch) -> dict[str, list[int]]:
    return {str(events.table): events.rows["id"].to_pylist() for events in batch.events}


def transactions(batch: EventBatch) -> list[tuple[int, int]]:
    found = batch.transactions
    return list(zip(found.commit_position.tolist(), found.end_position.tolist(), strict=True))


def offsets(stream: WholeTransactionStream, position: int) -> dict[int, int]:
    return {number: decode_position(place.offset) for number, place in stream.progress_at(position).items()}


def test_all_partitions_of_a_transaction_end_at_one_position(stream: WholeTransactionStream, broker: Broker) -> None:
    broker.send(TOPIC, begin_value(1))
    broker.event(A, 1, 1)
    broker.event(B, 1, 2)
    assert stream.read(NOW) is None
    broker.send(TOPIC, end_value(1, {"public.a": 1, "public.b": 1}))
    batch = read(stream)
    assert rows(batch) == {"shop.public.a": [1], "shop.public.b": [2]}
    ((first, end),) = transactions(batch)
    assert {position for events in batch.events for position in events.commit_position.tolist()} == {first}
    assert batch.transactions.commit_time.tolist() == [1_000_000]
    assert offsets(stream, end - 1) == {A: 0, B: 0, TOPIC: 0, RESTING: 0}
    assert offsets(stream, end) == {A: 1, B: 1, TOPIC: 2, RESTING: 0}


def test_a_marker_message_passes_what_is_held(stream: WholeTransactionStream, broker: Broker) -> None:
    broker.event(A, 1, 1)
    stream.send_marker("cut:1")
    batch = read(stream)
    assert [marker.text for marker in batch.markers] == ["cut:1"]
    ((_, end),) = transactions(batch)
    broker.send(TOPIC, end_value(1, {"public.a": 1}))
    assert offsets(stream, end)[A] == 0
    assert transactions(read(stream))[0][0] >= end


def test_a_marker_message_passes_the_released_part_of_a_large_transaction(
    stream: WholeTransactionStream, broker: Broker
) -> None:
    broker.send(TOPIC, begin_value(1))
    broker.event(A, 1, 1, "x" * (1 << 20))
    part = read(stream)
    assert rows(part) == {"shop.public.a": [1]}
    assert transactions(part) == []
    stream.send_marker("cut:1")
    ((_, end),) = transactions(read(stream))
    assert offsets(stream, end)[A] == 0
    broker.event(A, 1, 2)
    broker.send(TOPIC, end_value(1, {"public.a": 2}))
    whole = read(stream)
    ((first, last),) = transactions(whole)
    assert first == part.events[0].commit_position[0] >= end
    assert offsets(stream, last) == {A: 2, B: 0, TOPIC: 2, RESTING: 0}


def test_a_marker_message_passes_a_partition_that_holds_too_much(
    stream: WholeTransactionStream, broker: Broker
) -> None:
    for order in (1, 2, 3):
        broker.event(A, 2, order, "x" * (1 << 20))
    stream.send_marker("cut:1")
    assert [marker.text for marker in read(stream).markers] == ["cut:1"]
    assert stream.read(NOW) is None


def test_events_that_lack_are_given_up_after_the_broker_was_asked(
    stream: WholeTransactionStream, broker: Broker
) -> None:
    broker.event(A, 1, 1)
    broker.send(TOPIC, end_value(1, {"public.a": 1, "public.b": 1}), written=0)
    broker.send(TOPIC, end_value(2, {}), written=6 * MINUTE)
    stream.send_marker("cut:1")
    with capture_logs() as logs:
        assert [stream.read(NOW), stream.read(NOW)] == [None, None]
        assert broker.asked == 1
        batch = read(stream)
    assert rows(batch) == {"shop.public.a": [1]}
    (warning,) = logs
    assert warning["event"] == "a boundary may have a part of a transaction"
    assert (warning["transaction"], warning["topic"]) == ("1", "transaction")
    assert read(stream).markers


def test_a_topic_that_stands_still_is_told(stream: WholeTransactionStream, broker: Broker) -> None:
    broker.event(A, 1, 1)
    with capture_logs() as logs:
        for seconds in (0.0, 299.0, 301.0, 302.0):
            broker.seconds = seconds
            assert stream.read(NOW) is None
    (warning,) = logs
    assert warning["event"] == "the stream waits for the rest of a transaction"
    assert "provide.transaction.metadata" in warning["remedy"]


@pytest.mark.parametrize("value", [{"op": "c"}, "text", {"status": "END", "id": 7}])
def test_a_record_that_is_none_of_a_transaction_is_told_and_passed(
    value: Any, stream: WholeTransactionStream, broker: Broker
) -> None:
    broker.event(A, 1, 1)
    broker.send(TOPIC, value, end_value(1, {"public.a": 1}))
    with capture_logs() as logs:
        batch = read(stream)
    assert rows(batch) == {"shop.public.a": [1]}
    assert [entry["event"] for entry in logs] == ["record of the transaction topic not read"]
