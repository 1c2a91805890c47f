"""However a stream is delivered: every event is in exactly one cut, in order, and the cuts are the same."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_pipeline.consume.slice_cutter import CUT, CUT_AT, MEMORY_BYTES, CutSlices, SliceCutter
from cdc_pipeline.record import VERSION
from cdc_pipeline.slice_file import SliceFile, event_schema, write_slice_file
from cdc_pipeline.sources.protocol import EventBatch
from cdc_pipeline.time_slice import Label, label_of
from tests.support.cut_histories import (
    MINUTE,
    MORNING,
    NO_CAP,
    START,
    History,
    Transaction,
    batch_of,
    batches,
    histories,
    messages,
    versions_of,
)


def new_cutter(
    start: int = START, *, slice_rows: int = NO_CAP, last: Label | None = None, memory_bytes: int = MEMORY_BYTES
) -> SliceCutter:
    return SliceCutter(
        start=start,
        last_label=last,
        commit_time=MORNING,
        slice_length=MINUTE,
        slice_rows=slice_rows,
        memory_bytes=memory_bytes,
    )


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
    asked = [each for each in history.transactions if each.mark and each.mark.startswith(CUT_AT)]
    wanted = [place for each in asked if (place := place_of(each.mark or "")) <= each.position]
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
def test_a_new_owner_goes_on_where_the_metadata_store_stands(history: History, data: st.DataObject) -> None:
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


def files_of(cuts: Sequence[CutSlices]) -> list[SliceFile]:
    return [write_slice_file(each.rows, each.schema, each.releases) for cut in cuts for each in cut.slices.values()]


@given(histories(), st.data(), st.integers(1, 20))
def test_events_that_were_moved_out_of_memory_give_the_same_slice_files(
    history: History, data: st.DataObject, slice_rows: int
) -> None:
    parts = batches(data, closed(history))
    kept, moved = (
        files_of(cut_up(new_cutter(slice_rows=slice_rows, memory_bytes=memory_bytes), parts))
        for memory_bytes in (MEMORY_BYTES, 0)
    )
    assert moved == kept
