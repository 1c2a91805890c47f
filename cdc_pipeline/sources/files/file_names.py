"""What the names of change files say: which are read, which are complete, and to which folder they belong."""

import re
from collections.abc import Container

from cdc_pipeline.errors import ObjectMissing
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.settings.change_files import ChangeFilesSource

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
