"""Reads CSV files batch by batch: each value as a text, and each row that is not like the others as one line."""

import codecs
import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from secrets import token_hex
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.debezium.one_line import json_of_line
from cdc_pipeline.sources.files.record_blocks import UNREAD, WHY, BatchBlock
from cdc_pipeline.sources.files.record_values import json_line

UTF8, OCTETS = "utf8", "latin1"
"""How a file is read: as text, or each byte as the character that has its number."""
_HEAD_BYTES = 64 << 10
_LINE_ENDS = (b"\r", b"\n")

Open = Callable[[], BinaryIO]


def csv_batches(
    open_file: Open, settings: CsvSettings, columns: Sequence[str], encoding: str, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Every value is a text; unquoted `csv.null` is NULL. A row with too few or too many fields becomes UNREAD.

    The first batch has no rows, and shows the columns. Only in a file with one column blank lines are rows. `columns`:
    those of a file without a header. `encoding`: UTF8 raises UnicodeDecodeError for a file that is not UTF-8
    throughout; read it with OCTETS then. Arrow does not show an invalid row that is not UTF-8, and raises ArrowInvalid
    for one that is longer than `block_bytes`. Raises ValueError for a file that ends inside quotes.
    """
    opened = partial(_opened_text, open_file, settings)
    if not _has_text(opened) and (settings.header or len(columns) != 1):
        return
    names = _header(opened, settings, block_bytes) if settings.header else columns
    nothing = _texts(pa.RecordBatch.from_arrays([pa.nulls(0, pa.binary()) for _ in names], names), names, encoding)
    yield nothing
    end = token_hex() + settings.delimiter * len(names)
    # Arrow calls `keep` while it parses, in a thread of its own: invalid rows of later batches may be here already.
    invalid, ends = deque[pa.csv.InvalidRow](), list[pa.csv.InvalidRow]()

    def keep(row: pa.csv.InvalidRow) -> str:
        is_end = row.text == end
        (ends if is_end else invalid).append(row._replace(text=_escaped(row.text, encoding)))
        return "skip"

    number = 2 if settings.header else 1
    text = _WithEnd(opened(), f"\n{end}\n".encode(), encoding)
    with text as file, _opened_csv(file, settings, names, keep, block_bytes, encoding=encoding) as reader:
        for batch in reader:
            first, found = number, list[pa.csv.InvalidRow]()
            number += batch.num_rows
            while invalid and invalid[0].number <= number:
                found.append(invalid.popleft())
                number += 1
            yield _with_unread(_texts(batch, names, encoding), found, first)
    if not ends:
        message = "it ends inside quotes, so its end is missing"
        raise ValueError(message)
    if invalid:
        yield _with_unread(nothing, invalid, number)


class _WithEnd(io.RawIOBase):
    """Reads a file and, behind it, other bytes: a row that Arrow finds invalid unless the file ends inside quotes.

    With UTF8, `read` raises UnicodeDecodeError for bytes that are not UTF-8; Arrow checks them fastest.
    """

    def __init__(self, file: BinaryIO, end: bytes, encoding: str) -> None:
        self._file = file
        self._end = end
        self._is_checked = encoding == UTF8
        self._last = b"\n"
        """The byte before the next one: where a line ends, the end needs no line end before it."""
        self._rest = b""
        """The end of the bytes that were read, if it may be a part of a character."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        octets = self._file.read(size)
        while 0 < len(octets) < size and (more := self._file.read(size - len(octets))):
            octets += more
        # Arrow takes a block of a lone line end, behind a carriage return, for the end of the file.
        room = size - len(octets) if size >= 0 else len(self._end)
        self._last = octets[-1:] or self._last
        if room and self._last in _LINE_ENDS:
            self._end = self._end.removeprefix(b"\n")
        octets, self._end = octets + self._end[:room], self._end[room:]
        if self._is_checked:
            self._check(octets)
        return octets

    def _check(self, octets: bytes) -> None:
        found = self._rest + octets
        end = next((len(found) - back for back in (1, 2, 3) if octets and found[-back:][:1] >= b"\xc0"), len(found))
        found, self._rest = found[:end], found[end:]
        try:
            pa.array([found], pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            found.decode()

    def close(self) -> None:
        self._file.close()
        super().close()


def _opened_text(open_file: Open, settings: CsvSettings) -> BinaryIO:
    """Opens a file behind its byte order mark, if it has one, and behind blank lines before its header."""
    file = open_file()
    start = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    file.seek(start)
    while settings.header and file.read(1) in _LINE_ENDS:
        start += 1
    file.seek(start)
    return file


def _has_text(open_file: Open) -> bool:
    """Returns whether a CSV file has more than line ends."""
    with open_file() as file:
        return any(octets.strip(b"".join(_LINE_ENDS)) for octets in iter(partial(file.read, _HEAD_BYTES), b""))


def _header(open_file: Open, settings: CsvSettings, most_bytes: int) -> tuple[str, ...]:
    """Parses the beginning of the file; more of it if its first rows are longer than that."""
    opened = partial(_opened_csv, settings=settings, names=(), invalid=lambda _: "skip", encoding=OCTETS)
    try:
        with _WithEnd(open_file(), b"\n", OCTETS) as file, opened(file, block_bytes=_HEAD_BYTES) as reader:
            names = reader.schema.names
    except pa.ArrowInvalid:
        with _WithEnd(open_file(), b"\n", OCTETS) as file, opened(file, block_bytes=most_bytes) as reader:
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
    block_bytes: int,
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
            delimiter=settings.delimiter,
            newlines_in_values=True,
            invalid_row_handler=invalid,
            ignore_empty_lines=len(names) != 1,
        ),
        convert_options=pa.csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _texts(batch: pa.RecordBatch, names: Sequence[str], encoding: str) -> pa.RecordBatch:
    """Returns the columns as texts, and UNREAD behind them: the lines of rows that are not UTF-8."""
    texts, strange = [column.view(pa.string()) for column in batch.columns], set[int]()
    for at, column in enumerate(texts):
        if encoding == UTF8 or pc.all(pc.string_is_ascii(column), min_count=0).as_py():
            continue
        found = [None if text is None else _escaped(text, encoding) for text in column.to_pylist()]
        unfit = {row for row, text in enumerate(found) if text is not None and not _is_utf8(text)}
        texts[at] = pa.array([None if row in unfit else text for row, text in enumerate(found)], pa.string())
        strange |= unfit
    lines = pa.nulls(batch.num_rows, pa.binary())
    if strange:
        lines = pa.array([_line(batch, row, names) if row in strange else None for row in range(batch.num_rows)])
    return pa.RecordBatch.from_arrays([*texts, lines], [*names, UNREAD])


def _line(batch: pa.RecordBatch, row: int, names: Sequence[str]) -> bytes:
    """Returns a row of a batch that was read as OCTETS as a line of JSON."""
    values = [column[row].as_py() for column in batch.columns]
    texts = [None if value is None else _escaped(value.decode(), OCTETS) for value in values]
    return json_line(dict(zip(names, texts, strict=True)))


def _escaped(text: str, encoding: str) -> str:
    """Returns what the bytes of a text are in UTF-8; a byte that is not UTF-8 becomes half a surrogate pair."""
    return text.encode(encoding).decode(errors="surrogateescape")


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
    why = f"has {row.actual_columns} fields, {_in_file(row.expected_columns)}"
    return json_line({UNREAD: row.text, WHY: why})


def _in_file(number: int) -> str:
    return f"where the file has {number} columns"


def row_again(line: bytes, settings: CsvSettings, columns: Sequence[str]) -> bytes:
    """Reads a row again that was not read because of its number of fields. Returns it as a line with its values.

    `columns`: those that pipeline.yml lists now for files without a header. Any other line is returned as it is, and so
    is a row that these columns do not fit either.
    """
    if settings.header or UNREAD.encode() not in line:
        return line
    record = json_of_line(line)
    text, why = (record.get(UNREAD), str(record.get(WHY))) if isinstance(record, dict) else (None, "")
    if not isinstance(text, str) or " fields, where " not in why or why.endswith(_in_file(len(columns))):
        return line
    octets = text.encode(errors="surrogateescape")
    batches = csv_batches(partial(io.BytesIO, octets), settings, columns, OCTETS, _HEAD_BYTES + 2 * len(octets))
    blocks = [BatchBlock(batch=batch) for batch in batches]
    found = [block.line(row) for block in blocks for row in range(block.rows)]
    return found[0] if len(found) == 1 else line
