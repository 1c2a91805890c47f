"""What a worker does next, for every story that lake and metadata store can tell together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from cdc_pipeline.apply.next_move import (
    Apply,
    MarkApplied,
    Reopen,
    SetBack,
    TableSituation,
    Wait,
    check_ledger,
    is_last,
    next_move,
)
from cdc_pipeline.errors import FenceMismatch
from cdc_pipeline.lake.ledger_values import AppliedClaim, LakeLedger, SliceIdentity
from cdc_pipeline.lake.protocol import Fence
from cdc_pipeline.metadata_store.ledger.records import Claim, RegisteredSlice
from cdc_pipeline.metadata_store.states import ClaimState, SliceState
from tests.support.slice_rows import slice_row

MORNING = datetime(2024, 1, 1, tzinfo=UTC)
CLAIM_ID = UUID(int=7)


def claim(first: int, last: int) -> Claim:
    return Claim(
        claim_id=CLAIM_ID,
        table_id=1,
        first_number=first,
        last_number=last,
        epoch=1,
        owner="dead worker",
        attempt=1,
        state=ClaimState.CLAIMED,
        slices=last - first + 1,
        rows_read=0,
        rows_inserted=0,
        rows_updated=0,
        rows_deleted=0,
        rows_ignored=0,
        bytes=0,
        seconds=0.0,
        lake_version=None,
        error=None,
        started_at=MORNING,
        finished_at=None,
        rows_incomplete=0,
        rows_tied=0,
        session=None,
    )


def identity(number: int) -> SliceIdentity:
    return SliceIdentity(number, f"slice-{number}", f"sha-{number}")


def fence(*numbers: int, at: int | None = None, snapshot_id: str | None = None) -> Fence:
    """The lake ends at `at`, or at the last of the slices that its last commit names."""
    return Fence(
        number=at if at is not None else max(numbers),
        claim_id=str(CLAIM_ID) if numbers else "",
        slices=tuple(map(identity, numbers)),
        lake_version=40,
        snapshot_id=snapshot_id,
    )


def situation(
    at: Fence | None,
    behind: Sequence[RegisteredSlice] = (),
    *,
    fenced: Mapping[int, RegisteredSlice] | None = None,
    published: str | None = "first",
    open_claim: Claim | None = None,
) -> TableSituation:
    return TableSituation(
        fence=at,
        published_snapshot=published,
        fenced=fenced or {},
        after_fence=behind,
        open_claim=open_claim,
    )


def applied(*numbers: int) -> dict[int, RegisteredSlice]:
    return {number: slice_row(number, state=SliceState.APPLIED) for number in numbers}


BEHIND = [slice_row(3), slice_row(4, rows=0), slice_row(5)]


@pytest.mark.parametrize("state", [situation(None, published=None), situation(fence(at=2), BEHIND, published=None)])
def test_a_table_without_a_published_snapshot_waits(state: TableSituation) -> None:
    assert next_move(state) == Wait(reason="the table has no published snapshot yet")


@pytest.mark.parametrize("state", [situation(None), situation(None, BEHIND)])
def test_a_lake_table_that_is_gone_is_refused_with_the_command(state: TableSituation) -> None:
    with pytest.raises(FenceMismatch, match=r"the lake has no table.*run cdc snapshot"):
        next_move(state)


@pytest.mark.parametrize(
    "state",
    [
        situation(fence(at=0)),
        situation(fence(at=2)),
        situation(fence(1, 2), fenced=applied(1, 2)),
    ],
)
def test_with_nothing_behind_the_lake_the_worker_waits(state: TableSituation) -> None:
    assert next_move(state) == Wait(reason="every event that is registered is applied")


def test_slices_that_the_caller_did_not_ask_for_are_the_reason_to_wait() -> None:
    left = replace(situation(fence(at=2)), left_from=MORNING)
    assert next_move(left) == Wait(reason="slices from 2024-01-01T00:00:00+00:00 on are left, as asked for")


@pytest.mark.parametrize("at", [fence(at=2), fence(1, 2), fence(2, snapshot_id="first")])
def test_what_waits_behind_the_lake_is_applied_in_one_claim(at: Fence) -> None:
    fenced = applied(*(found.number for found in at.slices))
    assert next_move(situation(at, BEHIND, fenced=fenced)) == Apply(slices=tuple(BEHIND), resumed=None)


def test_only_a_claim_that_leaves_nothing_is_followed_by_no_look_at_the_lake() -> None:
    state = situation(fence(at=2), BEHIND)
    move = Apply(slices=tuple(BEHIND), resumed=None)
    assert [is_last(move, state, before) for before in (5, 6, 7)] == [True, True, False]
    assert not is_last(move, replace(state, is_keyless=True), 6)  # its slices may be in it twice
    assert not is_last(move, replace(state, active_snapshot="second"), 6)


def test_a_dead_workers_claim_is_resumed_with_the_very_same_bounds() -> None:
    open_claim = claim(3, 4)
    assert next_move(situation(fence(at=2), BEHIND, open_claim=open_claim)) == Apply(
        slices=tuple(BEHIND[:2]), resumed=open_claim
    )


@pytest.mark.parametrize(
    "state",
    [
        situation(fence(1, 2), BEHIND, fenced={1: slice_row(1), 2: slice_row(2)}),
        situation(fence(1, 2), BEHIND, fenced=applied(1) | {2: slice_row(2)}),
        situation(fence(1, 2), BEHIND, fenced={1: slice_row(1), 2: slice_row(2)}, open_claim=claim(1, 2)),
        situation(fence(at=2), BEHIND, open_claim=claim(1, 2)),
        situation(fence(at=2), (), open_claim=claim(1, 1)),
        situation(fence(2), BEHIND, fenced=applied(2), open_claim=claim(1, 4)),
        situation(fence(2), BEHIND, fenced=applied(2), open_claim=claim(2, 4)),
    ],
)
def test_what_the_lake_has_and_the_metadata_store_does_not_know_is_only_marked(state: TableSituation) -> None:
    assert next_move(state) == MarkApplied(through=2, lake_version=40)


@pytest.mark.parametrize(
    "fenced",
    [
        {},
        {2: replace(slice_row(2), slice_id="another")},
        {2: replace(slice_row(2), sha256="another")},
    ],
)
def test_a_lake_that_names_a_slice_which_the_metadata_store_does_not_have_is_an_alarm(
    fenced: dict[int, RegisteredSlice],
) -> None:
    with pytest.raises(FenceMismatch, match=r"number 2 is slice slice-2 .* in the lake") as caught:
        next_move(situation(fence(2), BEHIND, fenced=fenced))
    assert "do not apply; run cdc rebuild" in caught.value.remedy


def test_an_older_slice_of_the_claim_that_differs_is_an_alarm_too() -> None:
    fenced = applied(1, 2) | {1: replace(slice_row(1), sha256="another")}
    with pytest.raises(FenceMismatch, match="number 1 is slice"):
        next_move(situation(fence(1, 2), fenced=fenced))


def test_another_snapshot_in_the_lake_than_in_the_metadata_store_is_an_alarm() -> None:
    with pytest.raises(FenceMismatch, match="published from snapshot second, the metadata store has first"):
        next_move(situation(fence(at=2, snapshot_id="second"), BEHIND))


def test_a_snapshot_in_the_lake_that_is_still_active_is_completed_by_its_next_run() -> None:
    unfinished = replace(situation(fence(at=2, snapshot_id="second"), BEHIND), active_snapshot="second")
    with pytest.raises(FenceMismatch, match=r"published from snapshot second.* run cdc snapshot on the table"):
        next_move(unfinished)


@pytest.mark.parametrize("state", [SliceState.APPLIED, SliceState.SUPERSEDED])
def test_a_metadata_store_that_is_ahead_of_the_lake_is_an_alarm(state: SliceState) -> None:
    with pytest.raises(FenceMismatch, match=f"slice 3 is {state}, but the lake ends at 2"):
        next_move(situation(fence(at=2), [slice_row(3, state=state), slice_row(4)]))


@pytest.mark.parametrize(
    ("behind", "open_claim"),
    [(BEHIND, claim(4, 6)), (BEHIND, claim(6, 7)), ((), claim(3, 4))],
)
def test_a_claim_that_does_not_begin_behind_the_lake_is_an_alarm(
    behind: Sequence[RegisteredSlice], open_claim: Claim
) -> None:
    with pytest.raises(FenceMismatch, match=r"the open claim .* takes slices"):
        next_move(situation(fence(at=2), behind, open_claim=open_claim))


def test_every_alarm_says_what_was_expected_and_what_a_person_does() -> None:
    with pytest.raises(FenceMismatch) as caught:
        next_move(situation(fence(2), BEHIND))
    assert caught.value.expected
    assert caught.value.remedy
    assert not caught.value.retryable


def test_what_a_rewound_lake_holds_no_more_waits_again() -> None:
    back = replace(fence(at=3), rewound_from=5)
    applied = [slice_row(number, state=SliceState.APPLIED) for number in (4, 5)]
    assert next_move(situation(back, applied)) == Reopen(after=3)
    assert next_move(situation(back, open_claim=claim(6, 6))) == Reopen(after=3)
    waiting = [slice_row(4), slice_row(5)]
    assert next_move(situation(back, waiting)) == Apply(slices=tuple(waiting), resumed=None)
    with pytest.raises(FenceMismatch, match="the lake ends at 3"):
        next_move(situation(fence(at=3), applied))


def test_slices_that_a_keyless_table_has_twice_are_taken_back_and_a_key_forgives_them() -> None:
    twice = replace(fence(1, 2), repeated_at=41)
    registered = {number: slice_row(number) for number in (1, 2)}
    keyed = situation(twice, fenced=registered)
    assert next_move(replace(keyed, is_keyless=True)) == SetBack(to_version=40)
    assert next_move(keyed) == MarkApplied(through=2, lake_version=40)


def ledger(*numbers: int, is_whole: bool = True, position: str | None = None) -> LakeLedger:
    """A claim per number, each with one slice."""
    steps = tuple(
        AppliedClaim(
            claim_id=UUID(int=number),
            first_number=number,
            last_number=number,
            slices=(identity(number),),
            position=position,
            lake_version=number,
            committed_at=MORNING,
        )
        for number in numbers
    )
    return LakeLedger(
        fence_number=numbers[-1], lake_version=numbers[-1], steps=steps, published=None, is_whole=is_whole
    )


def test_slices_are_marked_when_the_log_names_each_of_them_or_was_cleaned_before_them() -> None:
    check_ledger(ledger(1, 2), [slice_row(1), slice_row(2)])
    check_ledger(ledger(2, is_whole=False), [slice_row(1), slice_row(2)])


@pytest.mark.parametrize(
    ("found", "row"),
    [
        (ledger(1, 2), replace(slice_row(1), sha256="another")),
        (ledger(1, 2), replace(slice_row(2), slice_id="another")),
        (ledger(2), slice_row(1)),
        (ledger(1, position="elsewhere"), slice_row(1)),
    ],
)
def test_a_slice_that_the_log_tells_otherwise_is_never_marked(found: LakeLedger, row: RegisteredSlice) -> None:
    with pytest.raises(FenceMismatch, match=r"in the lake's log.*in the metadata store.*cdc rebuild"):
        check_ledger(found, [row])
