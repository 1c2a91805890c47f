"""Chooses a table's next move and the slices of a claim, from the lake's log and the metadata store. Pure functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from itertools import pairwise
from typing import Any

from cdc_pipeline.errors import FenceMismatch
from cdc_pipeline.lake.fitting import in_one_claim
from cdc_pipeline.lake.key_ranges import joined
from cdc_pipeline.lake.ledger_values import LakeLedger, SliceIdentity
from cdc_pipeline.lake.protocol import Fence, KeyRange
from cdc_pipeline.metadata_store.ledger.records import Claim, RegisteredSlice
from cdc_pipeline.metadata_store.states import SliceState
from cdc_pipeline.record import TableSchema
from cdc_pipeline.slice_file import MOST_KEY_RANGES

ALL_APPLIED = "every event that is registered is applied"
REMEDY = "do not apply; run cdc rebuild: it rebuilds the metadata store from bucket and lake"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSituation:
    """What a worker sees under its lease.

    `fence` is read from the lake's log; None when there is no lake table. Everything else is read from the metadata
    store. `fenced`: by number, the slices that the fence names. `after_fence`: registered slices from fence + 1 on, in
    order, as many as one claim may take; slices of one boundary are never separated. `open_claim`: the claim of a
    worker that died. `active_snapshot`: the snapshot that is being taken; slices after its cutoff wait for it and are
    not in `after_fence`. `left_from`: the time from which on slices are left out because the caller asked for earlier
    ones; None if there are none of these. `is_keyless`: the table has no key.
    """

    fence: Fence | None
    published_snapshot: str | None
    fenced: Mapping[int, RegisteredSlice]
    after_fence: Sequence[RegisteredSlice]
    open_claim: Claim | None
    active_snapshot: str | None = None
    left_from: datetime | None = None
    is_keyless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to apply."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkApplied:
    """The lake already has every slice up to `through`; only the metadata store has to be updated."""

    through: int
    lake_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """One commit applies exactly these consecutive slices. `resumed`: the open claim of a dead worker, if any."""

    slices: tuple[RegisteredSlice, ...]
    resumed: Claim | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopen:
    """The lake was rewound on purpose: slices after `after` wait again; only the metadata store has to be updated."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBack:
    """Slices were applied twice to a keyless table: the lake is set back to `to_version`, and the slices wait again."""

    to_version: int


Move = Wait | MarkApplied | Apply | Reopen | SetBack


def next_move(situation: TableSituation) -> Move:
    """Chooses the move. Raises FenceMismatch when lake and metadata store contradict each other."""
    fence, claim = situation.fence, situation.open_claim
    if situation.published_snapshot is None:
        return Wait(reason="the table has no published snapshot yet")
    if fence is None:
        raise FenceMismatch(
            f"the lake has no table, the metadata store has its snapshot {situation.published_snapshot} as published",
            expected="the Delta log that was written then",
            remedy="bring the table's folder back, or run cdc snapshot on the table: it fills a new one",
        )
    _check_fence(fence, situation)
    behind = _catching_up(fence, situation)
    if behind is not None:
        return behind
    _check_slices_after(fence, situation.after_fence)
    if claim is not None:
        return Apply(slices=_of_claim(claim, situation.after_fence), resumed=claim)
    if not situation.after_fence:
        return Wait(reason=_why_nothing_waits(situation))
    return Apply(slices=tuple(situation.after_fence), resumed=None)


def is_last(move: Apply, situation: TableSituation, before: int) -> bool:
    """Returns whether nothing follows the move but to wait, because it leaves no slice below `before`.

    False for a keyless table: only the fence that is read next shows whether another worker added the same slices.
    False while a snapshot is taken, which is then the reason to wait.
    """
    return move.slices[-1].number >= before - 1 and not situation.is_keyless and situation.active_snapshot is None


def _why_nothing_waits(situation: TableSituation) -> str:
    if situation.left_from is not None:
        return f"slices from {situation.left_from.isoformat()} on are left, as asked for"
    if situation.active_snapshot is not None:
        return f"slices after the cutoff of snapshot {situation.active_snapshot} wait for it"
    return ALL_APPLIED


def _catching_up(fence: Fence, situation: TableSituation) -> SetBack | MarkApplied | Reopen | None:
    """Returns the move that makes lake and metadata store agree before slices are applied; None when they agree."""
    if situation.is_keyless and fence.repeated_at is not None:
        return SetBack(to_version=fence.repeated_at - 1)
    claim = situation.open_claim
    claim_is_overtaken = claim is not None and claim.first_number <= fence.number
    if claim_is_overtaken or any(row.state is SliceState.REGISTERED for row in situation.fenced.values()):
        return MarkApplied(through=fence.number, lake_version=fence.lake_version)
    claim_is_gone = claim is not None and claim.first_number > fence.number + 1
    if claim_is_gone or any(row.state is SliceState.APPLIED for row in situation.after_fence):
        return None if fence.rewound_from is None else Reopen(after=fence.number)
    return None


def _check_fence(fence: Fence, situation: TableSituation) -> None:
    if fence.snapshot_id is not None and fence.snapshot_id != situation.published_snapshot:
        is_active = fence.snapshot_id == situation.active_snapshot
        raise FenceMismatch(
            f"the lake was published from snapshot {fence.snapshot_id},"
            f" the metadata store has {situation.published_snapshot}",
            expected="one and the same snapshot",
            remedy="run cdc snapshot on the table: it completes this snapshot" if is_active else REMEDY,
        )
    for number, slice_id, sha256 in fence.slices:
        row = situation.fenced.get(number)
        if row is None or row.slice_id != slice_id or row.sha256 != sha256:
            registered = "no slice" if row is None else f"slice {row.slice_id} (SHA-256 {row.sha256})"
            raise FenceMismatch(
                f"number {number} is slice {slice_id} (SHA-256 {sha256}) in the lake,"
                f" {registered} in the metadata store",
                expected="the same slice under the same number",
                remedy=REMEDY,
            )


def first_with_same_columns(
    slices: Sequence[RegisteredSlice], schema_of: Callable[[RegisteredSlice], TableSchema]
) -> tuple[RegisteredSlice, ...]:
    """Returns the first slices that one claim can merge: those before the first change of columns that needs a new
    claim. Slices of one boundary are never separated.

    A late slice is read with its own schema and does not change the lake's columns, so it never ends a claim.
    """
    end = in_one_claim(None if row.late else schema_of(row) for row in slices)
    while 0 < end < len(slices) and slices[end].boundary_id == slices[end - 1].boundary_id:
        end -= 1
    if end == 0:
        return tuple(row for row in slices if row.boundary_id == slices[0].boundary_id)
    return tuple(slices[:end])


def merged_ranges(slices: Sequence[RegisteredSlice]) -> tuple[KeyRange, ...]:
    """Returns at most MOST_KEY_RANGES ranges of ids that cover the ranges of all slices.

    Returns no range when a slice with rows has none, or when the id's type changed between slices, since ids of two
    types have no common order.
    """
    bounds = {type(bound) for row in slices for span in row.key_ranges for bound in span}
    if len(bounds) > 1 or any(row.rows and not row.key_ranges for row in slices):
        return ()
    merged = joined((low, high) for row in slices for low, high in row.key_ranges)
    kept = sorted([0, *_widest_gaps(merged), len(merged)])
    return tuple(KeyRange(merged[first][0], merged[end - 1][1]) for first, end in pairwise(kept) if first < end)


def _widest_gaps(ranges: Sequence[Sequence[Any]]) -> list[int]:
    """Returns the indexes of the ranges after the widest gaps, which are kept. Only integers have gaps with a width."""
    if len(ranges) <= MOST_KEY_RANGES:
        return list(range(1, len(ranges)))
    if not all(isinstance(bound, int) for span in ranges for bound in span):
        return []
    widths = {index: ranges[index][0] - ranges[index - 1][1] for index in range(1, len(ranges))}
    return nlargest(MOST_KEY_RANGES - 1, widths, key=widths.__getitem__)


def check_ledger(ledger: LakeLedger, slices: Sequence[RegisteredSlice]) -> None:
    """Compares slices that are about to be marked applied with the slices that the lake's log names.

    Of slices before the first claim that the log still has, only the numbers can be checked; these have no gap. Raises
    FenceMismatch, which names both sides.
    """
    claims = ledger.claims
    named = {identity.number: identity for claim in claims for identity in claim.slices}
    oldest = min((claim.first_number for claim in claims), default=ledger.fence_number + 1)
    for row in slices:
        found = named.get(row.number)
        ours = SliceIdentity(row.number, row.slice_id, row.sha256)
        is_in_log = row.number >= oldest or ledger.is_whole or not claims
        if found != ours and is_in_log:
            lake = f"slice {found.slice_id} (SHA-256 {found.sha256})" if found else "no slice"
            raise FenceMismatch(
                f"number {row.number} is {lake} in the lake's log,"
                f" slice {row.slice_id} (SHA-256 {row.sha256}) in the metadata store",
                expected="the same slice under the same number",
                remedy=REMEDY,
            )
    positions = {row.number: row.position for row in slices}
    for claim in claims:
        position = positions.get(claim.last_number, claim.position)
        if claim.position is not None and position != claim.position:
            raise FenceMismatch(
                f"slice {claim.last_number} ends at {claim.position} in the lake's log,"
                f" at {position} in the metadata store",
                expected="the same boundary",
                remedy=REMEDY,
            )


def _check_slices_after(fence: Fence, after_fence: Sequence[RegisteredSlice]) -> None:
    for row in after_fence:
        if row.state is not SliceState.REGISTERED:
            raise FenceMismatch(
                f"the metadata store says that slice {row.number} is {row.state}, but the lake ends at {fence.number}",
                expected="a lake that holds every applied slice",
                remedy="the lake was set back: run cdc rebuild, and its slices are applied again",
            )


def _of_claim(claim: Claim, after_fence: Sequence[RegisteredSlice]) -> tuple[RegisteredSlice, ...]:
    slices = tuple(row for row in after_fence if claim.first_number <= row.number <= claim.last_number)
    if [row.number for row in slices] != list(range(claim.first_number, claim.last_number + 1)):
        raise FenceMismatch(
            f"the open claim {claim.claim_id} takes slices {claim.first_number} to {claim.last_number},"
            f" after the lake's end there are {len(after_fence)} others",
            expected="a claim that begins right after the lake's end",
            remedy="the lake was changed by somebody else: take a new snapshot of this table",
        )
    return slices
