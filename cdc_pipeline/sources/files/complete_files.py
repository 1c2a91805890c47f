"""Decides which change files are read: by folders and names, and by the rule that `complete` of the source chooses."""

import math
import re
import time
from collections.abc import Collection, Container
from datetime import timedelta

import structlog

from cdc_pipeline.errors import ObjectMissing, SettingsError
from cdc_pipeline.object_store import ObjectInfo, ObjectStore
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.change_files import ChangeFilesSource

log = structlog.get_logger()

_LONGEST_WAIT = timedelta(minutes=5)
_CLOCKS_DIFFER = timedelta(minutes=1)
_HIDDEN = (".", "_")
_HIDDEN_FOLDER = re.compile(r"\.|_[^=]*$")
"""`_day=1` is none: folders of a column's values have such names."""
_UNFINISHED = (".tmp", ".part", ".inprogress", ".crc")
_FULL_LOAD = re.compile(r"LOAD[0-9A-Fa-f]+\..*")


def is_no_data(key: str, settings: ChangeFilesSource, folder: str) -> bool:
    """Returns whether a file of `folder` is never read: it is hidden, unfinished, a marker, or of a full load."""
    name = key.rpartition("/")[2]
    full_load = settings.format == "dms" and _FULL_LOAD.fullmatch(name) is not None
    return full_load or is_hidden(key.removeprefix(f"{folder}/")) or name.endswith((*_UNFINISHED, settings.marker))


def is_hidden(key: str) -> bool:
    """Returns whether the name of the file, or of a folder before it, begins with `.` or `_`."""
    *folders, name = key.split("/")
    return name.startswith(_HIDDEN) or any(map(_HIDDEN_FOLDER.match, folders))


def is_marked(objects: ObjectStore, key: str, settings: ChangeFilesSource) -> bool:
    """Returns whether the file's marker is there; True if no markers are written."""
    if settings.complete != "marked":
        return True
    try:
        objects.head(key + settings.marker)
    except ObjectMissing:
        return False
    return True


def folder_of(name: str, folders: Container[str]) -> str | None:
    """Returns the innermost of these folders that has the file, None if none has it."""
    above = name
    while above:
        above = above.rpartition("/")[0]
        if above in folders:
            return above
    return None


def table_folders(settings: ChangeFilesSource, tables: Collection[TableSettings]) -> dict[str, TableSettings | None]:
    """Returns each table by its folder. Only Debezium's events may share a folder: they name their tables.

    Raises SettingsError if two tables have one folder.
    """
    folders: dict[str, TableSettings | None] = {}
    for table in tables:
        folder = settings.folder_of(table.table)
        if folder in folders and settings.format != "debezium":
            raise SettingsError(
                f"{table.name} and another table have the folder {folder!r} below source.path",
                expected="one folder per table: such files do not name their table",
                remedy="write {table} into source.folder in pipeline.yml",
            )
        folders[folder] = None if folder in folders else table
    return folders


class CompleteFiles:
    """Remembers the files that are not complete yet. Logs one that waits for its marker longer than `longest`."""

    def __init__(self, objects: ObjectStore, settings: ChangeFilesSource, longest: timedelta = _LONGEST_WAIT) -> None:
        self._objects = objects
        self._settings = settings
        self._longest_wait = longest
        self._changes: dict[str, tuple[str, float]] = {}
        """For each file that has to settle, its last change, and when that was found."""
        self._unmarked: dict[str, float] = {}
        """For each file without its marker, since when it waits; never again for one that was logged."""

    def has(self, found: ObjectInfo) -> bool:
        """Returns whether the file may be read."""
        match self._settings.complete:
            case "marked":
                return self._is_marked(found.key)
            case "settled":
                return self._is_settled(found)
        return True

    def _is_marked(self, key: str) -> bool:
        if is_marked(self._objects, key, self._settings):
            self._unmarked.pop(key, None)
            return True
        now = time.monotonic()
        if now - self._unmarked.setdefault(key, now) >= self._longest_wait.total_seconds():
            self._unmarked[key] = math.inf
            log.warning(
                "a file waits for its marker",
                file=key,
                expected=key + self._settings.marker,
                remedy="write it, or move the file away: where names are the order, later files wait for it, too",
            )
        return False

    def completed(self, names: set[str]) -> list[str]:
        """Takes those out of `names` whose files are complete now, and returns them. Forgets those that are gone."""
        found = list[str]()
        for name in sorted(names):
            try:
                is_complete = self.has(self._objects.head(name))
            except ObjectMissing:
                names.discard(name)
                continue
            if is_complete:
                names.discard(name)
                found.append(name)
        return found

    def _is_settled(self, found: ObjectInfo) -> bool:
        now = time.monotonic()
        if found.key not in self._changes and self._is_old(found):
            return True
        before, since = self._changes.get(found.key, ("", now))
        if before != found.written:
            self._changes[found.key] = (found.written, now)
            return False
        if now - since < self._settings.settled_after.total_seconds():
            return False
        del self._changes[found.key]
        return True

    def _is_old(self, found: ObjectInfo) -> bool:
        """Returns whether the file's own time shows that it has settled, so that a new reader need not watch it."""
        # The writer's or the store's clock is trusted to be at most a minute behind this machine's. A clock that is
        # further behind would make a file that grows look settled; one that is ahead makes its files be watched.
        if found.written_at is None:
            return False
        age = time.time_ns() // 1_000 - found.written_at
        return age >= (self._settings.settled_after + _CLOCKS_DIFFER) // timedelta(microseconds=1)
