"""Reads a change file (CSV, JSON Lines, Parquet or Avro, also gzip) as blocks of records."""

import gzip
import tempfile
from collections.abc import Collection
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, cast

from cdc_pipeline.errors import (
    ObjectMissing,
    ObjectStoreAway,
    SettingsError,
    SourceAway,
    SourceError,
    SourceGap,
    has_no_room,
)
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.sources.debezium.envelope import LAST_TIME
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt, printable
from cdc_pipeline.sources.files.record_blocks import BatchBlock, RecordBlock
from cdc_pipeline.sources.files.record_formats import SUFFIXES, Blocks, FileLayout

READABLE_NAME = f"a name that ends with one of {', '.join(SUFFIXES)}, also with .gz"
READ_ON = "reading goes on with it"
"""Ends what the errors of a file ask for, as a consumer gives them."""
_DIGEST_BYTES = 16
_COPIED_BYTES = 1 << 20
_MOST_ROWS = 32_768
_GZIP = ".gz"


class RecordFile:
    """A change file, copied to a nameless local file, so that nobody can change what is being read.

    Opening reads the whole file once to check that it is whole. It raises SourceError if the file is damaged or may not
    be read, SourceGap if it is gone, SourceAway if the store cannot be reached. `written`: time of the file's last
    change, in microseconds since 1970. `line`: the number of records that were taken. `digest`: that of the file's
    bytes, with their number. `names`: of its columns, as a CSV or Parquet file begins with them; none for other files.
    """

    def __init__(self, objects: ObjectStore, key: str, layout: FileLayout) -> None:
        self.key = key
        self.line = 0
        self._file, self.written = _copied(objects, key)
        self.digest = self._digest(self._file.tell())
        self.names: tuple[str, ...] = ()
        self._blocks: Blocks = iter(())
        self._block: RecordBlock | None = None
        opened = attempt(partial(self._open, layout))
        if isinstance(opened, LineRefused):
            self.close()
            if has_no_room(opened.__cause__):
                raise _no_room(key, opened.__cause__) from opened.__cause__
            raise SourceError(
                f"the file {key} {opened!s:.250}",
                expected=f"a whole file, as its name says ({', '.join(SUFFIXES)}, also with {_GZIP})",
                remedy="bring the whole file under the same name; reading goes on with it",
            ) from opened.__cause__

    @property
    def is_read(self) -> bool:
        """Whether every record was taken."""
        return self._block is None

    def take_block(self, most_bytes: int) -> RecordBlock:
        """Returns the next records, at least one and about `most_bytes` of them."""
        if self._block is None:
            raise EOFError(self.key)
        rows = self._block.rows * most_bytes // max(self._block.size_bytes, 1)
        taken = self._block.slice(self._row, max(1, min(rows, _MOST_ROWS)))
        self._go_on(taken.rows)
        return taken

    def skip(self, lines: int, digest: str) -> None:
        """Skips records that were read before. Raises SourceGap if the file does not begin with the bytes of `digest`.

        It may have more bytes now: then it was not whole when it was read, and its further records are read.
        """
        known = digest.rpartition(":")[2]
        same = digest == self.digest or (known.isdecimal() and digest == self._digest(int(known)))
        while same and self.line < lines and self._block is not None:
            self._go_on(min(lines - self.line, self._block.rows - self._row))
        if not same or self.line < lines:
            self.close()
            raise SourceGap(
                f"the file {self.key} has other records than the {lines} that were read of it",
                expected="the same bytes: files are never rewritten",
                remedy="bring its content back; new changes belong into a later file",
            )

    def check_names(self, known_by: Collection[str]) -> None:
        """Raises SourceError if the file has names, and none of `known_by`: they may be its first row."""
        if self.names and known_by and set(known_by).isdisjoint(self.names):
            self.close()
            raise SourceError(
                missing_columns(self.key, known_by, self.names),
                expected="the names of the columns at the beginning of the file",
                remedy="set csv.header: false in pipeline.yml if CSV files have no names, or bring the file with names",
            )

    def close(self) -> None:
        self._block, self._blocks = None, iter(())
        self._file.close()

    def _open(self, layout: FileLayout) -> None:
        """Opens the file at its first record. Raises whatever a library raises for a damaged file.

        MemoryError becomes ValueError: a damaged length may be greater than any memory.
        """
        if self.key.endswith(_GZIP) and not self._file.tell():
            message = "it has 0 bytes, and gzip has more for no rows, too"
            raise EOFError(message)
        read = next(read for suffix, read in SUFFIXES.items() if self.key.removesuffix(_GZIP).endswith(suffix))
        try:
            blocks = read(self._reopened, layout)
            first = list(islice(blocks, 1))
            self._blocks = chain(first, blocks)
            self.names = tuple(name for block in first if isinstance(block, BatchBlock) for name in block.names)
            self._block = self._next_block()
        except MemoryError as error:
            message = "it needs more memory than there is"
            raise ValueError(message) from error

    def _go_on(self, rows: int) -> None:
        self.line += rows
        self._row += rows
        if self._block is not None and self._row == self._block.rows:
            self._block = self._next_block()

    def _next_block(self) -> RecordBlock | None:
        self._row = 0
        return next((block for block in self._blocks if block.rows), None)

    def _digest(self, size_bytes: int) -> str:
        """Returns the digest of the first bytes of the file."""
        digest, left = blake2b(digest_size=_DIGEST_BYTES), size_bytes
        with Path(self._path).open("rb") as file:
            while left and (octets := file.read(min(left, _COPIED_BYTES))):
                digest.update(octets)
                left -= len(octets)
        return f"{digest.hexdigest()}:{size_bytes}"

    @property
    def _path(self) -> str:
        return f"/proc/self/fd/{self._file.fileno()}"

    def _reopened(self) -> BinaryIO:
        """Opens the local file at its beginning. Each opening has a read position of its own."""
        return cast("BinaryIO", gzip.open(self._path)) if self.key.endswith(_GZIP) else Path(self._path).open("rb")


def missing_columns(key: str, missing: Collection[str], names: Collection[str]) -> str:
    """Returns what was found where a file has the columns `names`, and not those that are `missing`."""
    return f"the file {key} has no column {', '.join(missing)}; it has {printable(', '.join(names))}"


def is_readable(key: str) -> bool:
    """Returns whether the name ends with a known suffix."""
    return key.removesuffix(_GZIP).endswith(tuple(SUFFIXES))


def _no_room(key: str, error: BaseException | None) -> SourceError:
    """Returns an error of this file alone: smaller files of other folders may have room."""
    return SourceError(
        f"the file {key} finds no room in the folder for temporary files: {error!s:.300}",
        remedy="set another TMPDIR, or make room in this folder for the whole file; reading goes on with it",
    )


def unfit_name(key: str, *, after: str) -> SourceError | None:
    """Returns why a name says no format, or comes before `after` in the order of names; None if it is fit."""
    strange = unreadable_name(key)
    if strange is not None:
        return SourceError(
            f"the file {strange} has a name that says no format",
            expected=READABLE_NAME,
            remedy="rename it, or move it out of the folder",
        )
    if key < after:
        return SourceError(
            f"the file {key} came after {after} was begun",
            expected="names that rise: files are read in the order of their names",
            remedy="give it a later name; only a new pipeline can have order_by, by which files may come in any order",
        )
    return None


def unreadable_name(key: str) -> str | None:
    """Returns the name as people can read it if it says no format; None if the file can be read by its name."""
    if not key.isprintable():
        return printable(ascii(key))
    return None if is_readable(key) else printable(key)


def refused(error: SettingsError) -> SourceError:
    """Returns the error of one file or folder that may not be read: others can be."""
    return SourceError(error.found, expected=error.expected, remedy=f"{error.remedy}; reading goes on with it")


def _copied(objects: ObjectStore, key: str) -> tuple[BinaryIO, int]:
    """Copies an object into a nameless local file. Returns it with its time of writing."""
    copied = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - RecordFile.close closes it
    try:
        written = objects.copy_to(key, copied)
        copied.flush()
    except BaseException as error:
        copied.close()
        match error:
            case ObjectMissing():
                raise SourceGap(
                    f"the file {key} is gone",
                    expected=f"it, below {objects.url}, since it is to be read next",
                    remedy="bring it back; files may only be deleted once a later one is read",
                ) from error
            case SettingsError():
                raise refused(error) from error
            case OSError() if has_no_room(error):
                raise _no_room(key, error) from error
            case ObjectStoreAway() if has_no_room(error.__cause__):  # a folder does not tell reading from writing
                raise _no_room(key, error.__cause__) from error
            case ObjectStoreAway() | OSError():
                raise SourceAway(
                    f"the file {key} below {objects.url} cannot be copied now: {error!s:.300}",
                    remedy="the next try may reach it; if it does not, look at the store and the free space of TMPDIR",
                ) from error
        raise
    return copied, min(max(written, 0), LAST_TIME)
