"""Reads CSV files batch by batch: each value as a text, and each row that is not like the others as one line."""

import codecs
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.files.record_blocks import UNREAD, WHY
from cdc_pipeline.sources.files.record_values import json_line

UTF8, OCTETS = "utf8", "latin1"
"""How a file is read: as text, or each byte as the character that has its number."""
_BLOCK_BYTES = 16 << 20
_HEAD_BYTES = 64 << 10
_LINE_ENDS = b"\r\n"

Open = Callable[[], BinaryIO]


def csv_batches(
    open_file: Open, settings: CsvSettings, columns: Sequence[str], encoding: str
) -> Iterator[pa.RecordBatch]:
    """Every value is a text; unquoted `csv.null` is NULL. A row with too few or too many fields becomes UNREAD.

    `columns`: those of a file without a header. `encoding`: UTF8 raises UnicodeDecodeError for a file that is not UTF-8
    throughout; read it with OCTETS then. Arrow does not show an invalid row that is not UTF-8.
    """
    invalid: list[pa.csv.InvalidRow] = []

    def keep(row: pa.csv.InvalidRow) -> str:
        invalid.append(row._replace(text=row.text.encode(encoding).decode(errors="surrogateescape")))
        return "skip"

    opened = partial(_opened_text, open_file)
    if not _has_rows(opened, settings):
        return
    names = columns
    if settings.header:
        names = _header(opened, settings)
    number = 2 if settings.header else 1
    text = _Utf8File(opened()) if encoding == UTF8 else opened()
    with text as file, _opened_csv(file, settings, names, keep, encoding=encoding) as reader:
        for batch in reader:
            first = number
            number += batch.num_rows + len(invalid)
            yield _with_unread(_texts(_octets(batch, encoding), names), invalid.copy(), first)
            invalid.clear()
    if invalid:
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, pa.string()) for _ in names], names)
        yield _with_unread(_texts(nothing, names), invalid, number)


class _Utf8File(io.RawIOBase):
    """Reads a file. `read` raises UnicodeDecodeError for bytes that are not UTF-8; Arrow checks them fastest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rest = b""
        """The end of the bytes that were read, if it may be a part of a character."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        octets = self._file.read(size)
        found = self._rest + octets
        end = next((len(found) - back for back in (1, 2, 3) if octets and found[-back:][:1] >= b"\xc0"), len(found))
        found, self._rest = found[:end], found[end:]
        try:
            pa.array([found], pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            found.decode()
        return octets

    def close(self) -> None:
        self._file.close()
        super().close()


def _opened_text(open_file: Open) -> BinaryIO:
    """Opens a file behind its byte order mark, if it has one."""
    file = open_file()
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    return file


def _octets(batch: pa.RecordBatch, encoding: str) -> pa.RecordBatch:
    """Returns the values as the bytes that the file has."""
    if encoding == UTF8:
        return batch
    columns = [
        pa.array(
            [None if value is None else value.decode().encode(encoding) for value in column.to_pylist()], pa.binary()
        )
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _has_rows(open_file: Open, settings: CsvSettings) -> bool:
    """Returns whether a CSV file has more than line ends, and a header that has a line end."""
    begun = False
    with open_file() as file:
        while octets := file.read(_HEAD_BYTES):
            octets = octets if begun else octets.lstrip(_LINE_ENDS)
            begun = begun or bool(octets)
            if begun and (not settings.header or any(end in octets for end in _LINE_ENDS)):
                return True
    return False


def _header(open_file: Open, settings: CsvSettings) -> tuple[str, ...]:
    """Parses the beginning of the file; more of it if its first rows are longer than that."""
    opened = partial(_opened_csv, settings=settings, names=(), invalid=lambda _: "skip", encoding=OCTETS)
    try:
        with open_file() as file, opened(file, block_bytes=_HEAD_BYTES) as reader:
            names = reader.schema.names
    except pa.ArrowInvalid:
        with open_file() as file, opened(file) as reader:
            names = reader.schema.names
    return unique_names([name.encode(OCTETS).decode() for name in names])


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Raises ValueError if two columns have one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        message = f"two columns have the name {twice!r}"
        raise ValueError(message)
    return tuple(names)


def _opened_csv(
    file: BinaryIO | io.RawIOBase,
    settings: CsvSettings,
    names: Sequence[str],
    invalid: Callable[[pa.csv.InvalidRow], str],
    block_bytes: int = _BLOCK_BYTES,
    *,
    encoding: str,
) -> pa.csv.CSVStreamingReader:
    null, *names = [text.encode().decode(encoding) for text in (settings.null, *names)]
    return pa.csv.open_csv(
        file,
        read_options=pa.csv.ReadOptions(
            use_threads=False,
            block_size=block_bytes,
            column_names=None if settings.header else names,
            encoding=encoding,
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=settings.delimiter, newlines_in_values=True, invalid_row_handler=invalid
        ),
        convert_options=pa.csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[null],
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
