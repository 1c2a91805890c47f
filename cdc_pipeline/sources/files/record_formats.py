"""Reads the formats of change files (CSV, JSON Lines, Parquet, Avro) block by block, and checks that they are whole."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO, cast

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.files.record_blocks import (
    UNREAD,
    WHY,
    BatchBlock,
    LineBlock,
    ObjectBlock,
    RecordBlock,
    json_line,
)

_BLOCK_BYTES = 16 << 20
_HEAD_BYTES = 64 << 10
_BATCH_ROWS = 32_768
_LINES_BYTES = 2 << 20
_HELD_BYTES = 20 << 20
_LINE_ENDS = b"\r\n"
_KNOWN_TYPES = {
    pa.null(): pa.string(),
    pa.float16(): pa.float32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
"""Types of Parquet that Arrow cannot compare or take rows of -> types that have the same values."""
_OCTETS = {pa.binary().id, pa.large_binary().id, pa.binary(1).id}

Open = Callable[[], BinaryIO]
Blocks = Iterator[RecordBlock]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """`columns`: the names of the columns of a CSV file without a header.

    `texts`: columns whose bytes in a Parquet file are texts; some writers do not mark them so.
    """

    csv: CsvSettings
    columns: tuple[str, ...] = ()
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


def _avro_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    del layout
    with open_file() as file:
        for _ in fastavro.block_reader(file):
            pass
    return _avro_read(open_file)


def _avro_read(open_file: Open) -> Blocks:
    with open_file() as file:
        records, size = list[object](), 0
        for block in fastavro.block_reader(file):
            records += block
            size += int(block.size)
            if size >= _LINES_BYTES:
                yield ObjectBlock(records=records, size_bytes=size)
                records, size = [], 0
        yield ObjectBlock(records=records, size_bytes=size)


def _parquet_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    return _spooled(_parquet_batches(open_file, layout.texts))


def _parquet_batches(open_file: Open, texts: Collection[str]) -> Iterator[pa.RecordBatch]:
    with open_file() as file, pq.ParquetFile(file) as parquet:
        names = (*_unique(parquet.schema_arrow.names), UNREAD)
        for batch in parquet.iter_batches(_BATCH_ROWS):
            columns, unread = [_computable(column) for column in batch.columns], dict[int, bytes]()
            for at, column in enumerate(columns):
                if names[at] in texts and _OCTETS & {column.type.id}:
                    columns[at] = _text(column, names[at], unread)
            lines = pa.array([unread.get(row) for row in range(batch.num_rows)], pa.binary())
            yield pa.RecordBatch.from_arrays([*columns, lines], names)


def _text(column: pa.Array, name: str, unread: dict[int, bytes]) -> pa.Array:
    """Returns bytes as texts. Adds the line of each row whose bytes are not UTF-8 to `unread`, by its number."""
    with suppress(pa.ArrowInvalid):
        return column.cast(pa.binary()).cast(pa.string())
    texts = list[str | None]()
    for row, octets in enumerate(column.to_pylist()):
        try:
            texts.append(None if octets is None else octets.decode())
        except UnicodeDecodeError:
            texts.append(None)
            unread[row] = json_line({UNREAD: octets, WHY: f"has bytes in {name} that are not UTF-8"})
    return pa.array(texts, pa.string())


def _computable(column: pa.Array) -> pa.Array:
    """Returns the same values in a type that Arrow's functions know."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    known = _KNOWN_TYPES.get(column.type)
    return column if known is None else column.cast(known)


def _csv_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    """Every value is a text; unquoted `csv.null` is NULL. A row with too few or too many fields becomes UNREAD."""
    return _spooled(_csv_batches(open_file, layout))


def _csv_batches(open_file: Open, layout: FileLayout) -> Iterator[pa.RecordBatch]:
    invalid: list[pa.csv.InvalidRow] = []

    def keep(row: pa.csv.InvalidRow) -> str:
        invalid.append(row)
        return "skip"

    if not _has_rows(open_file, layout):
        return
    names = layout.columns
    if layout.csv.header:
        names = _header(open_file, layout)
    number = 2 if layout.csv.header else 1
    with open_file() as file, _opened_csv(file, layout, names, keep) as reader:
        for batch in reader:
            first = number
            number += batch.num_rows + len(invalid)
            yield _with_unread(_texts(batch, names), invalid.copy(), first)
            invalid.clear()
    if invalid:
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, pa.string()) for _ in names], names)
        yield _with_unread(_texts(nothing, names), invalid, number)


def _has_rows(open_file: Open, layout: FileLayout) -> bool:
    """Returns whether a CSV file has more than line ends, and a header that has a line end."""
    begun = False
    with open_file() as file:
        while octets := file.read(_HEAD_BYTES):
            octets = octets if begun else octets.lstrip(_LINE_ENDS)
            begun = begun or bool(octets)
            if begun and (not layout.csv.header or any(end in octets for end in _LINE_ENDS)):
                return True
    return False


def _header(open_file: Open, layout: FileLayout) -> tuple[str, ...]:
    """Parses the beginning of the file; more of it if its first rows are longer than that."""
    try:
        with open_file() as file, _opened_csv(file, layout, (), lambda _: "skip", _HEAD_BYTES) as reader:
            return _unique(reader.schema.names)
    except pa.ArrowInvalid:
        with open_file() as file, _opened_csv(file, layout, (), lambda _: "skip") as reader:
            return _unique(reader.schema.names)


def _opened_csv(
    file: BinaryIO,
    layout: FileLayout,
    names: Sequence[str],
    invalid: Callable[[pa.csv.InvalidRow], str],
    block_bytes: int = _BLOCK_BYTES,
) -> pa.csv.CSVStreamingReader:
    return pa.csv.open_csv(
        file,
        read_options=pa.csv.ReadOptions(
            use_threads=False, block_size=block_bytes, column_names=None if layout.csv.header else names
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=layout.csv.delimiter, newlines_in_values=True, invalid_row_handler=invalid
        ),
        convert_options=pa.csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[layout.csv.null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _texts(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Returns the columns as texts, and UNREAD behind them: the lines of rows that are not UTF-8."""
    try:
        texts = [column.cast(pa.string()) for column in batch.columns]
        return pa.RecordBatch.from_arrays([*texts, pa.nulls(batch.num_rows, pa.binary())], [*names, UNREAD])
    except pa.ArrowInvalid:
        pass
    columns = [
        [None if value is None else value.decode(errors="surrogateescape") for value in column.to_pylist()]
        for column in batch.columns
    ]
    rows = list(zip(*columns, strict=True))
    strange = [any(text is not None and not _is_utf8(text) for text in row) for row in rows]
    nothing = [None] * len(names)
    found = [nothing if is_strange else row for row, is_strange in zip(rows, strange, strict=True)]
    lines = [
        json_line(dict(zip(names, row, strict=True))) if is_strange else None
        for row, is_strange in zip(rows, strange, strict=True)
    ]
    texts = [pa.array(column, pa.string()) for column in zip(*found, strict=True)]
    return pa.RecordBatch.from_arrays([*texts, pa.array(lines, pa.binary())], [*names, UNREAD])


def _is_utf8(text: str) -> bool:
    return text.isascii() or text.encode(errors="replace").decode() == text


def _with_unread(batch: pa.RecordBatch, invalid: Sequence[pa.csv.InvalidRow], first: int) -> pa.RecordBatch:
    """Puts the lines of invalid rows between the rows of a batch, in the order of the file. `first`: its first row."""
    if not invalid:
        return batch
    places = np.array([row.number - first for row in invalid]) - np.arange(len(invalid))
    lines = pa.array([_unread(row) for row in invalid], pa.binary())
    own = [*(pa.nulls(len(invalid), column.type) for column in batch.columns[:-1]), lines]
    both = pa.Table.from_batches([batch, pa.RecordBatch.from_arrays(own, schema=batch.schema)])
    order = np.insert(np.arange(batch.num_rows), places.clip(0, batch.num_rows), batch.num_rows + np.arange(len(lines)))
    (found,) = both.take(pa.array(order)).combine_chunks().to_batches()
    return found


def _unread(row: pa.csv.InvalidRow) -> bytes:
    why = f"has {row.actual_columns} fields, where the file has {row.expected_columns} columns"
    return json_line({UNREAD: row.text, WHY: why})


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        message = f"two columns have the name {twice!r}"
        raise ValueError(message)
    return tuple(names)


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
    ".avro": _avro_blocks,
}
"""Reads a whole file once, to check it, and returns its blocks. `open_file` opens it at its beginning, any time."""
