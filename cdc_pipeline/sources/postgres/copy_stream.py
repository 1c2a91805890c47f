"""Copies the rows of a query from PostgreSQL into typed record batches. The block size limits the memory."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Queue

import psycopg2
import psycopg2.extensions
import pyarrow as pa
from pyarrow import csv

from cdc_pipeline.errors import SourceAway, SourceError
from cdc_pipeline.record import TableSchema
from cdc_pipeline.sources.copied_rows import CopiedRows, UnfitRow
from cdc_pipeline.sources.event_texts import misfits, typed_columns
from cdc_pipeline.steps import OnStep, no_step, step
from cdc_pipeline.types import arrow_schema

TEXT_FORMAT = """
SET client_encoding TO 'UTF8'; SET "DateStyle" TO 'ISO, YMD'; SET "IntervalStyle" TO 'postgres';
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
    writer = _BlockWriter(blocks, block_bytes)
    with ThreadPoolExecutor(1, thread_name_prefix="copy") as executor:
        copying = executor.submit(_copy, connection, query, writer, on_step)
        block: bytes | None = b""
        try:
            while (block := blocks.get()) is not None:
                yield parse_block(block, schema)
        finally:
            if block is not None:
                _abandon(connection, blocks)
        copying.result()


class _BlockWriter:
    """Collects the rows that the driver writes, one whole row per call, and puts blocks of whole rows into a queue."""

    def __init__(self, blocks: _Blocks, block_bytes: int) -> None:
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._rows = [BYTE_ORDER_MARK]
        self._size = 0

    def write(self, row: bytes) -> None:
        self._rows.append(row)
        self._size += len(row)
        if self._size >= self._block_bytes:
            self.flush()

    def flush(self) -> None:
        """Puts the rows collected so far into the queue as one block, which begins with a byte order mark."""
        if self._size:
            self._blocks.put(b"".join(self._rows))
        self._rows = [BYTE_ORDER_MARK]
        self._size = 0

    def end(self) -> None:
        self._blocks.put(None)


def _copy(connection: psycopg2.extensions.connection, query: str, writer: _BlockWriter, on_step: OnStep) -> None:
    try:
        with step(on_step, "source.copy"), connection.cursor() as cursor:
            cursor.execute(TEXT_FORMAT)
            cursor.copy_expert(f"COPY ({query}) TO STDOUT (FORMAT csv)", writer)
            writer.flush()
    except psycopg2.Error as error:
        raise _explained(error, connection) from error
    finally:
        writer.end()


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
        remedy="check the table's columns and the right to read them",
    )


def _abandon(connection: psycopg2.extensions.connection, blocks: _Blocks) -> None:
    """Cancels a copy that is no longer read, and empties the queue until the copy has ended."""
    with suppress(psycopg2.Error):
        connection.cancel()
    while blocks.get() is not None:
        pass


def parse_block(block: bytes, schema: TableSchema) -> CopiedRows:
    """Parses whole rows of PostgreSQL's CSV, after a byte order mark that `_BlockWriter` adds."""
    texts = csv_columns(block, len(schema.columns))
    by_name = dict(zip(schema.names, texts, strict=True))
    columns, refusals = typed_columns(by_name, schema)
    return CopiedRows(
        rows=pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=arrow_schema(schema)),
        unfit_rows=tuple(
            UnfitRow(
                row=misfit.row,
                column=misfit.column,
                reason=misfit.reason,
                texts={name: column[misfit.row].as_py() for name, column in by_name.items()},
            )
            for misfit in misfits(refusals)
        ),
    )


def csv_columns(block: bytes, count: int) -> list[pa.Array]:
    """Returns the columns of PostgreSQL's CSV as texts, which may be invalid UTF-8.

    The block must begin with a byte order mark, which is not data.
    """
    names = [str(number) for number in range(count)]
    texts = csv.read_csv(
        pa.BufferReader(block),
        read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block)),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [chunks.combine_chunks() for chunks in texts.columns]
