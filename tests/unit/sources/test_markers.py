"""A marker message has its place between two transactions of each stream partition, which take turns."""

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta

from cdc_pipeline.consume.slice_cutter import CutSlices, SliceCutter
from cdc_pipeline.record import encode_position
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.partition import MOST_BYTES, PartitionLines
from cdc_pipeline.sources.debezium.record_line import RecordLine, record_content
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.kafka.records import PartitionRecords
from cdc_pipeline.sources.known import PartitionProgress
from cdc_pipeline.time_slice import EPOCH
from tests.support.decoding import orders, postgres


def record(place: int, transaction: int, id_: int, note: str = "") -> RecordLine:
    value = json.dumps(postgres("c", transaction, after={"id": id_, "note": note})).encode()
    return RecordLine(place=place, file="orders", number=place, written=0, key=None, value=value, headers={})


def ids(cut: CutSlices) -> list[int]:
    return [row["id"] for part in cut.slices.values() for row in part.rows.to_pylist()]


class Topic:
    """A topic whose partitions get records from the test, and the stream of all of them."""

    def __init__(self, partitions: int = 1) -> None:
        table = orders(id=["id"], columns={"id": "int8", "note": "text"})
        numbers = range(partitions)
        self.parts = {number: PartitionRecords(topic="orders", partition=number, offset=0) for number in numbers}
        self.stream = DebeziumStream(
            partitions={number: PartitionLines(part, record_content) for number, part in self.parts.items()},
            progress={number: PartitionProgress(offset=encode_position(0)) for number in numbers},
            decoder=DebeziumDecoder(
                tables=DebeziumTables((table,), {}, dict.fromkeys(numbers, table.table), ()),
                sequence_by=(),
                last_position={number: {} for number in numbers},
                alone=partitions == 1,
            ),
            position=0,
            commit_time=EPOCH,
            folders=lambda: numbers,
        )
        self._cutter = SliceCutter(start=0, commit_time=EPOCH, slice_length=timedelta(days=9999), slice_rows=1000)
        self._places = defaultdict[int, int](int)

    def come(self, *events: tuple[int, int], ends: bool, number: int = 0, note: str = "") -> None:
        part = self.parts[number]
        for transaction, id_ in events:
            part.waiting.append(record(self._places[number], transaction, id_, note))
            self._places[number] += 1
        part.ended_at = self._places[number] if ends else None

    def send_marker(self, text: str, ends: Mapping[int, int] | None = None) -> None:
        self.stream.send_marker(text, ends=ends)

    def read(self) -> tuple[list[int], list[str]]:
        """Reads once. Returns the stream partitions of the events, and the marker messages."""
        batch = self.stream.read(timedelta(0))
        found = () if batch is None else batch.events
        numbers = sorted({number for each in found for number in each.stream_partition.tolist()})
        return numbers, [] if batch is None else [each.text for each in batch.markers]

    def cut(self) -> list[list[int]]:
        batch = self.stream.read(timedelta(0))
        return [] if batch is None else [ids(found) for found in self._cutter.add(batch)]


def test_a_marker_waits_for_the_end_of_a_transaction_of_which_a_part_was_read() -> None:
    topic = Topic()
    topic.come((10, 1), (20, 2), ends=True)
    assert topic.cut() == []
    topic.come((20, 3), ends=False, note="x" * MOST_BYTES)
    assert topic.cut() == topic.cut() == []
    topic.send_marker("cut", ends={0: 3})
    topic.come((20, 4), (20, 5), ends=False)
    assert topic.cut() == topic.cut() == []
    topic.come((20, 6), (20, 7), (30, 8), ends=False)
    assert [found for _ in range(4) for found in topic.cut()] == [[1, 2, 3, 4, 5, 6, 7]]


def test_partitions_with_a_backlog_take_turns() -> None:
    """Each answer of the broker ends with a transaction of which nothing shows yet that it is complete."""
    topic, turns = Topic(partitions=3), list[int]()
    for place in range(1, 31, 3):
        for number in topic.parts:
            topic.come(*((place + more, place + more) for more in range(3)), number=number, ends=False)
        for _ in topic.parts:
            turns += topic.read()[0]
    assert turns == [0, 1, 2] * 10


def test_a_marker_does_not_wait_for_what_comes_after_it_all_the_time() -> None:
    topic, found = Topic(partitions=2), list[tuple[list[int], list[str]]]()
    topic.come((1, 1), (2, 2), ends=False)
    topic.come(ends=True, number=1)
    topic.send_marker("cut", ends={0: 2, 1: 0})
    for place in range(3, 8):
        found.append(topic.read())
        topic.come((place, place), ends=False)
    assert found == [([0], []), ([0], []), ([], ["cut"]), ([0], []), ([0], [])]
