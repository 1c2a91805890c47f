"""Lines of a stream partition, put together by transaction and given when they are whole."""

import json
from collections.abc import Callable
from datetime import timedelta
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from cdc_pipeline.record import TableName
from cdc_pipeline.sources.debezium.partition import LONGEST_REST, MOST_BYTES, Group, PartitionLines
from cdc_pipeline.sources.debezium.record_line import RecordLine
from cdc_pipeline.sources.files.partition_files import PartitionFiles
from cdc_pipeline.sources.kafka.records import PartitionRecords
from cdc_pipeline.sources.kinesis.records import ShardRecords
from cdc_pipeline.steps import no_step
from tests.support.eventually import eventually
from tests.support.shards import MemoryStreams


@pytest.fixture
def lines(tmp_path: Path) -> PartitionLines:
    files = PartitionFiles(folder=tmp_path, offset=0, begun={}, begin=lambda _: 1, on_step=no_step)
    return PartitionLines(files)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    def append(*events: tuple[str, int | None] | None, padding: int = 0) -> None:
        with (tmp_path / "a.jsonl").open("a", encoding="utf-8") as file:
            for event in events:
                line = event and {"op": event[0], "source": {"txId": event[1]}, "padding": "x" * padding}
                file.write(json.dumps(line) + "\n")

    return append


Write = Callable[..., None]


def shown(groups: list[Group]) -> list[list[str]]:
    return [[line.event.operation if line.event else "-" for line in group.lines] for group in groups]


def test_the_last_transaction_waits_until_another_one_follows(lines: PartitionLines, write: Write) -> None:
    write(("c", 1), ("c", 2), ("u", 2))
    assert shown(lines.next_groups(everything=False)) == [["c"]]
    assert lines.next_groups(everything=False) == []
    write(("d", 2), None, ("c", 3))
    assert shown(lines.next_groups(everything=False)) == [["c", "u", "d", "-"]]
    assert shown(lines.next_groups(everything=True)) == [["c"]]
    lines.files.close()


def test_a_transaction_after_which_nothing_comes_is_given_although_nobody_asks_for_it(
    tmp_path: Path, write: Write
) -> None:
    """Beside a busy stream partition, whose events end the slices, nobody ever does."""
    files, seconds = PartitionFiles(folder=tmp_path, offset=0, begun={}, begin=lambda _: 1, on_step=no_step), [0.0]
    lines = PartitionLines(files, monotonic=lambda: seconds[0])
    write(("c", 1), ("c", 2))
    assert shown(lines.next_groups(everything=False)) == [["c"]]

    def rest(each: float) -> list[Group]:
        found: list[Group] = []
        for _ in np.arange(0, LONGEST_REST, each):
            seconds[0] += each
            found += lines.next_groups(everything=False)
        return found

    assert rest(each=LONGEST_REST) == [], "who did not look for a while does not know what came meanwhile"
    write(("u", 2))
    assert rest(each=1) == []
    assert shown(rest(each=1)) == [["c", "u"]]
    lines.files.close()


def test_what_was_asked_for_is_given_whether_it_is_finished_or_not(lines: PartitionLines, write: Write) -> None:
    write(("c", 1), ("d", 2), None)
    assert shown(lines.next_groups(everything=True)) == [["c"], ["d", "-"]]
    assert lines.next_groups(everything=True) == []
    lines.files.close()


def test_events_that_name_no_transaction_wait_for_nothing(lines: PartitionLines, write: Write) -> None:
    write(("c", None), None, ("c", None))
    assert shown(lines.next_groups(everything=False)) == [["c", "-"], ["c"]]
    lines.files.close()


def test_a_transaction_larger_than_what_is_read_at_once_comes_in_parts(lines: PartitionLines, write: Write) -> None:
    write(("c", 1), *([("u", 2)] * 6), ("d", 2), None, ("c", 2), padding=MOST_BYTES // 4)
    write(("c", 3))
    found = []
    while not lines.files.at_end:
        found.append(lines.next_groups(everything=False))
    found.append(lines.next_groups(everything=True))
    groups = list(chain.from_iterable(found))
    assert list(chain.from_iterable(shown(groups))) == ["c", *"uuuuuu", "d", "-", "c", "c"]
    of_two = [
        group for group in groups if any(line.event and line.event.transaction == "txId 2" for line in group.lines)
    ]
    assert [(group.continues, group.is_closed) for group in of_two] == [
        (number > 0, number == len(of_two) - 1) for number in range(len(of_two))
    ]
    assert len(of_two) > 1
    assert all(shown([group])[0][-1] not in "d-" for group in of_two), "a delete was given without what follows it"
    lines.files.close()


def ends(groups: list[Group]) -> list[tuple[bool, bool]]:
    return [(group.continues, group.is_closed) for group in groups]


def test_a_transaction_of_a_topic_stays_open_while_the_broker_sends_nothing() -> None:
    """A backlog comes in answers, and there are moments between them."""
    records = PartitionRecords(topic="orders", partition=0, offset=0)
    lines, places = PartitionLines(records), iter(range(9))

    def come(transaction: int | None, padding: int = 0) -> None:
        event = {"op": "c", "source": {"txId": transaction}, "padding": "x" * padding} if transaction else {}
        line = RecordLine(
            place=next(places),
            file="orders",
            number=0,
            written=0,
            key=None,
            value=json.dumps(event).encode(),
            headers={},
        )
        records.waiting.append(line)

    come(1, padding=MOST_BYTES)
    assert ends(lines.next_groups(everything=True)) == [(False, False)]
    assert lines.next_groups(everything=True) == []
    come(None)
    assert ends(lines.next_groups(everything=True)) == [(True, False)], "a record without a row ends nothing"
    come(1)
    come(2)
    assert ends(lines.next_groups(everything=False)) == [(True, True)]
    assert lines.next_groups(everything=True) == [], "nothing shows that the second one is complete"
    assert (lines.returned_until, records.offset) == (3, 4)
    records.ended_at = 4
    assert ends(lines.next_groups(everything=True)) == [(False, True)]


def compacted(*values: tuple[str, int] | None, padding: int = 0, key_bytes: int = 2) -> PartitionRecords:
    """A topic with these events, and tombstones in place of None."""
    records = PartitionRecords(topic="orders", partition=0, offset=0)
    for place, event in enumerate(values):
        value = event and {"op": event[0], "source": {"txId": event[1]}, "padding": "x" * padding}
        line = RecordLine(
            place=place,
            file="orders",
            number=place,
            written=0,
            key=b"{}".ljust(key_bytes),
            value=json.dumps(value).encode() if value else None,
            headers={},
            deleted_rows=TableName.parse("shop.public.orders"),
        )
        records.waiting.append(line)
    return records


def test_a_tombstone_is_not_parted_from_the_delete_before_it() -> None:
    """After a restart between them the tombstone of a key change would delete the row that the create goes on with."""
    records = compacted(("c", 10), ("d", 20), None, ("c", 20), ("c", 30), None, None)
    records.ended_at = 7
    lines = PartitionLines(records)
    assert shown(lines.next_groups(everything=False)) == [["c"], ["d", "d", "c"]]
    assert shown(lines.next_groups(everything=True)) == [["c", "d", "d"]]


def test_a_tombstone_waits_with_its_delete_in_a_large_transaction() -> None:
    lines = PartitionLines(compacted(("c", 20), ("d", 20), None, padding=MOST_BYTES // 2))
    (group,) = lines.next_groups(everything=False)
    assert (shown([group]), group.is_closed, lines.returned_until) == ([["c"]], False, 1)


def test_many_tombstones_behind_a_delete_do_not_all_wait_with_it() -> None:
    """Compaction left them alone: none of them is of the delete, but perhaps the first one."""
    tombstones = 12
    records = compacted(("c", 20), ("d", 20), *[None] * tombstones, key_bytes=MOST_BYTES // 3)
    lines, waited = PartitionLines(records), list[int]()
    while records.waiting:
        lines.next_groups(everything=False)
        waited.append(records.offset - lines.returned_until)
    assert (max(waited), waited[-1]) == (2, 0)


def test_tombstones_that_compaction_left_wait_for_nothing_and_keep_no_transaction_from_its_rest() -> None:
    records = compacted(None, None)
    records.ended_at = 2
    assert shown(PartitionLines(records).next_groups(everything=False)) == [["d", "d"]]
    (group,) = PartitionLines(compacted(None, ("c", 20), padding=MOST_BYTES)).next_groups(everything=False)
    assert (shown([group]), group.is_closed) == ([["d", "c"]], False)


def test_a_transaction_of_a_shard_stays_open_in_the_pause_between_two_reads() -> None:
    streams = MemoryStreams()
    for transaction in (1, 1, 1, 1, 2):
        event = {"op": "c", "source": {"txId": transaction}, "padding": "x" * (MOST_BYTES // 3)}
        streams.put("orders", event)
    stream = streams.describe("orders")
    assert stream is not None
    records = ShardRecords(
        client=streams,
        stream=stream,
        shard="shard-0",
        offset=0,
        place=None,
        begins=stream.created,
        pause=timedelta(seconds=1),
        clock=lambda: streams.now,
    )
    lines = PartitionLines(records)
    assert ends(lines.next_groups(everything=True)) == [(False, False)]
    assert lines.next_groups(everything=True) == []
    found: list[Group] = []

    def more() -> bool:
        found.extend(lines.next_groups(everything=True))
        return bool(found)

    assert eventually(more)
    assert ends(found) == [(True, True), (False, True)]
