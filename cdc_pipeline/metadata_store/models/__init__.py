"""The tables of the metadata store in schema `cdc`; the first migration makes them, a test holds it equal to them."""

from cdc_pipeline.metadata_store.models.ledger import (
    SCHEMA,
    boundary,
    claim,
    consumer,
    lease,
    metadata,
    slice_table,
    source_file,
    source_log,
    source_table,
    stream,
    stream_partition,
    table_schema,
)
from cdc_pipeline.metadata_store.models.operations import (
    damaged_slice,
    failing_table,
    quarantine,
    resident_worker,
    slice_request,
)
from cdc_pipeline.metadata_store.models.snapshots import snapshot, snapshot_task

__all__ = [
    "SCHEMA",
    "boundary",
    "claim",
    "consumer",
    "damaged_slice",
    "failing_table",
    "lease",
    "metadata",
    "quarantine",
    "resident_worker",
    "slice_request",
    "slice_table",
    "snapshot",
    "snapshot_task",
    "source_file",
    "source_log",
    "source_table",
    "stream",
    "stream_partition",
    "table_schema",
]
