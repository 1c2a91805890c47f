"""Reads a change file (CSV, JSON Lines, Parquet or Avro, also gzip) as records, each as one line of JSON."""

import gzip
import json
import struct
import tempfile
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from cdc_pipeline.errors import SourceAway, SourceError, SourceGap
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.debezium.envelope import LAST_TIME
from cdc_pipeline.sources.debezium.one_line import printable

UNREAD, WHY = "_cdc_unread", "_cdc_why"
"""Keys of the record that stands for a row of a CSV file that has too few or too many fields: its text, and why."""
_DIGEST_BYTES = 16
_BLOCK_BYTES = 16 << 20
_BATCH_ROWS = 4_096
_COPIED_BYTES = 1 << 20
_GZIP = ".gz"
_DAMAGES = (pa.ArrowException, OSError, EOFError, ValueError, KeyError, IndexError, TypeError, zlib.error, struct.error)

Open = Callable[[], BinaryIO]
Blocks = Iterator[Iterable[bytes]]
"""The records of a file, in blocks. Taking a block reads and checks its bytes; its records are made when it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """`columns`: the names of the columns of a CSV file without a header."""

    csv: CsvSettings
    columns: tuple[str, ...] = ()


class RecordFile:
    """A change file, copied to a nameless local file, so that nobody can change what is being read.

    Opening reads the whole file once to check that it is whole. It raises SourceError if the file is damaged, SourceGap
    if it is gone, SourceAway if the store cannot be reached. `written`: time of the file's last change, in microseconds
    since 1970.
    """

    def __init__(self, objects: ObjectStore, key: str, layout: FileLayout) -> None:
        self.key = key
        self.line = 0
        """Number of records that were taken."""
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self._records: Iterator[bytes] = iter(())
        self._file, self.written = _copied(objects, key)
        self._blocks = partial(_reader(key), self._reopened, layout)
        try:
            for _ in self._blocks():
                pass
            self._records = self._all()
            self._next = next(self._records, None)
        except _DAMAGES as error:
            self.close()
            raise SourceError(
                f"the file {key} cannot be read: {type(error).__name__}: {error!s:.200}",
                expected=f"a whole file, as its name says ({', '.join(SUFFIXES)}, also with {_GZIP})",
                remedy="bring the whole file under the same name; reading goes on with it",
            ) from error

    @property
    def is_read(self) -> bool:
        """Whether every record was taken."""
        return self._next is None

    @property
    def digest(self) -> str:
        """The digest of all records that were taken."""
        return self._digest.hexdigest()

    def take(self) -> bytes:
        """Returns the next record, as one line of JSON."""
        record, self._next = self._next, next(self._records, None)
        if record is None:
            raise EOFError(self.key)
        self._digest.update(record.removesuffix(b"\n") + b"\n")
        self.line += 1
        return record

    def skip(self, lines: int, digest: str) -> None:
        """Skips records that were read before. Raises SourceGap if the file has others than the ones of `digest`."""
        while self.line < lines and not self.is_read:
            self.take()
        if self.line < lines or self.digest != digest:
            self.close()
            raise SourceGap(
                f"the file {self.key} has other records than the {lines} that were read of it",
                expected="the same bytes: files are never rewritten",
                remedy="bring its content back; new changes belong into a later file",
            )

    def close(self) -> None:
        self._records = iter(())
        self._file.close()

    def _all(self) -> Iterator[bytes]:
        for block in self._blocks():
            yield from block

    def _reopened(self) -> BinaryIO:
        """Opens the local file at its beginning. Each opening has a read position of its own."""
        path = f"/proc/self/fd/{self._file.fileno()}"
        return cast("BinaryIO", gzip.open(path)) if self.key.endswith(_GZIP) else Path(path).open("rb")


def is_readable(key: str) -> bool:
    """Returns whether the name ends with a known suffix."""
    return key.removesuffix(_GZIP).endswith(tuple(SUFFIXES))


def unreadable_name(key: str) -> str | None:
    """Returns the name as people can read it if it says no format; None if the file can be read by its name."""
    if not key.isprintable():
        return printable(ascii(key))
    return None if is_readable(key) else printable(key)


def _reader(key: str) -> Callable[..., Blocks]:
    return next(reader for suffix, reader in SUFFIXES.items() if key.removesuffix(_GZIP).endswith(suffix))


def _copied(objects: ObjectStore, key: str) -> tuple[BinaryIO, int]:
    """Copies an object into a nameless local file; memory holds one megabyte. Returns it with its time of writing."""
    filesystem, root = objects.filesystem()
    path = f"{root}/{key}"
    copied = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - RecordFile.close closes it
    try:
        info = filesystem.get_file_info(path)
        with filesystem.open_input_stream(path, compression=None) as stream:
            copyfileobj(stream, copied, _COPIED_BYTES)
        copied.flush()
    except FileNotFoundError as error:
        copied.close()
        raise SourceGap(
            f"the file {key} is gone",
            expected=f"it, below {objects.url}, since it is to be read next",
            remedy="bring it back; files may only be deleted once a later one is read",
        ) from error
    except (OSError, pa.ArrowException) as error:
        copied.close()
        raise SourceAway(
            f"the file {key} below {objects.url} cannot be read now: {error!s:.300}",
            remedy="the next try may reach it; if it does not, look at the store's rights",
        ) from error
    return copied, min(max((info.mtime_ns or 0) // 1_000, 0), LAST_TIME)


def _json(record: object) -> bytes:
    return json.dumps(record, default=_plain, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    """Renders what JSON lacks, as Debezium's JSON writes it."""
    match value:
        case bytes():
            return b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
    message = f"a value of the type {type(value).__name__}"
    raise TypeError(message)


def _json_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    del layout
    with open_file() as file:
        while lines := file.readlines(_COPIED_BYTES):
            yield lines


def _avro_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    from fastavro import block_reader

    del layout
    with open_file() as file:
        for block in block_reader(file):
            yield (_json(record) for record in block)


def _parquet_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    del layout
    with open_file() as file, pq.ParquetFile(file) as parquet:
        names = _unique(parquet.schema_arrow.names)
        for batch in parquet.iter_batches(_BATCH_ROWS):
            columns = [_values(column) for column in batch.columns]
            yield (_json(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))


def _values(column: pa.Array) -> Sequence[object]:
    """Returns the values of a column. Times and decimals are texts, which keep every digit."""
    kind = column.type
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    values: list[object] = column.to_pylist()
    return values


def _csv_blocks(open_file: Open, layout: FileLayout) -> Blocks:
    """Every value is a text; unquoted `csv.null` is NULL. A row with too few or too many fields becomes UNREAD."""
    invalid: list[pa.csv.InvalidRow] = []

    def keep(row: pa.csv.InvalidRow) -> str:
        invalid.append(row)
        return "skip"

    with open_file() as file:
        if not file.read(1):
            return
    names = layout.columns
    if layout.csv.header:
        with open_file() as file, _opened_csv(file, layout, (), lambda _: "skip") as reader:
            names = _unique(reader.schema.names)
    number = 2 if layout.csv.header else 1
    with open_file() as file, _opened_csv(file, layout, names, keep) as reader:
        for batch in reader:
            first = number
            number += batch.num_rows + len(invalid)
            yield _csv_rows(batch, names, invalid.copy(), first)
            invalid.clear()
    yield map(_unread, invalid)


def _opened_csv(
    file: BinaryIO, layout: FileLayout, names: Sequence[str], invalid: Callable[[pa.csv.InvalidRow], str]
) -> pa.csv.CSVStreamingReader:
    return pa.csv.open_csv(
        file,
        read_options=pa.csv.ReadOptions(
            use_threads=False, block_size=_BLOCK_BYTES, column_names=None if layout.csv.header else names
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


def _csv_rows(
    batch: pa.RecordBatch, names: Sequence[str], invalid: Sequence[pa.csv.InvalidRow], first: int
) -> Iterator[bytes]:
    """Yields the rows of a batch and the invalid rows between them, in the order of the file."""
    waiting, number = list(invalid), first
    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        while waiting and waiting[0].number == number:
            yield _unread(waiting.pop(0))
            number += 1
        texts = (None if value is None else value.decode(errors="surrogateescape") for value in row)
        yield _json(dict(zip(names, texts, strict=True)))
        number += 1
    yield from map(_unread, waiting)


def _unread(row: pa.csv.InvalidRow) -> bytes:
    why = f"has {row.actual_columns} fields, where the file has {row.expected_columns} columns"
    return _json({UNREAD: row.text, WHY: why})


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        message = f"two columns have the name {twice!r}"
        raise ValueError(message)
    return tuple(names)


SUFFIXES: dict[str, Callable[..., Blocks]] = {
    ".csv": _csv_blocks,
    ".jsonl": _json_blocks,
    ".json": _json_blocks,
    ".parquet": _parquet_blocks,
    ".avro": _avro_blocks,
}
READABLE_NAME = f"a name that ends with one of {', '.join(SUFFIXES)}, also with {_GZIP}"
