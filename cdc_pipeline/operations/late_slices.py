"""Writes a late slice: rows outside the cuts, numbered after all registered slices."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_pipeline.areas import slice_key
from cdc_pipeline.consume.cut_chain import CutChain
from cdc_pipeline.metadata_store.ledger.cut import LateSlice, Slice
from cdc_pipeline.metadata_store.ledger.quarantine import no_boundary
from cdc_pipeline.metadata_store.ledger.records import Boundary, SourceTable
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableSchema
from cdc_pipeline.slice_file import write_slice_file
from cdc_pipeline.steps import OnStep, step
from cdc_pipeline.time_slice import Label, SliceFileName


@dataclass(frozen=True, slots=True, kw_only=True)
class LateSlices:
    """Writes late slices, which `chain` decides and registers."""

    store: MetadataStore
    objects: ObjectStore
    chain: CutChain
    on_step: OnStep

    def write(
        self,
        table: SourceTable,
        stream_partition: int,
        folder: str,
        rows: pa.Table,
        schema: TableSchema,
        quarantine_ids: Sequence[int] = (),
    ) -> LateSlice:
        """Puts the file of a late slice, which nobody registers before `CutChain.register_late` decides it.

        `quarantine_ids`: the events that it replays. `folder`: part of the file's key, because two late slices of a
        keyless table may have the same content. Raises RegistryError while the stream has no boundary, and for an event
        that is already replayed or dropped.
        """
        boundary = self.store.lake_positions.last_boundary(table.stream)
        if boundary is None:
            raise no_boundary(table.stream)
        file = write_slice_file(rows, schema)
        key = slice_key(table.name, stream_partition, f"{folder}/{_file_name(boundary, file.sha256)}")
        with step(self.on_step, "slice_file.put"):
            self.objects.put_if_absent(key, file.content)
        schema_id = self.store.tables.record_schema(
            table.table_id, schema, first_offset=boundary.position, is_newest=table.schema_id is None
        )
        new = Slice.of(
            file,
            table_id=table.table_id,
            stream_partition=stream_partition,
            path=key,
            schema_id=schema_id,
            late=True,
        )
        return self.store.quarantine.late_slice(new, quarantine_ids)


def _file_name(boundary: Boundary, sha256: str) -> SliceFileName:
    """Returns a name with a zero-length range at the boundary, the end of everything that is registered."""
    return SliceFileName(
        label=Label(start=boundary.label_start, end=boundary.label_end),
        start_offset=boundary.position,
        end_offset=boundary.position,
        sha256=sha256,
    )
