"""Reads the formats of change files (CSV, JSON Lines, Parquet, Avro) block by block, and checks that they are whole."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.files.avro_blocks import avro_blocks
from cdc_pipeline.sources.files.csv_batches import OCTETS, UTF8, Open, csv_batches, unique_names
from cdc_pipeline.sources.files.record_blocks import (
    UNREAD,
    WHY,
    BatchBlock,
    LineBlock,
    RecordBlock,
)
from cdc_pipeline.sources.files.record_values import json_line, plain_values

_BATCH_ROWS = 32_768
_LINES_BYTES = 2 << 20
_HELD_BYTES = 20 << 20
_CSV_BLOCK_BYTES = (16 << 20, 64 << 20, 256 << 20)
"""How much of a CSV file is parsed at once: more if one of its rows is longer."""
_LONG_ROW = "straddling object"
"""In what Arrow raises for a row that is longer than a block."""
_KNOWN_TYPES = {
    pa.null(): pa.string(),
    pa.float16(): pa.float32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
"""Types of Parquet that Arrow cannot compare or take rows of -> types that have the same values."""
_MICROSECONDS = pa.duration("us")
_OCTETS = {pa.binary().id, pa.large_binary().id, pa.binary(1).id}

Blocks = Iterator[RecordBlock]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """`columns`: the names of the columns of a CSV file without a header.

    `known_by`: columns of which every file that has names has at least one; none if it may have any names. `texts`:
    columns whose bytes in a Parquet file are texts; some writers do not mark them so.
    """

    csv: CsvSettings
    columns: tuple[str, ...] = ()
    known_by: tuple[str, ...] = ()
    texts: frozenset[str] = frozenset()


def _json_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    del layout
    with open_file() as file:
        while file.read(_LINES_BYTES):
            pass
    return _json_read(open_file)


def _json_read(open_file: Open) -> Blocks:
    with open_file() as file:
        while lines := file.readlines(_LINES_BYTES):
            yield LineBlock(lines=lines)


def _parquet_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    return _spooled(_parquet_batches(open_file, layout.texts))


def _parquet_batches(open_file: Open, texts: Collection[str]) -> Iterator[pa.RecordBatch]:
    # INT96 is what Spark writes by default. As nanoseconds it overflows outside 1677 to 2262.
    with open_file() as file, pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as parquet:
        names = (*unique_names(parquet.schema_arrow.names), UNREAD)
        for batch in parquet.iter_batches(_BATCH_ROWS):
            columns, unread = [_computable(column) for column in batch.columns], dict[int, bytes]()
            for at, column in enumerate(columns):
                if names[at] in texts and _OCTETS & {column.type.id}:
                    columns[at] = column.cast(pa.binary()).view(pa.string())  # one that is not UTF-8 is quarantined
            held = dict(zip(names, columns, strict=False))
            for at, column in enumerate(columns):
                if names[at] in texts and pa.types.is_duration(column.type):
                    columns[at] = _microseconds(names[at], held, unread)
            lines = pa.array([unread.get(row) for row in range(batch.num_rows)], pa.binary())
            yield pa.RecordBatch.from_arrays([*columns, lines], names)


def _microseconds(name: str, columns: Mapping[str, pa.Array], unread: dict[int, bytes]) -> pa.Array:
    """Returns durations as numbers of microseconds. Adds the line of each row with another one to `unread`."""
    column = columns[name]
    with suppress(pa.ArrowInvalid):
        return column.cast(_MICROSECONDS).cast(pa.int64())
    numbers = [_microseconds_of(value) for value in column]
    for row, number in enumerate(numbers):
        if number is None and column[row].is_valid:
            held = {each: plain_values(values.slice(row, 1))[0] for each, values in columns.items()}
            unread[row] = json_line({UNREAD: held, WHY: f"has a duration in {name} that microseconds cannot hold"})
    return pa.array(numbers, pa.int64())


def _microseconds_of(duration: pa.DurationScalar) -> int | None:
    """Returns None for NULL, and for a duration that they cannot hold."""
    with suppress(pa.ArrowInvalid):
        number: int | None = duration.cast(_MICROSECONDS).cast(pa.int64()).as_py()
        return number
    return None


def _computable(column: pa.Array) -> pa.Array:
    """Returns the same values in a type that Arrow's functions know."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _computable(column.dictionary_decode())
    if kind == pa.uuid():
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
    if isinstance(column, pa.ExtensionArray):
        return column.storage.cast(pa.bool_()) if kind == pa.bool8() else _computable(column.storage)
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    known = _KNOWN_TYPES.get(kind)
    return column if known is None else column.cast(known)


def _csv_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    for block_bytes in _CSV_BLOCK_BYTES:
        try:
            return _csv_read(open_file, layout, block_bytes)
        except pa.ArrowInvalid as error:
            if _LONG_ROW not in str(error):
                raise
    message = f"it has a row of more than {_CSV_BLOCK_BYTES[-1] >> 20} MiB, or a quote that is never closed"
    raise ValueError(message)


def _csv_read(open_file: Open, layout: FileLayout, block_bytes: int) -> Blocks:
    batches = partial(csv_batches, open_file, layout.csv, layout.columns, block_bytes=block_bytes)
    try:
        return _spooled(batches(UTF8))
    except UnicodeDecodeError:
        return _spooled(batches(OCTETS))


def _spooled(batches: Iterator[pa.RecordBatch]) -> Blocks:
    """Reads every batch once, so that no byte of the format is decoded twice. Keeps large ones in a nameless file."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        size += int(batch.nbytes)
        if size > _HELD_BYTES:
            break
    else:
        return (BatchBlock(batch=batch) for batch in held)
    spool = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - `_unspooled` closes it
    try:
        with pa.ipc.new_stream(spool, held[0].schema) as writer:
            for batch in chain(held, batches):
                writer.write_batch(batch)
        spool.seek(0)
    except BaseException:
        spool.close()
        raise
    return _unspooled(spool)


def _unspooled(spool: BinaryIO) -> Blocks:
    with spool, pa.ipc.open_stream(spool) as reader:
        for batch in reader:
            yield BatchBlock(batch=batch)


SUFFIXES: dict[str, Callable[[Open, FileLayout], Blocks]] = {
    ".csv": _csv_blocks,
    ".jsonl": _json_blocks,
    ".json": _json_blocks,
    ".parquet": _parquet_blocks,
    ".avro": avro_blocks,
}
"""Reads a whole file once, to check it, and returns its blocks. `open_file` opens it at its beginning, any time."""
