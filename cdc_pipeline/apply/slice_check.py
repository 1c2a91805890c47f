"""What lies under a slice file's key -> nothing, or in what it differs from the slice that was registered."""

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.compact_thrift import Struct
from cdc_pipeline.errors import ObjectMissing, SliceDamaged
from cdc_pipeline.metadata_store.rows import SliceRow
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.parquet_layout import REPEATED, REPETITION, Footer, check_layout, read_footer
from cdc_pipeline.record import TableSchema
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.steps import OnStep, step


def check_slice_file(
    objects: ObjectStore, on_step: OnStep, row: SliceRow, schema: TableSchema, *, most_unpacked_bytes: int
) -> None:
    """Raises SliceDamaged. Never holds more than the registered size in memory: the store is asked for it first."""
    key = str(row.path)
    try:
        with step(on_step, "slice_file.get"):
            size_bytes = objects.head(key).size_bytes
            content = objects.get(key) if size_bytes == row.size_bytes else b""
    except ObjectMissing as error:
        raise damaged(row, "no content: the object is gone", "the object that was registered") from error
    if size_bytes != row.size_bytes:
        raise damaged(row, f"{size_bytes} bytes", f"{row.size_bytes} bytes")
    check_content(row, content, schema, most_unpacked_bytes=most_unpacked_bytes)


def check_content(row: SliceRow, content: bytes, schema: TableSchema, *, most_unpacked_bytes: int) -> None:
    """Size, SHA-256, row count, columns with types, unpacked size and the checksum of every page; unpacks nothing.

    The hash alone tells a file that was changed; the rest finds out what the registry itself has wrong.
    """
    sha256 = hashlib.sha256(content).hexdigest()
    if len(content) != row.size_bytes or sha256 != row.sha256:
        raise damaged(row, f"{len(content)} bytes with the SHA-256 {sha256}", f"{row.size_bytes} bytes, {row.sha256}")
    try:
        footer = read_footer(content)
        _check_shape(row, footer, schema)
        _check_unpacked(footer, most_unpacked_bytes)
        check_layout(content, footer)
    except ValueError as error:
        raise damaged(row, str(error), "a slice file as the consumer writes it") from error


def damaged(row: SliceRow, found: str, expected: str) -> SliceDamaged:
    return SliceDamaged(
        f"the slice file {row.path} has {found}",
        expected=expected,
        remedy="restore the object that was registered, from the bucket's older versions; nothing of it was applied",
    )


def _check_shape(row: SliceRow, footer: Footer, schema: TableSchema) -> None:
    """A file that says how its columns are to be read is not ours."""
    found, wanted = _described(footer), _described(_footer_of(schema))
    if found != wanted or footer.is_described:
        other = next((element for element in found if element not in wanted), "the same in another order")
        message = f"columns other than those of the schema {row.schema_id}: {other!r:.300}"
        raise ValueError(message)
    if footer.rows != row.rows:
        message = f"{footer.rows} rows where {row.rows} are registered"
        raise ValueError(message)


def _check_unpacked(footer: Footer, most_bytes: int) -> None:
    unpacked = sum(column.unpacked_bytes for group in footer.columns for column in group)
    if unpacked > most_bytes:
        message = f"{unpacked} bytes when it is unpacked, where worker.unpacked_bytes allows {most_bytes}"
        raise ValueError(message)


def _footer_of(schema: TableSchema) -> Footer:
    sink = pa.BufferOutputStream()
    pq.write_table(event_schema(schema).empty_table(), sink, store_schema=False)
    return read_footer(sink.getvalue().to_pybytes())


def _described(footer: Footer) -> list[Struct]:
    """Names and types; whether NULL is allowed makes no difference to a reader."""
    return [element | {REPETITION: element.get(REPETITION) == REPEATED} for element in footer.schema]
