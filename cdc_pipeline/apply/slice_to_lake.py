"""slice_to_lake: applies registered slices of one table, by one commit of its lake table per claim."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import takewhile
from typing import TypeVar
from uuid import UUID

import structlog

from cdc_pipeline.apply.claim_work import ClaimLimits, prepare
from cdc_pipeline.apply.next_move import (
    ALL_APPLIED,
    Apply,
    MarkApplied,
    Reopen,
    SetBack,
    TableSituation,
    Wait,
    check_ledger,
    first_with_same_columns,
    is_last,
    next_move,
)
from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.errors import (
    CdcError,
    FenceMismatch,
    LeaseBusy,
    StaleEpoch,
    StoreAway,
    TableStale,
    is_outage,
    redacted,
)
from cdc_pipeline.lake.protocol import LakeTable, UpsertOutcome
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.records import Claim, SourceTable
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.retry_policy import RetryPolicy
from cdc_pipeline.settings.work import MaintenanceSettings

log = structlog.get_logger()
Compared = TypeVar("Compared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What one run did for a table: one outcome per commit, and why the run ended.

    `found_applied`: the lake had a claim that the metadata store did not know to be applied.
    """

    outcomes: tuple[UpsertOutcome, ...]
    ended: str
    found_applied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceWorker:
    """Applies slices to the lake. Safe to kill at any step: the next worker continues from the lake's own log."""

    work: TableWork
    limits: ClaimLimits
    new_id: Callable[[], UUID]
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)

    def slice_to_lake(self, table: TableName, *, until: datetime | None = None) -> Applied:
        """Applies the slices that are registered when the call begins, claim by claim.

        With `until`, applies only slices before the first whose label begins at or after it: consumers that share a
        stream have labels of their own, and a table takes its slices in their order. Slices that are registered during
        the call are left to the next call, so that one busy table never keeps a task slot from the other tables.

        Raises LeaseBusy while another worker has the table, TableStale for a table that needs a new snapshot. Raises
        FenceMismatch or SliceDamaged before anything of the claim in question reaches the lake; earlier claims of the
        call stay applied. After an error under the lease, except one of the lease or of the metadata store, the table
        pauses by the retry policy, and is parked when it has failed for too long.
        """
        row = self.work.store.tables.table(table)
        _refuse_stale(row)
        with self.work.leased(row.table_id) as held:
            with self.pausing(held[0], table):
                applied = self.apply_held(*held, table, before=row.next_slice_number, until=until)
            has_tried = bool(applied.outcomes) or applied.found_applied or applied.ended == ALL_APPLIED
            if has_tried and self.work.store.failures.failing(row.table_id) is not None:
                self.work.store.failures.clear(held[0])
            self._optimize(held[1], table, applied)
        return applied

    @contextmanager
    def pausing(self, lease: Lease, table: TableName) -> Iterator[None]:
        """Lets the table pause after any error of the block, except one of the lease or of the metadata store."""
        try:
            yield
        except (StaleEpoch, LeaseBusy, StoreAway):
            raise
        except Exception as error:
            is_foreseen = isinstance(error, (CdcError, OSError))
            found = redacted(str(error) if is_foreseen else f"{type(error).__name__}: {error}")
            pause = self.work.store.failures.record(
                lease, found, retry_policy=self.retry_policy, is_outage=is_outage(error)
            )
            words = "table parked" if pause.parks else "table pauses"
            log.warning(words, table=str(table), seconds=pause.length.total_seconds(), found=found)
            raise

    def _optimize(self, keeper: LeaseKeeper, table: TableName, applied: Applied) -> None:
        """Rewrites files that have decayed, if enough claims came since the last look.

        The claims are durable already, so a failure is only logged; a later run tries again.
        """
        if not applied.outcomes:
            return
        version = applied.outcomes[-1].lake_version
        try:
            keeper.check()
            done = self.work.lake.optimize(self.work.lake_table(table), self.maintenance, claimed_at=version)
        except (CdcError, OSError) as error:
            log.warning("files were not rewritten", table=str(table), found=str(error))
        except Exception:  # every error of maintenance is caught, so that a run whose claims are durable succeeds
            log.exception("files were not rewritten", table=str(table))
        else:
            if done.files_before:
                log.info("files rewritten", table=str(table), found=str(done))

    def apply_held(
        self, lease: Lease, keeper: LeaseKeeper, table: TableName, *, before: int, until: datetime | None = None
    ) -> Applied:
        """Applies slices with a number below `before`, under a lease that the caller holds.

        Each round compares the lake's log with the metadata store, chooses the next move and makes it. There is no
        other round after a claim that leaves nothing.
        """
        row, outcomes, found_applied = self.work.store.tables.table(table), list[UpsertOutcome](), False
        _refuse_stale(row)
        while True:
            lake_table = self.work.lake_table(table)
            situation = self._situation(row.table_id, lake_table, before, until)
            move = self._compared(lease, partial(next_move, situation))
            match move:
                case Wait():
                    return Applied(outcomes=tuple(outcomes), ended=move.reason, found_applied=found_applied)
                case MarkApplied():
                    self._mark_applied(lease, lake_table, move)
                    found_applied = True
                case Reopen():
                    self.work.store.rewinds.reopen(lease, after=move.after)
                    log.info("slices wait again, the lake was rewound", table=str(table), after=move.after)
                case SetBack():
                    keeper.check()
                    self.work.lake.rewind(lake_table, move.to_version, fence_then=None)
                    log.warning("lake set back, slices were in it twice", table=str(table), to=move.to_version)
                case Apply():
                    try:
                        outcomes.append(self._apply(lease, keeper, lake_table, move))
                    except Exception:  # whoever takes the claim over ends its session, which may serve others by then
                        self.work.lake.close()
                        raise
                    if is_last(move, situation, before):
                        return Applied(outcomes=tuple(outcomes), ended=ALL_APPLIED)

    def _apply(self, lease: Lease, keeper: LeaseKeeper, table: LakeTable, move: Apply) -> UpsertOutcome:
        """Records a claim's bounds, checks its slice files, merges them in one commit, marks the claim as applied."""
        claim = self._record_claim(lease, move)
        try:
            prepared = prepare(self.work, self.limits, lease, claim, table.name, move.slices)
            outcome = self.work.lake.upsert(table, prepared, may_commit=keeper.check)
        except (StaleEpoch, LeaseBusy):
            raise
        except CdcError as error:
            if not error.retryable:
                self.work.store.claims.mark_failed(lease, claim, str(error))
            raise
        self.work.store.claims.mark_applied(
            lease,
            claim,
            outcome.counts,
            lake_version=outcome.lake_version,
            size_bytes=outcome.bytes_written,
            seconds=outcome.seconds,
        )
        _log_applied(table.name, claim, outcome)
        return outcome

    def _record_claim(self, lease: Lease, move: Apply) -> Claim:
        """Records the claim's bounds, or takes over a dead worker's claim with its bounds; durable on return."""
        session = self.work.lake.open()
        if move.resumed is None:
            return self.work.store.claims.record_claim(lease, move.slices, claim_id=self.new_id(), session=session)
        if move.resumed.session:
            # The dead worker's MERGE may still run in Spark.
            self.work.lake.cancel(move.resumed.session, str(move.resumed.claim_id))
        return self.work.store.claims.resume_claim(lease, move.resumed, session=session)

    def _situation(self, table_id: int, lake_table: LakeTable, before: int, until: datetime | None) -> TableSituation:
        """Reads the lake's log and the metadata store. `after_fence` holds the slices of at most one claim."""
        fence = self.work.lake.read_fence(lake_table)
        if fence is None:
            published = self.work.store.snapshot_history.published_snapshot(table_id)
            return TableSituation(fence=None, published_snapshot=published, fenced={}, after_fence=(), open_claim=None)
        named = self.work.store.slices.slices(table_id, fence.slices[0].number, fence.number) if fence.slices else ()
        behind = self.work.store.slices.next_slices(
            table_id, after_number=fence.number, most_slices=self.limits.slices, most_rows=self.limits.rows
        )
        active = self.work.store.snapshots.active_snapshot(table_id)
        if active is not None:  # what reaches behind its cutoff is applied to the table that it publishes
            behind = tuple(takewhile(lambda row: row.end_offset <= active.cutoff_offset, behind))
        behind = tuple(row for row in behind if row.number < before)
        within = tuple(takewhile(lambda row: until is None or row.label_start < until, behind))
        left_from = until if len(within) < len(behind) else None
        within = first_with_same_columns(within, lambda row: self.work.store.tables.schema(row.table_id, row.schema_id))
        open_claim = self.work.store.claims.open_claim(table_id)
        if open_claim is not None and before <= open_claim.first_number == fence.number + 1:
            open_claim = None  # it takes none of the slices that the caller asks for
        elif open_claim is not None and open_claim.last_number > fence.number:
            within = self.work.store.slices.slices(table_id, fence.number + 1, open_claim.last_number)
        return TableSituation(
            fence=fence,
            published_snapshot=self.work.store.snapshot_history.published_snapshot(table_id),
            fenced={row.number: row for row in named},
            after_fence=within,
            open_claim=open_claim,
            is_keyless=lake_table.schema.is_keyless,
            active_snapshot=None if active is None else active.snapshot_id,
            left_from=left_from,
        )

    def _compared(self, lease: Lease, compare: Callable[[], Compared]) -> Compared:
        """Returns the result of `compare`. Raises FenceMismatch only if the lease is still held, otherwise StaleEpoch.

        Without the lease a difference is expected: a newer owner may have changed lake and store between the two reads.
        """
        try:
            return compare()
        except FenceMismatch:
            self.work.store.leases.renew(lease, duration=self.work.lease_length)
            raise

    def _mark_applied(self, lease: Lease, table: LakeTable, move: MarkApplied) -> None:
        """Marks slices as applied that the lake already has, after a comparison of their ids and hashes with its log.

        Also records the claims of the log that the metadata store lacks.
        """
        waiting = self.work.store.slices.waiting_through(lease.table_id, move.through)
        first = waiting[0].number if waiting else move.through
        ledger = self.work.lake.read_ledger(table.name, table_uuid=UUID(table.table_uuid), after=first - 1)
        claims = () if ledger is None else ledger.claims
        if ledger is not None:
            self._compared(lease, partial(check_ledger, ledger, waiting))
        self.work.store.claims.mark_applied_through(lease, move.through, lake_version=move.lake_version, claims=claims)
        log.info("slices were in the lake already", table=str(table.name), through=move.through)


def _refuse_stale(row: SourceTable) -> None:
    if row.state is TableState.STALE:
        raise TableStale(row.state_reason or "", table=str(row.name), remedy="nothing is applied until then")


def _log_applied(table: TableName, claim: Claim, outcome: UpsertOutcome) -> None:
    log.info(
        "claim applied",
        table=str(table),
        first=claim.first_number,
        last=claim.last_number,
        rows=outcome.counts.read,
        incomplete=outcome.counts.incomplete,
        seconds=round(outcome.seconds, 2),
        lake_version=outcome.lake_version,
    )
