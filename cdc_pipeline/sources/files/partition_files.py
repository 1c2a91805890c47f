"""Reads the complete lines of one stream partition's files from an offset, also while the files are written."""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from cdc_pipeline.errors import SourceError
from cdc_pipeline.sources.debezium.one_line import printable
from cdc_pipeline.sources.files.event_file import EventFile, LineDigests, check_name
from cdc_pipeline.steps import OnStep, step

SUFFIX = ".jsonl"
FILE_DIGEST = "file"
"""Key in `last_position` for the digest of the lines that were read of the present file. No table has this name."""
_LOOKS_APART = 10
"""The pause after a look, in times of what the look took: a folder may keep many files that were read."""
_TICK_NS = 3_000_000_000
"""A folder's time of change stands still for less than this while files come. Some file systems have whole seconds."""
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
LINE_BITS = 32
LINE_MASK = (1 << LINE_BITS) - 1


class RawLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A complete line of a file.

    `place`: the line's offset in the stream partition. `number`: its number in the file, from 1. `written`: time of the
    file's last change, in microseconds since 1970. `digest`: of the file up to this line, inclusive.
    """

    place: int
    file: str
    number: int
    text: bytes
    written: int
    digest: str = ""

    @property
    def size_bytes(self) -> int:
        return len(self.text)


class FileLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The same for a file that may grow. `digests`: of its lines."""

    place: int
    file: str
    number: int
    text: bytes
    written: int
    digests: LineDigests

    @property
    def digest(self) -> str:
        return self.digests.after(self.number)

    @property
    def size_bytes(self) -> int:
        return len(self.text)


def partition_folders(path: Path) -> dict[int, Path]:
    """Returns the folders `<path>/<number>` by number. Raises SourceError if `path` has any other layout."""
    try:
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        entries = [entry for entry in entries if entry.is_dir() or entry.suffix == SUFFIX]
        outside = next((entry for entry in entries if not entry.resolve().is_relative_to(path.resolve())), None)
    except (OSError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    if outside is not None:
        raise SourceError(
            f"{printable(str(outside))} is a symbolic link that leaves {path}",
            expected="folders inside of it",
            remedy="mount or move the folder there, or name the real one as source.path",
        )
    folders = {}
    for entry in entries:
        if not entry.is_dir() or _NUMBER.fullmatch(entry.name) is None:
            raise SourceError(
                f"{printable(str(entry))} is no stream partition",
                expected="folders that are named 0, 1, 2, …, and files in them alone",
                remedy=f"move it to {path / '0'} if there is only one stream partition",
            )
        folders[int(entry.name)] = entry
    if not folders:
        raise SourceError(
            f"the folder {path} holds no stream partition",
            expected=f"files such as {path / '0' / ('events' + SUFFIX)}",
            remedy="create them, or correct source.path in pipeline.yml",
        )
    return folders


class PartitionFiles:
    """Reads a stream partition's files from `offset`, in the order of their names.

    `begun`: names of the files that were begun before, by number. `begin` registers a file when it is begun and returns
    its number. `digest`: of the lines before `offset` in their file, "" if it is not known. `root`: the folder that no
    symbolic link may leave. Files before the present one are never opened again.
    """

    def __init__(
        self,
        *,
        folder: Path,
        offset: int,
        begun: Mapping[int, str],
        begin: Callable[[str], int],
        on_step: OnStep,
        root: Path | None = None,
        digest: str = "",
    ) -> None:
        self._folder = folder
        self._root = root or folder
        self._begun = dict(begun)
        self._known = set(self._begun.values())
        self._begin = begin
        self._on_step = on_step
        self._number, self._line = offset >> LINE_BITS, offset & LINE_MASK
        self._digest = digest
        self._file: EventFile | None = None
        self._is_checked = False
        self._waiting = deque[str]()
        """Names that the last look found, in their order, without those that were begun since."""
        self._seen: int | None = None
        """The folder's time of change before that look; None if a later change may have the same."""
        self._next_look = 0.0
        self._fresh = False
        self.at_end = False

    @property
    def offset(self) -> int:
        """The offset after the last line that was returned."""
        return self._number << LINE_BITS | self._line

    def begun_between(self, start: int, end: int) -> dict[int, str]:
        """Returns number and name of the files that were begun after the offset `start`, up to `end`."""
        first, last = start >> LINE_BITS, end >> LINE_BITS
        return {number: self._begun[number] for number in range(first + 1, last + 1) if number in self._begun}

    def next_lines(self, most_bytes: int, *, fresh: bool = True) -> list[FileLine]:
        """Returns lines of about `most_bytes`. Returns fewer at the present end of the files; `at_end` is true then.

        `fresh`: looks for new files now, and not only after a pause.
        """
        self._fresh = fresh
        lines: list[FileLine] = []
        self._is_checked = False
        left = most_bytes
        with step(self._on_step, "source_file.read"):
            while left > 0 and (texts := self._next_texts(left)):
                lines += self._given(texts)
                left -= sum(map(len, texts))
            self.at_end = left > 0
        return lines

    def check(self) -> None:
        """Raises nothing: `next_lines` raises what stops the stream partition."""

    def close(self) -> None:
        if self._file is not None:
            self._digest = self._file.digests.last
            self._file.close()
            self._file = None

    def _next_texts(self, most_bytes: int) -> list[bytes]:
        """Returns whole lines of one file, none at the present end of the files. Begins the next file if it has to."""
        while True:
            file = self._opened() if self._number else None
            texts = [] if file is None else file.read_lines(most_bytes)
            rest = texts.pop() if texts and not texts[-1].endswith(b"\n") else b""
            following = None if texts else self._next_name()
            if file is not None and following is not None:
                rest += file.read_line()  # the rest of the line may have come before the next file was created
            elif file is not None:
                file.put_back(rest)
            if texts or following is None:
                return texts
            if rest:
                return [rest]
            self._go_on(following)

    def _given(self, texts: Sequence[bytes]) -> list[FileLine]:
        file = self._opened()
        file.take(texts)
        first, name = self._line, self._begun[self._number]
        self._line += len(texts)
        return [
            FileLine(
                place=self._number << LINE_BITS | line,
                file=name,
                number=line + 1,
                text=text,
                written=file.written,
                digests=file.digests,
            )
            for line, text in enumerate(texts, first)
        ]

    def _opened(self) -> EventFile:
        """Returns the present file, open after the lines that were returned. Raises SourceGap if these changed."""
        if self._file is not None and self._is_checked:
            return self._file
        if self._file is not None and not self._file.is_same():
            self.close()
        if self._file is None:
            self._file = EventFile(self._folder / self._begun[self._number], self._root, line=self._line + 1)
            self._file.skip(self._line, self._digest)
        self._is_checked = True
        return self._file

    def _go_on(self, name: str) -> None:
        """Begins the file `name`. Opens it first, so that an unreadable file is refused before it is registered."""
        EventFile(self._folder / name, self._root).close()
        self.close()
        self._number, self._line, self._digest = self._begin(name), 0, ""
        self._begun[self._number] = name
        self._known.add(name)
        self._is_checked = False
        if self._waiting and self._waiting[0] == name:
            self._waiting.popleft()

    def _next_name(self) -> str | None:
        """Returns the name of the file after the present one, None if there is none yet.

        Raises SourceError for a new file whose name sorts before the present one.
        """
        if self._number + 1 in self._begun:
            return self._begun[self._number + 1]
        last = self._begun.get(self._number, "")
        self._look()
        if not self._waiting:
            return None
        name = self._waiting[0]
        check_name(self._folder, name)
        if name < last:
            raise SourceError(
                f"the file {self._folder / name} came after {last} was begun",
                expected="names that rise: files are read in the order of their names",
                remedy="give it a later name",
            )
        return name

    def _look(self) -> None:
        """Lists the files that were not begun. Files that wait are listed again only if the folder changed since."""
        began, now = time.monotonic(), time.time_ns()
        if not self._waiting and not self._fresh and began < self._next_look:
            return
        try:
            changed = self._folder.stat().st_mtime_ns
            # Without files that wait the time is not trusted: some mounted buckets have none for their folders.
            if self._waiting and changed == self._seen:
                return
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in entries if entry.name.endswith(SUFFIX)]
        except OSError as error:
            raise _unreadable(self._folder, error) from error
        self._waiting = deque(sorted(name for name in names if name not in self._known and not name.startswith(".")))
        self._seen = changed if now - changed > _TICK_NS else None
        ended = time.monotonic()
        self._next_look = ended + _LOOKS_APART * (ended - began)


def _unreadable(path: Path, error: Exception) -> SourceError:
    return SourceError(
        f"cannot read the folder {path}: {getattr(error, 'strerror', None) or error}",
        expected="the folder that source.path names, with one folder per stream partition in it",
        remedy="correct source.path in pipeline.yml, or create it",
    )
