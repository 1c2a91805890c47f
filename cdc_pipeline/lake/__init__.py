"""The lake: Delta tables that Spark merges into, with a fence inside each table's own log."""

from cdc_pipeline.lake.ledger_values import SliceIdentity
from cdc_pipeline.lake.protocol import (
    NOTHING_APPLIED,
    ClaimWork,
    Compaction,
    DataFile,
    Fence,
    KeyRange,
    Lake,
    LakePublication,
    LakeTable,
    SliceInput,
    UpsertOutcome,
)

__all__ = [
    "NOTHING_APPLIED",
    "ClaimWork",
    "Compaction",
    "DataFile",
    "Fence",
    "KeyRange",
    "Lake",
    "LakePublication",
    "LakeTable",
    "SliceIdentity",
    "SliceInput",
    "UpsertOutcome",
]
