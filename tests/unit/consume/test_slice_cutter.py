"""A cut that somebody asks for at a place where the stream was cut before."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import numpy as np
import pytest

from cdc_pipeline.consume.slice_cutter import CUT, CUT_AT, UNFIT_CHARACTERS, SliceCutter
from cdc_pipeline.record import TableName, TableSchema, encode_position
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.protocol import EventBatch, Marker, TableEvents, Transactions, UnfitEvent
from cdc_pipeline.time_slice import label_of
from tests.support.cut_histories import SCHEMAS, TABLES, Change, Transaction, table_events

MORNING = datetime(2024, 1, 1, 8, tzinfo=UTC)
MICROSECONDS = int(MORNING.timestamp()) * 1_000_000


def marked(position: int, text: str) -> EventBatch:
    """A transaction that only carries the mark."""
    numbers = [np.array([number], dtype=np.int64) for number in (position, position + 1, MICROSECONDS)]
    transactions = Transactions(commit_position=numbers[0], end_position=numbers[1], commit_time=numbers[2])
    return EventBatch(events=(), transactions=transactions, markers=(Marker(text=text, commit_position=position),))


def cutter(*, cut_at: Sequence[int] = ()) -> SliceCutter:
    return SliceCutter(start=10, commit_time=MORNING, slice_length=timedelta(minutes=1), slice_rows=100, cut_at=cut_at)


def unfit(position: int, characters: int) -> EventBatch:
    """A transaction whose only event goes to quarantine."""
    schema, nothing = TableSchema(columns=(), key=()), np.zeros(0, dtype=np.int64)
    event = UnfitEvent(
        stream_partition=0,
        version="",
        commit_position=position,
        column="",
        payload={"line": "x" * characters},
        reason="is no JSON",
    )
    events = TableEvents(
        table=TableName.parse("shop.public.t"),
        schema=schema,
        rows=event_schema(schema).empty_table(),
        commit_position=nothing,
        stream_partition=nothing,
        unfit=(event,),
    )
    return replace(marked(position, ""), events=(events,), markers=())


class Counted(np.ndarray[Any, np.dtype[np.int64]]):
    """Numbers that count how often somebody computes what of all of them."""

    __array_priority__ = 1  # also those that are joined of some
    times: ClassVar[Counter[np.ufunc]] = Counter()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        Counted.times[ufunc] += 1
        return getattr(ufunc, method)(*map(np.asarray, inputs), **options)


def test_a_chunk_of_one_stream_partition_costs_the_same_however_many_others_the_slice_holds() -> None:
    under_test, partitions = cutter(), 64
    for number in range(partitions):
        change = Change(TABLES[0], SCHEMAS[0], number, fits=True)
        events = table_events(TABLES[0], [(Transaction(10 + number, 11 + number, MORNING, (change,)), 1)])
        events = replace(events, stream_partition=events.stream_partition.view(Counted))
        under_test.add(replace(marked(10 + number, ""), events=(events,), markers=()))
    Counted.times.clear()
    (cut,) = under_test.add(marked(100, CUT))
    assert [number for _, number in cut.slices] == list(range(partitions))
    assert Counted.times[np.equal] == partitions


def test_the_labels_of_open_transactions_are_computed_once_for_each_read() -> None:
    under_test = cutter()
    for position in range(10, 20):
        batch = replace(marked(position, ""), markers=())
        times = batch.transactions.commit_time.view(Counted)
        Counted.times.clear()
        under_test.add(replace(batch, transactions=replace(batch.transactions, commit_time=times)))
        assert under_test.due == MORNING + timedelta(minutes=1)
        assert Counted.times[np.floor_divide] == 1


def test_the_stream_is_cut_before_events_for_quarantine_fill_the_memory() -> None:
    under_test = cutter()
    half = UNFIT_CHARACTERS // 2
    assert under_test.add(unfit(10, half)) == []
    (cut,) = under_test.add(unfit(11, half))
    assert (cut.end, len(cut.unfit)) == (12, 2)
    assert under_test.add(unfit(12, half)) == []


def test_transactions_without_rows_fill_a_slice_as_rows_do() -> None:
    """Those of tables that are not listed: each is kept until the cut, however long the slice is."""
    under_test = cutter()
    assert [under_test.add(replace(marked(position, ""), markers=())) for position in range(10, 109)] == [[]] * 99
    (cut,) = under_test.add(replace(marked(109, ""), markers=()))
    assert (cut.start, cut.end, cut.requested) == (10, 110, False)
    assert [under_test.add(replace(marked(position, ""), markers=())) for position in range(110, 209)] == [[]] * 99


def test_a_place_that_was_cut_at_already_can_still_be_asked_for() -> None:
    under_test = cutter()
    (cut,) = under_test.add(marked(10, CUT))
    (asked,) = under_test.add(marked(11, f"{CUT_AT}{encode_position(11)}:somebody"))
    assert (cut.start, cut.end, cut.requested) == (10, 11, False)
    assert (asked.start, asked.end, asked.requested) == (11, 11, True)
    assert asked.label == cut.label


def test_what_lies_behind_the_asked_place_stays_for_the_next_cut() -> None:
    under_test = cutter()
    (asked,) = under_test.add(marked(10, f"{CUT_AT}{encode_position(10)}:somebody"))
    (cut,) = under_test.add(marked(12, CUT))
    assert (asked.start, asked.end) == (10, 10)
    assert (cut.start, cut.end, cut.last_commit_position) == (10, 13, 12)


def test_a_request_that_names_no_place_is_a_plain_marker() -> None:
    (cut,) = cutter().add(marked(10, f"{CUT_AT}soon:somebody"))
    assert (cut.end, cut.requested) == (11, False)


def test_a_place_behind_which_the_stream_was_cut_cannot_be_asked_for_any_more() -> None:
    under_test = cutter()
    under_test.add(marked(15, CUT))
    assert under_test.add(marked(16, f"{CUT_AT}{encode_position(12)}:somebody")) == []


@pytest.mark.parametrize("position", [11, 10**6, (1 << 64) - 1])
def test_a_place_that_is_still_to_come_cannot_be_asked_for(position: int) -> None:
    under_test = cutter()
    (cut,) = under_test.add(marked(10, f"{CUT_AT}{encode_position(position)}:somebody"))
    assert (cut.end, cut.requested) == (11, False)
    (following,) = under_test.add(marked(20, CUT))
    assert (following.start, following.last_commit_position) == (11, 20)


def test_a_cut_at_a_change_of_columns_is_requested_since_no_transaction_need_end_there() -> None:
    under_test = cutter(cut_at=[15])
    assert under_test.add(replace(marked(12, ""), markers=())) == []
    (cut,) = under_test.add(replace(marked(20, ""), markers=()))
    assert (cut.end, cut.last_commit_position, cut.requested) == (15, 12, True)


LENGTHS = [timedelta(seconds=seconds) for seconds in (1, 7, 30, 60, 90, 300, 86_400)]


@pytest.mark.parametrize("before", LENGTHS, ids=str)
@pytest.mark.parametrize("after", LENGTHS, ids=str)
@pytest.mark.parametrize("time", [MORNING, MORNING + timedelta(minutes=4, seconds=41)], ids=["on the grid", "off it"])
def test_a_label_never_goes_back_when_the_slice_length_changes(
    before: timedelta, after: timedelta, time: datetime
) -> None:
    last = label_of(time, before)
    under_test = SliceCutter(start=10, commit_time=last.start, slice_length=after, slice_rows=100, last_label=last)
    (cut,) = under_test.add(marked(10, CUT))
    assert cut.label >= last
    assert cut.label.start < max(last.end, last.start + after)
    assert cut.label.end - cut.label.start == after
