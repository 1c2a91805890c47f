"""slice_to_lake: the next registered slices of one table -> one row per id -> one commit of its lake table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

import structlog

from cdc_pipeline.apply.next_move import (
    Apply,
    MarkApplied,
    Reopen,
    SetBack,
    View,
    Wait,
    check_ledger,
    merged_ranges,
    next_move,
    of_one_shape,
)
from cdc_pipeline.apply.slice_check import check_slice_file
from cdc_pipeline.errors import CdcError, FenceMismatch, LeaseBusy, SliceDamaged, StaleEpoch, StoreAway, TableStale
from cdc_pipeline.lake.protocol import ClaimWork, Lake, LakeTable, SliceInput, UpsertOutcome
from cdc_pipeline.metadata_store.claims import ClaimOutcome
from cdc_pipeline.metadata_store.failures import Damage
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper, held_lease
from cdc_pipeline.metadata_store.relearning import KnownClaim
from cdc_pipeline.metadata_store.rows import Claim, Lease, SliceRow, SourceTable
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.retry_policy import RetryPolicy
from cdc_pipeline.steps import OnStep

log = structlog.get_logger()
Compared = TypeVar("Compared")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLimits:
    """The most that one commit takes, and the most that one of its slice files may hold when it is unpacked."""

    slices: int
    rows: int
    unpacked_bytes: int = 16 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What one run did for a table: one outcome per commit, and why it ended."""

    outcomes: tuple[UpsertOutcome, ...]
    ended: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceWorker:
    """Safe to kill at any step: the next worker finds out from the lake how far it came."""

    owner: str
    lease_length: timedelta
    limits: ClaimLimits
    store: MetadataStore
    objects: ObjectStore
    lake: Lake
    lake_table: Callable[[TableName], LakeTable]
    new_id: Callable[[], UUID]
    on_step: OnStep
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)

    def slice_to_lake(self, table: TableName, *, until: datetime | None = None) -> Applied:
        """Applies what is registered when it begins, claim by claim; with `until`, nothing labelled at or after it.

        What comes meanwhile is left to the next run, so that one busy table never keeps a slot from its neighbours.
        Raises LeaseBusy when somebody else is at work, TableStale for a table that only a new snapshot mends,
        FenceMismatch and SliceDamaged before anything is changed.
        After any error but those of its lease and its store the table pauses, and is parked in the end.
        """
        row = self.store.tables.table(table)
        _refuse_stale(row)
        failing = self.store.failures.failing(row.table_id)
        with held_lease(self.store.leases, row.table_id, owner=self.owner, duration=self.lease_length) as held:
            try:
                applied = self.apply_held(*held, table, before=row.next_slice_number, until=until)
            except (StaleEpoch, LeaseBusy, StoreAway):
                raise
            except (CdcError, OSError) as error:
                self._pause(held[0], table, error)
                raise
            if failing is not None:
                self.store.failures.clear(held[0])
        return applied

    def apply_held(
        self, lease: Lease, keeper: LeaseKeeper, table: TableName, *, before: int, until: datetime | None = None
    ) -> Applied:
        """The same under a lease that the caller holds: slices with a number below `before`."""
        row, outcomes = self.store.tables.table(table), list[UpsertOutcome]()
        _refuse_stale(row)
        table_id = row.table_id
        while True:
            lake_table = self.lake_table(table)
            view = self._view(table_id, lake_table, before, until)
            move = self._raised_by_owner(lease, partial(next_move, view))
            match move:
                case Wait():
                    return Applied(outcomes=tuple(outcomes), ended=move.reason)
                case MarkApplied():
                    self._mark(lease, lake_table, move)
                case Reopen():
                    self.store.rewinds.reopen(lease, after=move.after)
                    log.info("the lake was set back", table=str(table), after=move.after)
                case SetBack():
                    keeper.check()
                    self.lake.rewind(lake_table, move.to_version)
                    log.warning("slices were applied twice and are taken back", table=str(table), to=move.to_version)
                case Apply():
                    outcomes.append(self._apply(lease, keeper, lake_table, move))

    def _pause(self, lease: Lease, table: TableName, error: CdcError | OSError) -> None:
        is_outage = isinstance(error, OSError) or error.outage
        pause = self.store.failures.record(lease, str(error), retry_policy=self.retry_policy, is_outage=is_outage)
        words = "table parked" if pause.parks else "table pauses"
        log.warning(words, table=str(table), seconds=pause.length.total_seconds(), found=str(error))

    def _view(self, table_id: int, lake_table: LakeTable, before: int, until: datetime | None) -> View:
        fence = self.lake.read_fence(lake_table)
        if fence is None:
            published = self.store.history.published_snapshot(table_id)
            return View(fence=None, published_snapshot=published, fenced={}, behind_fence=(), open_claim=None)
        named = self.store.slices.slices(table_id, fence.slices[0].number, fence.number) if fence.slices else ()
        behind = self.store.slices.next_slices(
            table_id, after_number=fence.number, most_slices=self.limits.slices, most_rows=self.limits.rows
        )
        active = self.store.snapshots.active_snapshot(table_id)
        end = before
        if active is not None:
            end = min(end, self.store.snapshots.fence_at(table_id, active.cutoff_offset) + 1)
        within = tuple(row for row in behind if row.number < end and (until is None or row.label_start < until))
        within = of_one_shape(within, lambda row: self.store.tables.schema(row.table_id, row.schema_id or ""))
        open_claim = self.store.claims.open_claim(table_id)
        if open_claim is not None and open_claim.last_number > fence.number:
            within = self.store.slices.slices(table_id, fence.number + 1, open_claim.last_number)
        return View(
            fence=fence,
            published_snapshot=self.store.history.published_snapshot(table_id),
            fenced={row.number: row for row in named},
            behind_fence=within,
            open_claim=open_claim,
            is_bag=lake_table.schema.is_bag,
            active_snapshot=None if active is None else active.snapshot_id,
        )

    def _raised_by_owner(self, lease: Lease, compare: Callable[[], Compared]) -> Compared:
        """What was read while a newer owner worked proves nothing: then StaleEpoch is raised and no alarm."""
        try:
            return compare()
        except FenceMismatch:
            self.store.leases.renew(lease, duration=self.lease_length)
            raise

    def _mark(self, lease: Lease, table: LakeTable, move: MarkApplied) -> None:
        """Only what the lake's log names by the same ids and hashes."""
        waiting = self.store.slices.waiting_through(lease.table_id, move.through)
        first = waiting[0].number if waiting else move.through
        ledger = self.lake.read_ledger(table.name, table_uuid=UUID(table.table_uuid), after=first - 1)
        claims = () if ledger is None else ledger.claims
        if ledger is not None:
            self._raised_by_owner(lease, partial(check_ledger, ledger, waiting))
        known = [
            KnownClaim(
                claim_id=claim.claim_id,
                first_number=claim.first_number,
                last_number=claim.last_number,
                lake_version=claim.lake_version,
                committed_at=claim.committed_at,
            )
            for claim in claims
        ]
        self.store.claims.mark_applied_through(lease, move.through, lake_version=move.lake_version, claims=known)
        log.info("already in the lake", table=str(table.name), through=move.through)

    def _apply(self, lease: Lease, keeper: LeaseKeeper, table: LakeTable, move: Apply) -> UpsertOutcome:
        session = self.lake.open() if any(row.path for row in move.slices) else None
        if move.resumed is None:
            claim = self.store.claims.record_claim(lease, move.slices, claim_id=self.new_id(), session=session)
        else:
            if move.resumed.session:
                self.lake.cancel(move.resumed.session, str(move.resumed.claim_id))
            claim = self.store.claims.resume_claim(lease, move.resumed, session=session)
        try:
            work = self._work(lease, claim, table.name, move.slices)
            outcome = self.lake.upsert(table, work, may_commit=keeper.check)
        except (StaleEpoch, LeaseBusy):
            raise
        except CdcError as error:
            if not error.retryable:
                self.store.claims.mark_failed(lease, claim, str(error))
            raise
        self.store.claims.mark_applied(lease, claim, _claim_outcome(outcome))
        log.info(
            "claim applied",
            table=str(table.name),
            first=claim.first_number,
            last=claim.last_number,
            rows=outcome.rows_read,
            parked=outcome.parked,
            seconds=round(outcome.seconds, 2),
            lake_version=outcome.lake_version,
        )
        return outcome

    def _work(self, lease: Lease, claim: Claim, table: TableName, slices: Sequence[SliceRow]) -> ClaimWork:
        row = self.store.tables.table(table)
        return ClaimWork(
            claim_id=str(claim.claim_id),
            first_number=claim.first_number,
            last_number=claim.last_number,
            slices=self._checked(lease, [slice_row for slice_row in slices if slice_row.path]),
            cutoff_version=row.cutoff_version or "",
            partial_rows=sum(slice_row.partial_rows for slice_row in slices),
            key_changes=sum(slice_row.key_changes for slice_row in slices),
            truncates=sum(slice_row.truncates for slice_row in slices),
            key_ranges=merged_ranges(slices),
            late=any(slice_row.late for slice_row in slices),
            tombstones=self.store.slices.awaits_late(row.table_id),
            truncated_at=self.store.slices.truncated_through(row.table_id, claim.last_number),
            position=slices[-1].position,
        )

    def _checked(self, lease: Lease, slices: Sequence[SliceRow]) -> tuple[SliceInput, ...]:
        """The registered slice files, found unchanged; those that are not are known by name before SliceDamaged."""
        inputs, damages = list[SliceInput](), dict[int, SliceDamaged]()
        for row in slices:
            try:
                inputs.append(self._input(row))
            except SliceDamaged as error:
                damages[row.number] = error
        if damages:
            found = [
                Damage(number=number, found=error.found, expected=error.expected) for number, error in damages.items()
            ]
            self.store.failures.record_damage(lease, found)
            raise next(iter(damages.values()))
        return tuple(inputs)

    def _input(self, row: SliceRow) -> SliceInput:
        if row.path is None or row.sha256 is None or row.schema_id is None:
            raise SliceDamaged(f"slice {row.number} has {row.rows} rows but no file", expected="a path and a SHA-256")
        schema = self.store.tables.schema(row.table_id, row.schema_id)
        check_slice_file(self.objects, self.on_step, row, schema, most_unpacked_bytes=self.limits.unpacked_bytes)
        return SliceInput(
            number=row.number,
            slice_id=row.slice_id,
            key=row.path,
            rows=row.rows,
            sha256=row.sha256,
            schema=schema,
            late=row.late,
        )


def _refuse_stale(row: SourceTable) -> None:
    if row.state is TableState.STALE:
        raise TableStale(row.parked_reason or "", table=str(row.name), remedy="nothing is applied until then")


def _claim_outcome(outcome: UpsertOutcome) -> ClaimOutcome:
    return ClaimOutcome(
        lake_version=outcome.lake_version,
        rows_read=outcome.rows_read,
        rows_inserted=outcome.inserted,
        rows_updated=outcome.updated,
        rows_deleted=outcome.deleted,
        rows_ignored=outcome.ignored,
        rows_parked=outcome.parked,
        rows_tied=outcome.tied,
        bytes=outcome.bytes_written,
        seconds=outcome.seconds,
    )
