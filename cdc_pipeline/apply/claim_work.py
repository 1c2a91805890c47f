"""Prepares a claim for the lake: checks its slice files and collects what the merge needs to know about them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.apply.next_move import merged_ranges
from cdc_pipeline.apply.table_work import TableWork
from cdc_pipeline.errors import ObjectMissing, SliceDamaged
from cdc_pipeline.lake.protocol import ClaimWork, SliceInput
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.records import Claim, RegisteredSlice
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.steps import OnStep, step


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLimits:
    """The most slices and rows of one commit, and the most bytes that one of its slice files may have unpacked."""

    slices: int
    rows: int
    unpacked_bytes: int = 16 << 30


def prepare(
    work: TableWork,
    limits: ClaimLimits,
    lease: Lease,
    claim: Claim,
    table: TableName,
    slices: Sequence[RegisteredSlice],
) -> ClaimWork:
    """Checks every slice file and describes the claim for the merge.

    Raises SliceDamaged after every damaged slice is recorded in the metadata store.
    """
    row = work.store.tables.table(table)
    return ClaimWork(
        claim_id=str(claim.claim_id),
        first_number=claim.first_number,
        last_number=claim.last_number,
        slices=_checked(work, limits, lease, slices),
        cutoff_version=row.cutoff_version or "",
        partial_rows=sum(slice_row.partial_rows for slice_row in slices),
        key_changes=sum(slice_row.key_changes for slice_row in slices),
        truncates=sum(slice_row.truncates for slice_row in slices),
        key_ranges=merged_ranges(slices),
        late=any(slice_row.late for slice_row in slices),
        tombstones=work.store.slices.awaits_late(row.table_id),
        truncated_at=work.store.slices.truncated_through(row.table_id, claim.last_number),
        position=slices[-1].position,
        horizon=row.horizon if row.horizon_number <= claim.last_number else "",
    )


def _checked(
    work: TableWork, limits: ClaimLimits, lease: Lease, slices: Sequence[RegisteredSlice]
) -> tuple[SliceInput, ...]:
    """Checks all files before it raises the first error, so that people see every damaged slice."""
    inputs, damages = list[SliceInput](), dict[int, SliceDamaged]()
    for row in slices:
        try:
            inputs.append(_input(work, limits, row))
        except SliceDamaged as error:
            damages[row.number] = error
    if damages:
        work.store.failures.record_damage(lease, damages)
        raise next(iter(damages.values()))
    return tuple(inputs)


def _input(work: TableWork, limits: ClaimLimits, row: RegisteredSlice) -> SliceInput:
    schema = work.store.tables.schema(row.table_id, row.schema_id)
    check_slice_file(work.objects, work.on_step, row, schema, most_unpacked_bytes=limits.unpacked_bytes)
    return SliceInput(
        number=row.number,
        slice_id=row.slice_id,
        key=row.path,
        rows=row.rows,
        sha256=row.sha256,
        schema=schema,
        late=row.late,
    )


def check_slice_file(
    objects: ObjectStore, on_step: OnStep, row: RegisteredSlice, schema: TableSchema, *, most_unpacked_bytes: int
) -> None:
    """Reads the object and checks it by `check_content`. Raises SliceDamaged.

    Memory holds at most the registered size: an object of another size is not read.
    """
    try:
        with step(on_step, "slice_file.get"):
            size_bytes = objects.head(row.path).size_bytes
            content = objects.get(row.path) if size_bytes == row.size_bytes else b""
    except ObjectMissing as error:
        raise damaged(row, "no content: the object is gone", "the object that was registered") from error
    if size_bytes != row.size_bytes:
        raise damaged(row, f"{size_bytes} bytes", f"{row.size_bytes} bytes")
    check_content(row, content, schema, most_unpacked_bytes=most_unpacked_bytes)


def check_content(row: RegisteredSlice, content: bytes, schema: TableSchema, *, most_unpacked_bytes: int) -> None:
    """Compares the SHA-256, then the footer's columns with types, number of rows and unpacked bytes.

    Does not unpack any page. Raises SliceDamaged.
    """
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != row.sha256:
        raise damaged(row, f"{len(content)} bytes with the SHA-256 {sha256}", f"{row.size_bytes} bytes, {row.sha256}")
    # The footer is parsed only after the hash matched: these are the bytes that the consumer wrote.
    try:
        footer = pq.read_metadata(pa.BufferReader(content))
    except (OSError, ValueError) as error:
        raise damaged(row, f"{len(content)} bytes that are no whole Parquet file", "a slice file") from error
    found, expected = _columns(footer), expected_columns(schema)
    if found != expected:
        other = next((column for column in found if column not in expected), "the same in another order")
        message = f"columns other than those of the schema {row.schema_id}: {other!r:.300}"
        raise damaged(row, message, "a slice file of that schema")
    if footer.num_rows != row.rows:
        raise damaged(row, f"{footer.num_rows} rows", f"{row.rows} rows, as registered")
    unpacked_bytes = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    if unpacked_bytes > most_unpacked_bytes:
        limit = f"at most {most_unpacked_bytes} (worker.unpacked_bytes)"
        raise damaged(row, f"{unpacked_bytes} bytes when it is unpacked", limit)


def damaged(row: RegisteredSlice, found: str, expected: str) -> SliceDamaged:
    return SliceDamaged(
        f"the slice file {row.path} has {found}",
        expected=expected,
        remedy="restore the object that was registered, from the bucket's older versions; nothing of it was applied",
    )


@lru_cache(maxsize=256)
def expected_columns(schema: TableSchema) -> tuple[tuple[str, str], ...]:
    """Returns the columns of the schema's slice files, as Parquet keeps them. Kept, since it takes an empty file."""
    sink = pa.BufferOutputStream()
    pq.write_table(event_schema(schema).empty_table(), sink, store_schema=False)
    return _columns(pq.read_metadata(pa.BufferReader(sink.getvalue())))


def _columns(footer: pq.FileMetaData) -> tuple[tuple[str, str], ...]:
    """Returns names and types in order. Leaves out whether a column allows NULL: it makes no difference to a reader."""
    return tuple((field.name, str(field.type)) for field in footer.schema.to_arrow_schema())
