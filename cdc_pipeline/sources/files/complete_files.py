"""Decides which change files are complete, by the rule that `complete` of the source chooses."""

import math
import time
from datetime import timedelta

import structlog

from cdc_pipeline.errors import ObjectMissing
from cdc_pipeline.object_store import ObjectInfo, ObjectStore
from cdc_pipeline.settings.change_files import ChangeFilesSource
from cdc_pipeline.sources.files.file_names import is_marked

log = structlog.get_logger()

_LONGEST_WAIT = timedelta(minutes=5)
_CLOCKS_DIFFER = timedelta(minutes=1)


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
