"""However a stream is delivered: every event is in exactly one cut, in order, and the cuts are the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    OPERATION,
    TRANSACTION,
    VERSION,
    Column,
    TableName,
    TableSchema,
    encode_position,
    encode_version,
)
from cdc_pipeline.slice_cutter import CUT, CUT_AT, CutSlices, SliceCutter
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.protocol import EventBatch, Mark, TableEvents, Transactions, UnfitEvent
from cdc_pipeline.time_slice import Label, label_of

MINUTE = timedelta(minutes=1)
MORNING = datetime(2024, 1, 1, 8, tzinfo=UTC)
START = 1000
NO_CAP = 10**9
TABLES = tuple(TableName(database="shop", schema="public", table=name) for name in ("orders", "customers"))
SCHEMAS = tuple(
    TableSchema(columns=tuple(Column(name=name, type="int8") for name in ("id", *more)), key=("id",))
    for more in ((), ("a",), ("a", "b"))
)


@dataclass(frozen=True, slots=True)
class Change:
    table: TableName
    schema: TableSchema
    stream_partition: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Transaction:
    """`position` is its commit's place, `end` the place behind it; a mark's transaction has no changes."""

    position: int
    end: int
    time: datetime
    changes: tuple[Change, ...] = ()
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    transactions: tuple[Transaction, ...]

    @property
    def versions(self) -> list[str]:
        return [version for each in self.transactions for version in versions_of(each)]


def versions_of(transaction: Transaction) -> list[str]:
    return [encode_version(transaction.position, ordinal) for ordinal in range(1, len(transaction.changes) + 1)]


@st.composite
def histories(draw: st.DrawFn, *, requests: bool = True) -> History:
    """Commit times jump ahead and step back; a table's schema may change between and within transactions."""
    place, time = START, MORNING
    schemas = dict.fromkeys(TABLES, 0)
    transactions: list[Transaction] = []
    for _ in range(draw(st.integers(0, 12))):
        position = place + draw(st.integers(0, 20))
        end = position + draw(st.integers(1, 20))
        time += timedelta(seconds=draw(st.sampled_from((0, 1, 5, 30, 61, 300, -1, -40, -200))))
        kind = draw(st.sampled_from(("work", "work", "work", "heartbeat", "request" if requests else "heartbeat")))
        mark = None
        if kind == "heartbeat":
            mark = CUT + draw(st.sampled_from(("", ":1")))
        elif kind == "request":
            edges = [START, *(each.end for each in transactions), position]
            mark = f"{CUT_AT}{encode_position(draw(st.sampled_from(edges)))}:1"
        changes = tuple(draw_change(draw, schemas) for _ in range(draw(st.integers(0, 4)))) if mark is None else ()
        transactions.append(Transaction(position, end, time, changes, mark))
        place = end
    return History(tuple(transactions))


def draw_change(draw: st.DrawFn, schemas: dict[TableName, int]) -> Change:
    table = draw(st.sampled_from(TABLES))
    if schemas[table] + 1 < len(SCHEMAS) and draw(st.integers(0, 7)) == 0:
        schemas[table] += 1
    fits = draw(st.integers(0, 7)) > 0
    return Change(table, SCHEMAS[schemas[table]], draw(st.integers(0, 1)), fits)


Step = tuple[Transaction, int | None]
"""One message of the stream: a change of a transaction by its ordinal, or, with None, its commit."""


def messages(history: History) -> list[Step]:
    return [(each, ordinal) for each in history.transactions for ordinal in (*range(1, len(each.changes) + 1), None)]


def batch_of(part: Sequence[Step]) -> EventBatch:
    """What one read brings when it ends anywhere, also within a transaction."""
    events: list[TableEvents] = []
    for table in TABLES:
        run: list[Step] = []
        for each, ordinal in part:
            if ordinal is None or each.changes[ordinal - 1].table != table:
                continue
            if run and schema_of(run[-1]) != schema_of((each, ordinal)):
                events.append(table_events(table, run))
                run = []
            run.append((each, ordinal))
        if run:
            events.append(table_events(table, run))
    closed = [each for each, ordinal in part if ordinal is None]
    return EventBatch(
        events=tuple(events),
        transactions=Transactions(
            commit_position=np.array([each.position for each in closed], dtype=np.int64),
            end_position=np.array([each.end for each in closed], dtype=np.int64),
            commit_time=np.array([int(each.time.timestamp()) * 1_000_000 for each in closed], dtype=np.int64),
        ),
        marks=tuple(Mark(text=each.mark, commit_position=each.position) for each in closed if each.mark is not None),
    )


def schema_of(message: Step) -> TableSchema:
    each, ordinal = message
    assert ordinal is not None
    return each.changes[ordinal - 1].schema


def table_events(table: TableName, run: Sequence[Step]) -> TableEvents:
    schema = schema_of(run[0])
    changes = [(each, ordinal, each.changes[ordinal - 1]) for each, ordinal in run if ordinal is not None]
    fitting = [(each, ordinal, change) for each, ordinal, change in changes if change.fits]
    columns: dict[str, list[Any]] = {
        OPERATION: ["u"] * len(fitting),
        VERSION: [encode_version(each.position, ordinal) for each, ordinal, _ in fitting],
        COMMIT_TIME: [each.time for each, _, _ in fitting],
        TRANSACTION: [each.position for each, _, _ in fitting],
        ABSENT: [None] * len(fitting),
    }
    fields = event_schema(schema)
    rows = pa.table(
        [pa.array(columns.get(field.name, [None] * len(fitting)), type=field.type) for field in fields], schema=fields
    )
    return TableEvents(
        table=table,
        schema=schema,
        rows=rows,
        commit_position=np.array([each.position for each, _, _ in fitting], dtype=np.int64),
        stream_partition=np.array([change.stream_partition for _, _, change in fitting], dtype=np.int64),
        unfit=tuple(
            UnfitEvent(
                stream_partition=change.stream_partition,
                version=encode_version(each.position, ordinal),
                commit_position=each.position,
                column="id",
                payload={},
                reason="does not fit",
            )
            for each, ordinal, change in changes
            if not change.fits
        ),
    )


def batches(data: st.DataObject, history: History) -> list[EventBatch]:
    stream = messages(history)
    edges = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    return [batch_of(stream[low:high]) for low, high in pairwise((0, *edges, len(stream)))]


def new_cutter(start: int = START, *, slice_rows: int = NO_CAP, last: Label | None = None) -> SliceCutter:
    return SliceCutter(start=start, last_label=last, commit_time=MORNING, slice_length=MINUTE, slice_rows=slice_rows)


def cut_up(cutter: SliceCutter, parts: Sequence[EventBatch]) -> list[CutSlices]:
    return [cut for part in parts for cut in cutter.add(part)]


def versions_in(cut: CutSlices) -> list[str]:
    """Of one cut, in the order in which it holds them per slice."""
    return [version for rows in cut.slices.values() for version in rows.rows[VERSION].to_pylist()]


def everything(cuts: Sequence[CutSlices]) -> list[str]:
    """Versions of all events, of each cut those that fit and those that do not."""
    return [
        version for cut in cuts for version in sorted([*versions_in(cut), *(event.version for _, event in cut.unfit)])
    ]


def shown(cut: CutSlices) -> object:
    """All that a cut says, as plain values; a request for the same place does not make it another cut."""
    slices = {place: (rows.schema, rows.rows.to_pylist()) for place, rows in cut.slices.items()}
    unfit = [(table, event.version) for table, event in cut.unfit]
    return cut.start, cut.end, cut.label, cut.commit_time, cut.last_commit_position, slices, sorted(unfit)


def closed(history: History) -> History:
    """With a last heartbeat, so that nothing stays open."""
    last = history.transactions[-1] if history.transactions else Transaction(START, START, MORNING)
    end = Transaction(last.end + 1, last.end + 2, last.time, mark=CUT)
    return History((*history.transactions, end))


@given(histories(), st.data())
def test_every_event_is_in_exactly_one_cut_in_order(history: History, data: st.DataObject) -> None:
    whole = closed(history)
    cuts = cut_up(new_cutter(), batches(data, whole))
    assert everything(cuts) == whole.versions
    for cut in cuts:
        for rows in cut.slices.values():
            versions = rows.rows[VERSION].to_pylist()
            assert versions == sorted(versions)


@given(histories(), st.data())
def test_ranges_follow_each_other_without_gap_and_hold_their_own_transactions(
    history: History, data: st.DataObject
) -> None:
    whole = closed(history)
    cuts = cut_up(new_cutter(), batches(data, whole))
    assert [cut.start for cut in cuts] == [START, *(cut.end for cut in cuts[:-1])]
    assert cuts[-1].end == whole.transactions[-1].end
    for cut in cuts:
        inside = [each for each in whole.transactions if cut.start <= each.position < cut.end]
        assert cut.start < cut.end or cut.requested
        assert set(everything([cut])) == {version for each in inside for version in versions_of(each)}
        assert cut.last_commit_position == (inside[-1].position if inside else None)


@given(histories(), st.data())
def test_cuts_lie_only_between_transactions(history: History, data: st.DataObject) -> None:
    for cut in cut_up(new_cutter(), batches(data, closed(history))):
        assert not any(each.position < cut.end < each.end for each in history.transactions)


@given(histories(), st.data())
def test_labels_never_go_back_and_a_slice_never_holds_what_belongs_later(history: History, data: st.DataObject) -> None:
    cuts = cut_up(new_cutter(), batches(data, closed(history)))
    assert all(earlier.label <= later.label for earlier, later in pairwise(cuts))
    for cut in cuts:
        assert cut.label.end - cut.label.start == MINUTE
        for each in history.transactions:
            if cut.start <= each.position < cut.end and each.mark is None:
                assert label_of(each.time, MINUTE) <= cut.label


@given(histories(), st.data())
def test_a_cut_has_the_label_of_each_of_its_events(history: History, data: st.DataObject) -> None:
    """That is the interval of its commit time, or a later one that the stream had reached before it."""
    reached = label_of(MORNING - timedelta(hours=1), MINUTE)
    cuts = cut_up(new_cutter(last=reached), batches(data, closed(history)))
    for each in history.transactions:
        own = max(reached, label_of(each.time, MINUTE))
        if each.mark is None:
            assert [cut.label for cut in cuts if cut.start <= each.position < cut.end] == [own]
        reached = own


@given(histories(requests=False), st.data(), st.integers(1, 20))
def test_the_cuts_do_not_depend_on_how_the_stream_is_split_into_batches(
    history: History, data: st.DataObject, slice_rows: int
) -> None:
    whole = closed(history)
    at_once = cut_up(new_cutter(slice_rows=slice_rows), [batch_of(messages(whole))])
    one_by_one = cut_up(new_cutter(slice_rows=slice_rows), [batch_of([message]) for message in messages(whole)])
    split = cut_up(new_cutter(slice_rows=slice_rows), batches(data, whole))
    assert [shown(cut) for cut in split] == [shown(cut) for cut in at_once] == [shown(cut) for cut in one_by_one]


@given(histories(), st.data())
def test_every_heartbeat_closes_what_is_open(history: History, data: st.DataObject) -> None:
    ends = {cut.end for cut in cut_up(new_cutter(), batches(data, closed(history)))}
    assert {each.end for each in history.transactions if each.mark and not each.mark.startswith(CUT_AT)} <= ends


@given(histories(), st.data())
def test_a_requested_cut_is_made_at_its_very_place_or_an_earlier_cut_had_passed_it(
    history: History, data: st.DataObject
) -> None:
    cuts = cut_up(new_cutter(), batches(data, closed(history)))
    wanted = [place_of(each.mark) for each in history.transactions if each.mark and each.mark.startswith(CUT_AT)]
    for place in wanted:
        assert place == START or any(cut.end == place for cut in cuts) or place_was_passed(cuts, place)
    assert {cut.end for cut in cuts if cut.requested} <= set(wanted)


def place_of(mark: str) -> int:
    return int(mark.removeprefix(CUT_AT).partition(":")[0], 16)


def place_was_passed(cuts: Sequence[CutSlices], place: int) -> bool:
    """The slice that holds the place was closed before the request came."""
    return any(cut.start < place < cut.end for cut in cuts)


@given(histories(), st.data(), st.integers(1, 5))
def test_a_full_slice_is_cut_and_nothing_is_lost_by_it(history: History, data: st.DataObject, slice_rows: int) -> None:
    whole = closed(history)
    cuts = cut_up(new_cutter(slice_rows=slice_rows), batches(data, whole))
    assert everything(cuts) == whole.versions
    most = max((len(each.changes) for each in history.transactions), default=0)
    assert all(len(versions_in(cut)) < slice_rows + most for cut in cuts if versions_in(cut))


@given(histories(), st.data())
def test_a_new_owner_goes_on_where_the_registry_stands(history: History, data: st.DataObject) -> None:
    """The stream is served again from an earlier place on; what was registered is not cut again."""
    whole = closed(history)
    cuts = cut_up(new_cutter(), batches(data, whole))
    registered = cuts[: data.draw(st.integers(1, len(cuts)))]
    successor = new_cutter(registered[-1].end, last=registered[-1].label)
    again = cut_up(successor, batches(data, whole))
    assert everything([*registered, *again]) == whole.versions
    assert all(earlier.label <= later.label for earlier, later in pairwise([*registered, *again]))


@given(histories(), st.data())
def test_all_rows_of_a_slice_have_the_columns_of_its_schema(history: History, data: st.DataObject) -> None:
    for cut in cut_up(new_cutter(), batches(data, closed(history))):
        for rows in cut.slices.values():
            assert rows.rows.schema.equals(event_schema(rows.schema))


@settings(max_examples=30)
@given(histories(), st.data())
def test_the_open_slice_is_due_after_everything_in_it(history: History, data: st.DataObject) -> None:
    cutter = new_cutter()
    cut_up(cutter, batches(data, history))
    assert all(each.time < cutter.due for each in history.transactions if each.mark is None)
