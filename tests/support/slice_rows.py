"""Registered slices as the metadata store gives them, for tests that need no store."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice
from cdc_pipeline.metadata_store.states import SliceState

MORNING = datetime(2024, 1, 1, tzinfo=UTC)


def slice_row(number: int, *, rows: int = 5, state: SliceState = SliceState.REGISTERED) -> RegisteredSlice:
    return RegisteredSlice(
        table_id=1,
        number=number,
        slice_id=f"slice-{number}",
        boundary_id=number,
        stream_partition=0,
        label_start=MORNING,
        label_end=MORNING + timedelta(minutes=1),
        start_offset=f"{number:016x}",
        end_offset=f"{number + 1:016x}",
        path=f"{number}.parquet",
        size_bytes=10,
        rows=rows,
        sha256=f"sha-{number}",
        schema_id="schema",
        key_changes=0,
        partial_rows=0,
        truncates=0,
        key_ranges=(),
        state=state,
        claim_id=None,
        registered_at=MORNING,
        applied_at=None,
        truncated_at=None,
        late=False,
        position=f"{number + 1:016x}",
        commit_time=MORNING,
        requested=False,
    )


def registered(content: bytes, rows: int) -> RegisteredSlice:
    """The row of a slice whose file has this content."""
    sha256 = hashlib.sha256(content).hexdigest()
    return replace(slice_row(1, rows=rows), size_bytes=len(content), sha256=sha256)
