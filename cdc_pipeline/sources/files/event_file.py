"""Reads one file of events line by line, and keeps a digest of the lines that were read, to detect a changed file."""

import os
import stat
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from io import SEEK_CUR
from pathlib import Path
from typing import BinaryIO

from cdc_pipeline.errors import SourceError, SourceGap
from cdc_pipeline.sources.debezium.envelope import LAST_TIME
from cdc_pipeline.sources.debezium.one_line import printable

_DIGEST_BYTES = 16
_LOOKED_AT_BYTES = 4_096
_SKIPPED_BYTES = 1 << 20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class LineDigests:
    """The digest of a file after each of its lines. It is made only where somebody asks for it, at rising lines."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self._lines = 0
        self._waiting = deque[bytes]()

    def add(self, texts: Sequence[bytes]) -> None:
        """Adds whole lines. The last line of a file may lack its line end, and may get it later."""
        self._waiting.extend(texts)
        if texts and not texts[-1].endswith(b"\n"):
            self._waiting[-1] += b"\n"

    def after(self, line: int) -> str:
        """Returns the digest of the first `line` lines. Raises ValueError for fewer than were asked for before."""
        if line < self._lines:
            message = f"the digest after line {line} was asked for behind that after line {self._lines}"
            raise ValueError(message)
        self._digest.update(b"".join([self._waiting.popleft() for _ in range(line - self._lines)]))
        self._lines = line
        return self._digest.hexdigest()

    @property
    def last(self) -> str:
        """The digest of all lines."""
        digest = self._digest.copy()
        digest.update(b"".join(self._waiting))
        return digest.hexdigest()


class EventFile:
    """A file that is open at its beginning. `digests`: of the lines that were taken.

    `root`: the folder that no symbolic link may leave. `line`: the next line to read, for error messages. Opening
    raises SourceGap for a file that is gone, SourceError for anything that is not a readable regular file.
    """

    def __init__(self, path: Path, root: Path, *, line: int = 1) -> None:
        self.path = path
        self._lines = 0
        self.written = 0
        """Time of the file's last change, in microseconds since 1970."""
        self.digests = LineDigests()
        self._head, self._tail = b"", b""
        self._file = _opened(path, root, line)
        self._known = _identity(os.fstat(self._file.fileno()))
        self._note_written(os.fstat(self._file.fileno()))

    def read_lines(self, most_bytes: int) -> list[bytes]:
        """Returns the next lines, of about `most_bytes`; at the end of the file also the part of a line."""
        return self._file.readlines(most_bytes)

    def read_line(self) -> bytes:
        """Returns the next line, or the part of it that is written so far; empty at the end of the file."""
        return self._file.readline()

    def put_back(self, text: bytes) -> None:
        self._file.seek(-len(text), SEEK_CUR)

    def take(self, texts: Sequence[bytes]) -> None:
        """Counts whole lines as read."""
        self.digests.add(texts)
        self._lines += len(texts)
        for text in texts:
            if len(self._head) >= _LOOKED_AT_BYTES:
                break
            self._head += text[: _LOOKED_AT_BYTES - len(self._head)]
        self._tail = texts[-1][-_LOOKED_AT_BYTES:]

    def skip(self, lines: int, digest: str) -> None:
        """Skips lines that were read before. Raises SourceGap if their digest is not `digest`; "" skips the check."""
        left = lines
        while left:
            texts = self.read_lines(_SKIPPED_BYTES)
            self.put_back(b"".join(texts[left:]))
            del texts[left:]
            left -= len(texts)
            is_cut = not texts or not texts[-1].endswith(b"\n")
            if is_cut and not (texts and digest and not left):
                found = lines - left - len(texts[-1:])
                raise _changed(self.path, f"{found} lines", f"the {lines} lines that were read of it")
            self.take(texts)
            self.digests.after(lines - left)
        if digest and digest != self.digests.last:
            raise _changed(self.path, f"other first {lines} lines than were read of it", "the lines that were read")

    def is_same(self) -> bool:
        """Returns whether the path still leads to this file; compares the bytes that were read if the file changed.

        Raises SourceGap if the file is gone, shorter than what was read, or rewritten in place.
        """
        try:
            found = self.path.stat()
        except OSError as error:
            raise gone(self.path, self._lines + 1) from error
        identity = _identity(found)
        if identity[:2] != self._known[:2]:
            return False
        place = self._file.tell()
        if found.st_size < place:
            raise _changed(self.path, f"{found.st_size} bytes", f"the {place} bytes that were read of it")
        if identity != self._known and not self._is_unchanged():
            raise _changed(self.path, "other bytes than were read of it", "the lines that were read")
        self._known = identity
        self._note_written(found)
        return True

    def close(self) -> None:
        self._file.close()

    def _is_unchanged(self) -> bool:
        number, end = self._file.fileno(), self._file.tell()
        head = os.pread(number, len(self._head), 0)
        return head == self._head and os.pread(number, len(self._tail), end - len(self._tail)) == self._tail

    def _note_written(self, found: os.stat_result) -> None:
        self.written = min(max(found.st_mtime_ns // 1_000, 0), LAST_TIME)


def gone(path: Path, line: int) -> SourceGap:
    return SourceGap(
        f"the file {path} is gone",
        expected=f"it, since line {line} of it is to be read next",
        remedy="bring it back; files may only be deleted once a later one is read",
    )


def check_name(folder: Path, name: str) -> None:
    """Raises SourceError for a name that the metadata store cannot hold or a log cannot show."""
    if not name.isprintable():
        raise SourceError(
            f"the file {folder / ascii(name)} has a name that is no printable UTF-8 text",
            expected="a name such as 000001.jsonl",
            remedy="rename it",
        )


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _opened(path: Path, root: Path, line: int) -> BinaryIO:
    """Opens a regular file. Refuses a FIFO without waiting for its writer.

    Raises SourceGap for a file that is gone, SourceError for anything that is not a readable regular file.
    """
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root.resolve()):
            raise SourceError(
                f"the file {path} is a symbolic link that leaves {root}",
                expected="a file, or a link to one inside of that folder",
                remedy="copy or move the file there",
            )
        number = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise gone(path, line) from error
    except (OSError, RuntimeError) as error:
        words = (isinstance(error, OSError) and error.strerror) or "Too many levels of symbolic links"
        raise SourceError(
            f"cannot read the file {path}: {words}",
            expected="a file that the pipeline's user may read",
            remedy="correct its rights, or move it away if it holds no events",
        ) from error
    kind = stat.S_IFMT(os.fstat(number).st_mode)
    if kind != stat.S_IFREG:
        os.close(number)
        raise SourceError(
            f"{path} is {_KINDS.get(kind, 'no file')}",
            expected="a file with one event per line",
            remedy="move it away, or give it a name without .jsonl",
        )
    return os.fdopen(number, "rb")


def _changed(path: Path, found: str, expected: str) -> SourceGap:
    return SourceGap(
        f"the file {printable(str(path))} has {found}",
        expected=expected,
        remedy="bring its content back: files may grow, and are never rewritten; new events belong into a later file",
    )
