"""Deletes what killed writes left in a table's folder and Delta's VACUUM passes over, because of its name."""

from collections.abc import Iterator
from datetime import datetime

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from cdc_pipeline.object_store import ObjectStore

_UNFINISHED_FOLDER, _UNFINISHED_FILE = "_temporary", ".pending-"
"""Spark writes files in such a folder before it moves them; the store of a local folder writes such files."""
_LOG = "_delta_log"


def delete_leftovers(store: ObjectStore, folder: str, older_than: datetime) -> int:
    """Deletes unfinished files that were written before `older_than`. Returns how many.

    `folder`: the table's. Lists all folders in it, one after the other, so do not call it for a claim.
    """
    filesystem, root = store.filesystem()
    deleted = 0
    for part in _parts(filesystem, f"{root}/{folder}"):
        keys = [
            info.path.removeprefix(f"{root}/")
            for info in part
            if info.type == FileType.File and _is_unfinished(info.path.removeprefix(f"{root}/{folder}/"))
            if info.mtime is not None and info.mtime < older_than
        ]
        if keys:
            store.delete_all(keys)
        deleted += len(keys)
    return deleted


def _parts(filesystem: FileSystem, path: str) -> Iterator[list[FileInfo]]:
    """Yields what is in the folder itself, and what is anywhere below each of its folders."""
    top = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
    yield top
    for info in top:
        if info.type == FileType.Directory:
            is_log = info.base_name == _LOG
            yield filesystem.get_file_info(FileSelector(info.path, allow_not_found=True, recursive=not is_log))


def _is_unfinished(path: str) -> bool:
    *folders, name = path.split("/")
    return name.startswith(_UNFINISHED_FILE) or _UNFINISHED_FOLDER in folders
