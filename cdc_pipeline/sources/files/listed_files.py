"""Reads the records of change files below a folder or a bucket's prefix, file by file, from an offset."""

import math
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from cdc_pipeline.errors import SettingsError, SourceError, SourceGap
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.sources.files.complete_files import CompleteFiles, folder_of, is_no_data
from cdc_pipeline.sources.files.partition_files import LINE_BITS, LINE_MASK, RawLine
from cdc_pipeline.sources.files.record_blocks import PlacedBlock
from cdc_pipeline.sources.files.record_file import RecordFile, refused, unfit_name
from cdc_pipeline.sources.files.record_formats import FileLayout
from cdc_pipeline.sources.files.refused_files import RefusedFile, refused_file
from cdc_pipeline.steps import OnStep, step

log = structlog.get_logger()

LOOK_BACK_FILES = 500
"""This many of the last files of a folder are listed again, to find files with a name below the newest one."""
_LISTED_AND_GONE = "bring it back; reading goes on with it, or without it once the consumer is started again"
_MOST_WAITING = 1_000
_MOST_INCOMPLETE = 100
_WHOLE = " whole"
"""Follows the digest of a file that was read to its end: it is not opened again."""
_EMPTY = " without records"
"""Follows the name of a file where it is begun if it has no records: it is not opened again, and may be gone."""


@dataclass(slots=True, kw_only=True)
class _Folder:
    """A folder of files and what is known of its names.

    `known`: the last names that were begun or wait, in their order. `after`: names up to here are not listed again.
    `incomplete`: names that were listed before their files were complete; each look asks for them alone.
    `rests_since`: the time of the last look, if it found nothing to read.
    """

    path: str
    layout: FileLayout
    known: list[str] = field(default_factory=list)
    after: str = ""
    waiting: deque[str] = field(default_factory=deque)
    incomplete: set[str] = field(default_factory=set)
    stopped: SourceError | None = None
    refused: RefusedFile | None = None
    rests_since: float = -math.inf

    def stop(self, why: SourceError) -> None:
        """Remembers why the folder is not read on, and logs each reason once."""
        if str(self.stopped) != str(why):
            log.error("the folder is not read on", folder=self.path, found=why.found, remedy=why.remedy)
        self.stopped = why

    def take(self, name: str) -> None:
        self.waiting.append(name)
        if name > self.after:
            insort(self.known, name)

    def forget_old(self, left: str | None) -> None:
        """Forgets all but the last names. `left`: the first name that was listed and not taken; it is listed again."""
        old = len(self.known) - LOOK_BACK_FILES
        if left is not None:
            old = min(old, bisect_left(self.known, left))
        if old > 0:
            self.after = self.known[old - 1]
            del self.known[:old]


class ListedFiles:
    """Reads complete files: folders take turns by file, and the files of a folder are read in the order of their names.

    `layouts`: by folder, relative to the store's root. `begun`, `begin`, `digest`: as for `PartitionFiles`. A folder
    whose next file cannot be read is stopped until that file is replaced, and the others are read on; `check` raises
    the reason.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        layouts: Mapping[str, FileLayout],
        settings: ChangeFilesSource,
        offset: int,
        begun: Mapping[int, str],
        begin: Callable[[str], int],
        on_step: OnStep,
        digest: str = "",
    ) -> None:
        self._objects = objects
        self._settings = settings
        self._complete = CompleteFiles(objects, settings)
        self._by_path = {path: _Folder(path=path, layout=layout) for path, layout in layouts.items()}
        self._folders = deque(self._by_path.values())
        self._begun = dict(begun)
        self._begin = begin
        self._on_step = on_step
        self._number, self._line = offset >> LINE_BITS, offset & LINE_MASK
        self._digest = digest.removesuffix(_WHOLE)
        self._is_whole = self._number == 0 or digest.endswith(_WHOLE)
        self._file: RecordFile | None = None
        self._unbegun = list[str]()
        """Files without records that were read. They are begun with the next one that has some, and may go before."""
        self.at_end = False
        for name in sorted(name.removesuffix(_EMPTY) for name in self._begun.values()):
            folder = self._folder_of(name)
            if folder is not None:
                folder.known.append(name)

    @property
    def offset(self) -> int:
        """The offset after the last record that was returned."""
        return self._number << LINE_BITS | self._line

    def begun_between(self, start: int, end: int) -> dict[int, str]:
        """Returns number and name of the files that were begun after the offset `start`, up to `end`."""
        first, last = start >> LINE_BITS, end >> LINE_BITS
        return {number: self._begun[number] for number in range(first + 1, last + 1) if number in self._begun}

    def next_lines(self, most_bytes: int, *, fresh: bool = False) -> list[RawLine]:
        """Returns records of about `most_bytes`. Returns fewer at the present end of the files; `at_end` is true then.

        `fresh`: looks for new files now, and not only every `list_every`.
        """
        lines: list[RawLine] = []
        left = most_bytes
        while left > 0 and (found := self.next_block(left, fresh=fresh)) is not None:
            more = [found.raw_line(row) for row in range(found.block.rows)]
            lines += more
            left -= sum(len(line.text) for line in more)
        return lines

    def next_block(self, most_bytes: int, *, fresh: bool) -> PlacedBlock | None:
        """Returns records of one file of about `most_bytes`, None if there are none now; `at_end` is true then."""
        with step(self._on_step, "source_file.read"):
            file = self._present(fresh=fresh)
            self.at_end = file is None
            if file is None:
                return None
            place = self.offset
            block = file.take_block(most_bytes)
            self._line, self._digest = file.line, file.digest
            return PlacedBlock(
                block=block,
                place=place,
                file=file.key,
                written=file.written,
                digest=file.digest,
                last_digest=file.digest + (_WHOLE if file.is_read else ""),
            )

    def check(self) -> None:
        """Raises the reason of the first folder that is stopped."""
        for folder in self._folders:
            if folder.stopped is not None:
                raise folder.stopped

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _present(self, *, fresh: bool) -> RecordFile | None:
        """Returns an open file with a record to take; begins the next file if it has to. None if there is none."""
        if self._file is None and not self._is_whole:
            self._open_present()
        while self._file is None or self._file.is_read:
            self.close()
            self._is_whole = True
            if not self._go_on(fresh=fresh):
                return None
        return self._file

    def _open_present(self) -> None:
        """Opens the file that was read in part, unless it is empty, or pipeline.yml lists its table no more.

        Raises SourceGap if it is gone or has other records.
        """
        name = self._begun[self._number]
        folder = self._folder_of(name)
        if folder is None or name.endswith(_EMPTY):
            return
        file = RecordFile(self._objects, name, folder.layout)
        self._file, self._is_whole = file, False
        if self._line:
            file.skip(self._line, self._digest)

    def _go_on(self, *, fresh: bool) -> bool:
        """Begins the next file. Returns whether there is one.

        A file is opened before it is begun, so that a damaged one is refused before it is registered.
        """
        if self._number + 1 in self._begun:
            self._number, self._line, self._digest = self._number + 1, 0, ""
            self._open_present()
            return True
        now, pause = time.monotonic(), self._settings.list_every.total_seconds()
        file = self._next_file(now - pause) or (self._next_file(now) if fresh else None)
        if file is None:
            return False
        self._unbegun.append(file.key + (_EMPTY if file.is_read else ""))
        if not file.is_read:
            self._begin_files()
        self._file, self._is_whole = file, False
        return True

    def _next_file(self, since: float) -> RecordFile | None:
        """Returns the next file, open, of the next folder that has one. Leaves out folders that rest since `since`."""
        for _ in range(len(self._folders)):
            folder = self._folders[0]
            self._folders.rotate(-1)
            file = None if folder.rests_since >= since else self._opened_next(folder)
            if file is not None:
                folder.waiting.popleft()
                folder.rests_since = -math.inf
                return file
        return None

    def _begin_files(self) -> None:
        for name in self._unbegun:
            self._number, self._line, self._digest = self._begin(name), 0, ""
            self._begun[self._number] = name
        self._unbegun.clear()

    def _opened_next(self, folder: _Folder) -> RecordFile | None:
        """Returns the folder's next file, open; None if there is none, or if the folder is stopped: then it rests."""
        tried = folder.rests_since = time.monotonic()
        if folder.refused is not None and folder.refused.rests(self._objects):
            return None
        try:
            if not folder.waiting:
                self._look(folder)
            tried = time.monotonic()
            opened = RecordFile(self._objects, folder.waiting[0], folder.layout) if folder.waiting else None
            if opened is not None:
                opened.check_names(folder.layout.known_by)
        except SettingsError as error:
            folder.stop(refused(error))
            return None
        except SourceGap as error:
            # It was listed and not begun, so a list that lacks it does not show that it ever was there.
            folder.stop(SourceError(error.found, expected=error.expected, remedy=_LISTED_AND_GONE))
            return None
        except SourceError as error:
            if error.outage:
                raise
            folder.stop(error)
            if folder.waiting:
                folder.refused = refused_file(self._objects, folder.waiting[0], tried, self._settings.list_every)
            return None
        folder.stopped = folder.refused = None
        return opened

    def _look(self, folder: _Folder) -> None:
        """Lists the folder's new complete files. The first look lists the whole folder, later ones its last names.

        Raises SourceError for a name that stops the folder, once the files before it were read.
        """
        for name in self._complete.completed(folder.incomplete):
            folder.take(name)
        known, newest = {*folder.known, *folder.incomplete}, folder.known[-1] if folder.known else ""
        left: str | None = None
        for found in self._objects.list_prefix(folder.path, folder.after):
            if found.key in known or is_no_data(found.key, self._settings, folder.path):
                continue
            unfit = unfit_name(found.key, after=newest if self._settings.ordered else "")
            if unfit is not None and not folder.waiting:
                raise unfit
            is_full = unfit is not None or len(folder.waiting) >= _MOST_WAITING
            if not is_full and self._complete.has(found):
                folder.take(found.key)
                continue
            if not is_full and not self._settings.ordered and len(folder.incomplete) < _MOST_INCOMPLETE:
                folder.incomplete.add(found.key)
                continue
            left = left or found.key
            if is_full or self._settings.ordered:
                break
        folder.forget_old(left)

    def _folder_of(self, name: str) -> _Folder | None:
        """Returns the folder of a file, None if pipeline.yml lists its table no more."""
        path = folder_of(name, self._by_path)
        return None if path is None else self._by_path[path]


def present_file(offset: int, begun: Mapping[int, str], digest: str) -> str | None:
    """Returns the name of the file that was read in part; None if the last one was read to its end."""
    return None if digest.endswith(_WHOLE) else begun.get(offset >> LINE_BITS)
