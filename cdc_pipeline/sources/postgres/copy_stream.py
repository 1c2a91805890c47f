"""Copies the rows of a query from PostgreSQL into typed record batches. The block size limits the memory."""

import io
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Queue
from typing import TYPE_CHECKING

import psycopg2
import psycopg2.extensions
import pyarrow as pa
from pyarrow import csv

from cdc_pipeline.errors import DecodeError, SourceAway, SourceError
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.settings.libpq import NOT_UTF8
from cdc_pipeline.sources.copied_rows import CopiedRows
from cdc_pipeline.sources.event_texts import copied_rows
from cdc_pipeline.steps import OnStep, no_step, step
from cdc_pipeline.types import arrow_schema, parse_text, resolve
from cdc_pipeline.types.text import FALSE, TRUE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

TEXT_FORMAT = """
SET "DateStyle" TO 'ISO, YMD'; SET "IntervalStyle" TO 'postgres';
SET "TimeZone" TO 'UTC'; SET bytea_output TO 'hex'; SET extra_float_digits TO 1
"""
BLOCK_BYTES = 8 << 20
_BLOCKS_AHEAD = 1
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Written before each block: the CSV reader drops one byte order mark, which else could be data of the first row."""

_Blocks = Queue[bytes | None]


def copy_record_batches(
    connection: psycopg2.extensions.connection,
    query: str,
    schema: TableSchema,
    *,
    block_bytes: int = BLOCK_BYTES,
    on_step: OnStep = no_step,
) -> Generator[CopiedRows, None, None]:
    """Yields the rows of `query` in its order. The query's columns are those of `schema`.

    Sets the connection's text format first. Holds at most four blocks, each of `block_bytes` or of one larger row.
    Closing the generator early cancels the query: roll back before using the connection again. Raises SourceAway if the
    connection breaks, SourceError if the server refuses the query.
    """
    blocks: _Blocks = Queue(_BLOCKS_AHEAD)
    with ThreadPoolExecutor(1, thread_name_prefix="copy") as executor:
        copying = executor.submit(_copy, connection, query, blocks, block_bytes, on_step)
        block: bytes | None = b""
        try:
            while (block := blocks.get()) is not None:
                yield parse_block(block, schema)
        finally:
            if block is not None:
                _abandon(connection, blocks)
        copying.result()


class _BlockSink(io.RawIOBase):
    """Puts what it is given into a queue as one block, after a byte order mark.

    Behind a `BufferedWriter`, that is whole rows: the driver writes one row per call, and the buffer is emptied before
    a row that does not fit. The buffer is filled in C, which costs a third of a Python call per row.
    """

    def __init__(self, blocks: _Blocks) -> None:
        self._blocks = blocks
        self._has_ended = False

    def writable(self) -> bool:
        return True

    def write(self, rows: "ReadableBuffer") -> int:
        content = memoryview(rows)
        if not self._has_ended:
            self._blocks.put(b"".join((BYTE_ORDER_MARK, content)))
        return content.nbytes

    def end(self) -> None:
        """Puts the end into the queue. What a buffer still writes when it is deleted, after an error, is dropped."""
        self._has_ended = True
        self._blocks.put(None)


def _copy(
    connection: psycopg2.extensions.connection, query: str, blocks: _Blocks, block_bytes: int, on_step: OnStep
) -> None:
    """Puts the rows into the queue, and None at the end or after an error."""
    sink = _BlockSink(blocks)
    try:
        with step(on_step, "source.copy"), connection.cursor() as cursor:
            cursor.execute(TEXT_FORMAT)
            rows = io.BufferedWriter(sink, block_bytes)
            cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT csv)", rows)
            rows.flush()
    except psycopg2.Error as error:
        raise _explained(error, connection) from error
    finally:
        sink.end()


def _explained(error: psycopg2.Error, connection: psycopg2.extensions.connection) -> SourceError:
    """Returns SourceAway if the connection broke, else SourceError.

    If the server is lost in the middle of a copy, the driver raises a general error and closes the connection.
    """
    said = str(error).strip()
    if connection.closed or isinstance(error, psycopg2.OperationalError):
        return SourceAway(
            f"the source broke off a copy: {said}", expected="all rows of the query", remedy="try again from its start"
        )
    return SourceError(
        f"the source refuses a copy: {said}",
        expected="the rows of the query",
        remedy="correct the value on the source, and run cdc snapshot again"
        if error.pgcode in NOT_UTF8
        else "check the table's columns and the right to read them",
    )


def _abandon(connection: psycopg2.extensions.connection, blocks: _Blocks) -> None:
    """Cancels a copy that is no longer read, and empties the queue until the copy has ended."""
    with suppress(psycopg2.Error):
        connection.cancel()
    while blocks.get() is not None:
        pass


def parse_block(block: bytes, schema: TableSchema) -> CopiedRows:
    """Parses whole rows of PostgreSQL's CSV, after a byte order mark that `_BlockSink` adds.

    Most blocks are typed by the CSV reader itself. A block with a value that it refuses is parsed column by column.
    """
    rows = typed_block(block, schema)
    return checked_block(block, schema) if rows is None else CopiedRows(rows=rows, unfit_rows=())


def typed_block(block: bytes, schema: TableSchema) -> pa.RecordBatch | None:
    """Returns None if a value of the block does not fit, or is one that only `parse_text` can read."""
    read_as = {str(number): _read_as(column) for number, column in enumerate(schema.columns)}
    try:
        found = _read_csv(block, read_as)
        columns = [_typed(values, column) for values, column in zip(found, schema.columns, strict=True)]
    except (pa.ArrowInvalid, DecodeError):
        return None
    rows = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))
    return None if any(rows[name].null_count for name in schema.key) else rows


def _read_as(column: Column) -> pa.DataType:
    """Returns the type that the CSV reader gives a column: the lake's, or bytes if it cannot read that type."""
    arrow = resolve(column.type).arrow
    return pa.binary() if pa.types.is_list(arrow) else arrow


def _typed(found: pa.Array, column: Column) -> pa.Array:
    """Returns the values of a column that the CSV reader read. Raises ArrowInvalid if one does not fit."""
    if not pa.types.is_binary(found.type):
        return found
    parsed = parse_text(found, resolve(column.type))
    if parsed.unfit is not None:
        raise pa.ArrowInvalid(column.type)
    return parsed.values


def checked_block(block: bytes, schema: TableSchema) -> CopiedRows:
    """Parses every value by the rules of its type, and returns rows with values that do not fit beside the others."""
    texts = csv_columns(block, len(schema.columns))
    return copied_rows(dict(zip(schema.names, texts, strict=True)), schema)


def csv_columns(block: bytes, count: int) -> list[pa.Array]:
    """Returns the columns of PostgreSQL's CSV as texts, which may be invalid UTF-8.

    The block must begin with a byte order mark, which is not data.
    """
    return _read_csv(block, {str(number): pa.binary() for number in range(count)})


def _read_csv(block: bytes, column_types: Mapping[str, pa.DataType]) -> list[pa.Array]:
    columns = csv.read_csv(
        pa.BufferReader(block),
        read_options=csv.ReadOptions(column_names=list(column_types), use_threads=False, block_size=len(block)),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=column_types,
            null_values=[""],
            true_values=TRUE,
            false_values=FALSE,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [chunks.combine_chunks() for chunks in columns.columns]
