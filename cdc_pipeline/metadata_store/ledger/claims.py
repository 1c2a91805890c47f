"""Claims: consecutive slices that one commit of the lake applies, once and in order."""

from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from sqlalchemy import Connection, Update, case, func, insert, select, update

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStore, as_optional_record, as_record
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.known_claims import apply_known_claim
from cdc_pipeline.metadata_store.ledger.records import Claim, RegisteredSlice
from cdc_pipeline.metadata_store.states import ClaimState, SliceState
from cdc_pipeline.record import ClaimCounts, KnownClaim

_CLAIM, _SLICE = models.claim, models.slice_table


class Claims(OfStore):
    """Every change needs the table's lease. It raises StaleEpoch, without effect, when another owner has the lease."""

    def open_claim(self, table_id: int) -> Claim | None:
        """Returns the table's unfinished claim; None if there is none. A table has at most one."""
        with self.database.transaction("claim.read_open") as connection:
            row = connection.execute(
                select(_CLAIM).where(_CLAIM.c.table_id == table_id, _CLAIM.c.state == ClaimState.CLAIMED)
            ).one_or_none()
        return as_optional_record(Claim, row)

    def record_claim(
        self, lease: Lease, slices: Sequence[RegisteredSlice], *, claim_id: UUID, session: str | None = None
    ) -> Claim:
        """Records a claim of these slices. Its bounds are durable on return, before any work in the lake.

        `attempt` is one more than that of the failed claims that began at the same slice. Raises RegistryError when
        another claim is open, or when an earlier slice is not applied yet.
        """
        numbers = [row.number for row in slices]
        first, last = numbers[0], numbers[-1]
        with self.database.transaction("claim.record") as connection:
            hold_lease(connection, lease)
            _check_next(connection, lease.table_id, numbers)
            failed = connection.scalar(
                select(func.max(_CLAIM.c.attempt)).where(
                    _CLAIM.c.table_id == lease.table_id,
                    _CLAIM.c.first_number == first,
                    _CLAIM.c.state == ClaimState.FAILED,
                )
            )
            row = connection.execute(
                insert(_CLAIM)
                .values(
                    claim_id=claim_id,
                    table_id=lease.table_id,
                    first_number=first,
                    last_number=last,
                    epoch=lease.epoch,
                    owner=lease.owner,
                    attempt=(failed or 0) + 1,
                    slices=len(slices),
                    session=session,
                )
                .returning(_CLAIM)
            ).one()
        return as_record(Claim, row)

    def resume_claim(self, lease: Lease, claim: Claim, *, session: str | None = None) -> Claim:
        """Takes over an open claim with the same bounds, as its next attempt. Raises RegistryError if not open."""
        with self.database.transaction("claim.resume") as connection:
            hold_lease(connection, lease)
            row = connection.execute(
                _open(claim)
                .values(epoch=lease.epoch, owner=lease.owner, session=session, attempt=_CLAIM.c.attempt + 1)
                .returning(_CLAIM)
            ).one_or_none()
        if row is None:
            raise _not_open(claim)
        return as_record(Claim, row)

    def mark_applied(
        self, lease: Lease, claim: Claim, counts: ClaimCounts, *, lake_version: int, size_bytes: int, seconds: float
    ) -> None:
        """Marks the claim and its slices as applied. Call it only after the lake's log has the claim. Idempotent.

        Raises RegistryError when the claim was marked as failed meanwhile.
        """
        values = {f"rows_{what}": count for what, count in asdict(counts).items()}
        values |= {"lake_version": lake_version, "bytes": size_bytes, "seconds": seconds}
        with self.database.transaction("claim.mark_applied") as connection:
            hold_lease(connection, lease)
            marked = connection.execute(
                _open(claim)
                .values(state=ClaimState.APPLIED, finished_at=func.clock_timestamp(), **values)
                .returning(_CLAIM.c.claim_id)
            ).one_or_none()
            if marked is not None:
                _apply_slices(connection, claim)
            elif _state(connection, claim) is not ClaimState.APPLIED:
                raise _not_open(claim)

    def mark_applied_through(
        self, lease: Lease, number: int, *, lake_version: int, claims: Sequence[KnownClaim] = ()
    ) -> None:
        """Marks as applied what the lake already has: slices at or below `number`, and an open claim that ends there.

        An open claim that begins at or below `number` and ends above it cannot be applied any more: it is marked as
        failed, and its other slices wait again. `claims`: claims of the lake's log, which an older store may lack.
        """
        with self.database.transaction("claim.mark_applied_through") as connection:
            hold_lease(connection, lease)
            for claim in claims:
                apply_known_claim(connection, lease.table_id, claim, owner=lease.owner)
            rows = connection.execute(
                update(_CLAIM)
                .where(
                    _CLAIM.c.table_id == lease.table_id,
                    _CLAIM.c.state == ClaimState.CLAIMED,
                    _CLAIM.c.last_number <= number,
                )
                .values(
                    state=ClaimState.APPLIED,
                    finished_at=func.clock_timestamp(),
                    lake_version=case((_CLAIM.c.last_number == number, lake_version)),
                )
                .returning(_CLAIM)
            ).all()
            for row in rows:
                _apply_slices(connection, as_record(Claim, row))
            _give_up_overtaken(connection, lease.table_id, number)
            connection.execute(
                update(_SLICE)
                .where(
                    _SLICE.c.table_id == lease.table_id,
                    _SLICE.c.state == SliceState.REGISTERED,
                    _SLICE.c.number <= number,
                )
                .values(state=SliceState.APPLIED, applied_at=func.clock_timestamp())
            )

    def mark_failed(self, lease: Lease, claim: Claim, error: str) -> None:
        """Marks the claim as failed. Its slices wait for another claim, with the same or other bounds. Idempotent."""
        with self.database.transaction("claim.mark_failed") as connection:
            hold_lease(connection, lease)
            marked = connection.execute(
                _open(claim)
                .values(state=ClaimState.FAILED, finished_at=func.clock_timestamp(), error=error)
                .returning(_CLAIM.c.claim_id)
            ).one_or_none()
            if marked is None and _state(connection, claim) is not ClaimState.FAILED:
                raise _not_open(claim)


def _give_up_overtaken(connection: Connection, table_id: int, number: int) -> None:
    connection.execute(
        update(_CLAIM)
        .where(
            _CLAIM.c.table_id == table_id,
            _CLAIM.c.state == ClaimState.CLAIMED,
            _CLAIM.c.first_number <= number,
        )
        .values(
            state=ClaimState.FAILED,
            finished_at=func.clock_timestamp(),
            error=f"overtaken: the lake was at slice {number} before this claim was applied",
        )
    )


def _open(claim: Claim) -> Update:
    return update(_CLAIM).where(_CLAIM.c.claim_id == claim.claim_id, _CLAIM.c.state == ClaimState.CLAIMED)


def _apply_slices(connection: Connection, claim: Claim) -> None:
    connection.execute(
        update(_SLICE)
        .where(
            _SLICE.c.table_id == claim.table_id,
            _SLICE.c.number.between(claim.first_number, claim.last_number),
            _SLICE.c.state == SliceState.REGISTERED,
        )
        .values(state=SliceState.APPLIED, claim_id=claim.claim_id, applied_at=func.clock_timestamp())
    )


def _check_next(connection: Connection, table_id: int, numbers: list[int]) -> None:
    """Checks that the numbers are consecutive, that the slices wait, and that no slice before them waits."""
    first, last = numbers[0], numbers[-1]
    registered = connection.scalars(
        select(_SLICE.c.number)
        .where(
            _SLICE.c.table_id == table_id,
            _SLICE.c.number.between(first, last),
            _SLICE.c.state == SliceState.REGISTERED,
        )
        .order_by(_SLICE.c.number)
    ).all()
    waiting = connection.scalar(
        select(func.min(_SLICE.c.number)).where(_SLICE.c.table_id == table_id, _SLICE.c.state == SliceState.REGISTERED)
    )
    if numbers != list(range(first, last + 1)) or numbers != list(registered):
        raise RegistryError(
            f"the slices {first} to {last} of table {table_id} are not all there and registered",
            expected="consecutive slices that the lake does not have yet",
            remedy="ask for the next slices again",
        )
    if waiting is not None and waiting < first:
        raise RegistryError(
            f"slice {waiting} of table {table_id} is not applied yet",
            expected=f"nothing that waits before slice {first}",
            remedy="ask for the next slices after the last applied one",
        )


def _state(connection: Connection, claim: Claim) -> ClaimState | None:
    state: ClaimState | None = connection.scalar(select(_CLAIM.c.state).where(_CLAIM.c.claim_id == claim.claim_id))
    return state


def _not_open(claim: Claim) -> RegistryError:
    return RegistryError(
        f"the claim {claim.claim_id} on slices {claim.first_number} to {claim.last_number} is not open",
        expected="the state claimed",
        remedy="read the open claim again: a publication or another worker closed this one",
    )
