"""Compares the object under a slice file's key with the slice that was registered, before Spark reads it."""

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.errors import ObjectMissing, SliceDamaged
from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.steps import OnStep, step


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
    """Compares size and SHA-256, then the footer's columns with types, number of rows and unpacked bytes.

    Does not unpack any page. Raises SliceDamaged.
    """
    sha256 = hashlib.sha256(content).hexdigest()
    if len(content) != row.size_bytes or sha256 != row.sha256:
        raise damaged(row, f"{len(content)} bytes with the SHA-256 {sha256}", f"{row.size_bytes} bytes, {row.sha256}")
    # The footer is parsed only after the hash matched: these are the bytes that the consumer wrote.
    try:
        footer = pq.read_metadata(pa.BufferReader(content))
    except (OSError, ValueError) as error:
        raise damaged(row, f"{len(content)} bytes that are no whole Parquet file", "a slice file") from error
    found, expected = _columns(footer), _columns(_footer_of(schema))
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


def _footer_of(schema: TableSchema) -> pq.FileMetaData:
    sink = pa.BufferOutputStream()
    pq.write_table(event_schema(schema).empty_table(), sink, store_schema=False)
    return pq.read_metadata(pa.BufferReader(sink.getvalue()))


def _columns(footer: pq.FileMetaData) -> list[tuple[str, str]]:
    """Returns names and types in order. Leaves out whether a column allows NULL: it makes no difference to a reader."""
    return [(field.name, str(field.type)) for field in footer.schema.to_arrow_schema()]
