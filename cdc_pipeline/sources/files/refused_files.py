"""Remembers a large change file that cannot be read, so that a look does not copy it again for nothing."""

import time
from dataclasses import dataclass
from datetime import timedelta

from cdc_pipeline.errors import ObjectMissing, SettingsError
from cdc_pipeline.object_store import ObjectStore

_TRIES_APART = 10
"""The pause after a try is so many times as long as the try took: no other folder is read during a try."""
_LONGEST_PAUSE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFile:
    """`written`: that of `ObjectInfo` after the try. `again`: when it is tried again, by the monotonic clock."""

    key: str
    written: str
    again: float

    def rests(self, objects: ObjectStore) -> bool:
        """Returns whether it is not to be tried now: it is the same file, and the pause is not over."""
        return time.monotonic() < self.again and _written(objects, self.key) == self.written


def refused_file(objects: ObjectStore, key: str, tried: float, pause: timedelta) -> RefusedFile | None:
    """Returns the file, which was tried from `tried` until now; None if `pause` is long enough.

    The pause ends also where the file stays the same: it may be whole, and have had no room or no memory.
    """
    now = time.monotonic()
    again = now + min(_TRIES_APART * (now - tried), _LONGEST_PAUSE_SECONDS)
    written = None if again <= now + pause.total_seconds() else _written(objects, key)
    return None if written is None else RefusedFile(key=key, written=written, again=again)


def _written(objects: ObjectStore, key: str) -> str | None:
    try:
        return objects.head(key).written
    except (ObjectMissing, SettingsError):
        return None
