"""Prepares a claim for the lake: checks its slice files and collects what the merge needs to know about them."""

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_pipeline.apply.next_move import merged_ranges
from cdc_pipeline.apply.slice_check import check_slice_file
from cdc_pipeline.errors import SliceDamaged
from cdc_pipeline.lake.protocol import ClaimWork, SliceInput
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.failures import Damage
from cdc_pipeline.metadata_store.ledger.records import Claim, RegisteredSlice
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName
from cdc_pipeline.steps import OnStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLimits:
    """The most slices and rows of one commit, and the most bytes that one of its slice files may have unpacked."""

    slices: int
    rows: int
    unpacked_bytes: int = 16 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPreparation:
    """Turns the slices of a claim into what the lake merges."""

    store: MetadataStore
    objects: ObjectStore
    limits: ClaimLimits
    on_step: OnStep

    def prepare(self, lease: Lease, claim: Claim, table: TableName, slices: Sequence[RegisteredSlice]) -> ClaimWork:
        """Checks every slice file and describes the claim for the merge.

        Raises SliceDamaged after every damaged slice is recorded in the metadata store.
        """
        row = self.store.tables.table(table)
        return ClaimWork(
            claim_id=str(claim.claim_id),
            first_number=claim.first_number,
            last_number=claim.last_number,
            slices=self._checked(lease, slices),
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

    def _checked(self, lease: Lease, slices: Sequence[RegisteredSlice]) -> tuple[SliceInput, ...]:
        """Checks all files before it raises the first error, so that people see every damaged slice."""
        inputs, damages = list[SliceInput](), list[tuple[Damage, SliceDamaged]]()
        for row in slices:
            try:
                inputs.append(self._input(row))
            except SliceDamaged as error:
                damages.append((Damage(number=row.number, found=error.found, expected=error.expected), error))
        if damages:
            self.store.failures.record_damage(lease, [damage for damage, _ in damages])
            raise damages[0][1]
        return tuple(inputs)

    def _input(self, row: RegisteredSlice) -> SliceInput:
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
