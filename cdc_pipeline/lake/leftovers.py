"""Deletes what killed writes left in a table's folder and Delta's VACUUM passes over, because of its name."""

from datetime import datetime

from cdc_pipeline.object_store import ObjectStore

_UNFINISHED_FOLDER = "_temporary"
"""Spark writes files in such a folder before it moves them."""


def delete_leftovers(store: ObjectStore, folder: str, older_than: datetime) -> int:
    """Deletes unfinished files that were written before `older_than`. Returns how many.

    `folder`: the table's. Lists everything in it, so do not call it for a claim.
    """
    keys = [found.key for found in store.list_prefix(folder) if _is_unfinished(found.key.removeprefix(f"{folder}/"))]
    keys += store.unfinished(folder)
    filesystem, root = store.filesystem()
    written = [info.mtime for info in filesystem.get_file_info([f"{root}/{key}" for key in keys])]
    old = [key for key, at in zip(keys, written, strict=True) if at is not None and at < older_than]
    store.delete_all(old)
    return len(old)


def _is_unfinished(path: str) -> bool:
    return _UNFINISHED_FOLDER in path.split("/")[:-1]
