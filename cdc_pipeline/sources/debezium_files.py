"""The files of one stream partition -> their complete lines, from one offset on, also while they are written to."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import SEEK_CUR
from pathlib import Path
from typing import BinaryIO

from cdc_pipeline.errors import SourceError, SourceGap
from cdc_pipeline.steps import OnStep, step

SUFFIX = ".jsonl"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_LINE_BITS = 32
_LINE_MASK = (1 << _LINE_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLine:
    """`place` is the line's offset, `number` counts from one. `written` is when its file was last changed, in µs."""

    place: int
    file: str
    number: int
    text: bytes
    written: int


def partition_folders(path: Path) -> dict[int, Path]:
    """`<path>/<number>` by number. Raises SourceError for a path or a folder of another form."""
    try:
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise SourceError(
            f"cannot read the folder {path}: {error.strerror}",
            expected="the folder that source.path names, with one folder per stream partition in it",
            remedy="mend source.path in pipeline.yml, or create it",
        ) from error
    folders = {}
    for entry in entries:
        if not entry.is_dir() and entry.suffix != SUFFIX:
            continue
        if (
            not entry.is_dir()
            or not (entry.name.isascii() and entry.name.isdigit())
            or str(int(entry.name)) != entry.name
        ):
            raise SourceError(
                f"{entry} is no stream partition",
                expected="folders that are named 0, 1, 2, …, and files in them alone",
                remedy=f"move it to {path / '0'} if there is only one stream partition",
            )
        folders[int(entry.name)] = entry
    if not folders:
        raise SourceError(
            f"the folder {path} holds no stream partition",
            expected=f"files such as {path / '0' / ('events' + SUFFIX)}",
            remedy="create them, or mend source.path in pipeline.yml",
        )
    return folders


class PartitionFiles:
    """Reads on at `offset`. Files come in the order of their names; `begin` numbers each when it is begun.

    What lies before the place that is read is never looked at again.
    """

    def __init__(
        self, *, folder: Path, offset: int, begun: Mapping[int, str], begin: Callable[[str], int], on_step: OnStep
    ) -> None:
        self._folder = folder
        self._begun = dict(begun)
        self._begin = begin
        self._on_step = on_step
        self._number, self._line = offset >> _LINE_BITS, offset & _LINE_MASK
        self._file: BinaryIO | None = None
        self._is_checked = False
        self._written = 0
        self.at_end = False

    @property
    def offset(self) -> int:
        """Behind the last line that was given."""
        return self._number << _LINE_BITS | self._line

    def begun_between(self, start: int, end: int) -> dict[int, str]:
        """Number and name of the files that were begun behind the offset `start`, up to `end`."""
        first, last = start >> _LINE_BITS, end >> _LINE_BITS
        return {number: name for number, name in self._begun.items() if first < number <= last}

    def next_lines(self, most_bytes: int) -> list[RawLine]:
        """About as many; fewer only where the files end for now, which `at_end` then says."""
        lines: list[RawLine] = []
        self._is_checked = False
        left = most_bytes
        with step(self._on_step, "source_file.read"):
            for line in self._lines():
                lines.append(line)
                left -= len(line.text)
                if left <= 0:
                    break
            self.at_end = left > 0
        return lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lines(self) -> Iterator[RawLine]:
        while True:
            file = self._opened() if self._number else None
            text = file.readline() if file is not None else b""
            if not text.endswith(b"\n"):
                following = self._next_name()
                if file is not None and following is not None:
                    text += file.readline()  # what came since, before the next file
                if following is None:
                    if file is not None:
                        file.seek(-len(text), SEEK_CUR)
                    return
                if not text:
                    self._go_on(following)
                    continue
            yield self._given(text)

    def _given(self, text: bytes) -> RawLine:
        name = self._begun[self._number]
        line = RawLine(place=self.offset, file=name, number=self._line + 1, text=text, written=self._written)
        self._line += 1
        return line

    def _opened(self) -> BinaryIO:
        """The file that is read, behind the lines that were given. Raises SourceGap when they are not there."""
        if self._file is not None and self._is_checked:
            return self._file
        path = self._folder / self._begun[self._number]
        try:
            found = path.stat()
            if self._file is None:
                self._file = path.open("rb")
                self._skip(self._file, path)
        except FileNotFoundError as error:
            raise SourceGap(
                f"the file {path} is gone",
                expected=f"it, since line {self._line + 1} of it is to be read next",
                remedy="bring it back; files may only be deleted once a later one is read",
            ) from error
        if found.st_size < self._file.tell():
            raise _shorter(path, f"{found.st_size} bytes", f"the {self._file.tell()} bytes that were read of it")
        self._is_checked, self._written = True, found.st_mtime_ns // 1_000
        return self._file

    def _skip(self, file: BinaryIO, path: Path) -> None:
        for line in range(self._line):
            if not file.readline().endswith(b"\n"):
                raise _shorter(path, f"{line} lines", f"the {self._line} lines that were read of it")

    def _go_on(self, name: str) -> None:
        self.close()
        self._is_checked = False
        self._number, self._line = self._begin(name), 0
        self._begun[self._number] = name

    def _next_name(self) -> str | None:
        """The file behind the one that is read."""
        if self._number + 1 in self._begun:
            return self._begun[self._number + 1]
        last = self._begun.get(self._number, "")
        known = set(self._begun.values())
        waiting = sorted(path.name for path in self._folder.iterdir() if path.suffix == SUFFIX)
        waiting = [name for name in waiting if name not in known and not name.startswith(".")]
        if waiting and waiting[0] < last:
            raise SourceError(
                f"the file {self._folder / waiting[0]} came after {last} was begun",
                expected="names that rise: files are read in the order of their names",
                remedy="give it a later name",
            )
        return waiting[0] if waiting else None


def _shorter(path: Path, found: str, expected: str) -> SourceGap:
    return SourceGap(
        f"the file {path} has {found}",
        expected=expected,
        remedy="bring its content back: files may grow, and are never rewritten",
    )
