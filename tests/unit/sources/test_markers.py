"""A marker message has its place between two transactions of each stream partition."""

import json
from datetime import timedelta
from itertools import count

from cdc_pipeline.consume.slice_cutter import CutSlices, SliceCutter
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.partition import PartitionLines
from cdc_pipeline.sources.debezium.record_line import RecordLine, record_content
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.kafka.records import PartitionRecords
from cdc_pipeline.sources.known import PartitionProgress
from cdc_pipeline.time_slice import EPOCH
from tests.support.decoding import orders, postgres


def record(place: int, transaction: int, id_: int) -> RecordLine:
    value = json.dumps(postgres("c", transaction, after={"id": id_})).encode()
    return RecordLine(place=place, file="orders", number=place, written=0, key=None, value=value, headers={})


def ids(cut: CutSlices) -> list[int]:
    return [row["id"] for part in cut.slices.values() for row in part.rows.to_pylist()]


def test_a_marker_waits_for_the_end_of_a_transaction_of_which_a_part_was_read() -> None:
    records, table = PartitionRecords(topic="orders", partition=0, offset=0), orders(id=["id"], columns={"id": "int8"})
    tables = DebeziumTables((table,), {}, {0: table.table}, ())
    stream = DebeziumStream(
        partitions={0: PartitionLines(records, record_content)},
        progress={0: PartitionProgress(offset="0" * 16)},
        decoder=DebeziumDecoder(tables=tables, sequence_by=(), last_position={0: {}}, alone=True),
        position=0,
        commit_time=EPOCH,
        folders=lambda: [0],
    )
    cutter = SliceCutter(start=0, commit_time=EPOCH, slice_length=timedelta(days=9999), slice_rows=1000)

    places = count()

    def come(*events: tuple[int, int], ends: bool) -> None:
        for transaction, id_ in events:
            records.waiting.append(record(next(places), transaction, id_))
            records.ended_at = records.waiting[-1].place + 1 if ends else None

    def cut() -> list[list[int]]:
        batch = stream.read(timedelta(0))
        return [] if batch is None else [ids(found) for found in cutter.add(batch)]

    come((10, 1), (20, 2), ends=True)
    assert cut() == []
    stream.send_marker("cut")
    come((20, 3), ends=True)
    assert cut() == []
    come((30, 4), (30, 5), ends=False)
    assert cut() == cut() == []
    come((30, 6), (30, 7), (40, 8), ends=True)
    assert [found for _ in range(4) for found in cut()] == [[1, 2, 3, 4, 5, 6, 7]]
