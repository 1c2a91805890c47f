"""Deletes files that VACUUM passes over because of the folder that they are in.

VACUUM takes a folder whose name begins with `_` for hidden, unless a data partition column that the table has now and
`=` begin it. Folders of former data partition columns have other names, and so have those of a column whose name Spark
escapes: it writes `_cdc_a%2Fb_value=1`.
"""

from collections.abc import Iterator
from datetime import datetime
from urllib.parse import unquote

from cdc_pipeline.lake.arrow_actions import plain_actions
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.maintenance import USUAL_RETENTION, delete_leftovers, file_retention
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import OWN_PREFIX

_REMOVED = "remove"


def delete_passed_over(store: ObjectStore, log: DeltaLog, states: LakeTableStates, now: datetime) -> int:
    """Deletes unfinished files of killed writes, and what `delete_unused` deletes. Returns how many files these are."""
    return delete_leftovers(store, log.table_key, now - USUAL_RETENTION) + delete_unused(store, log, states, now)


def delete_unused(store: ObjectStore, log: DeltaLog, states: LakeTableStates, now: datetime) -> int:
    """Deletes unused data files in folders of data partitions by VACUUM's rule, and returns how many.

    A file stays if the latest version has it, or if it was removed or written within `file_retention`. Call it after
    VACUUM, which refuses a log with gaps. Lists the table's folder, so do not call it for a claim; memory grows with
    the files in such folders. Raises LakeError if the log cannot show the latest version.
    """
    latest = log.latest_version()
    if latest is None:
        return 0
    state = states.at(log, latest)
    retention = file_retention(configuration_of(state.metadata))
    if retention is None or state.files.has_files_elsewhere:  # such a path may lead back into this folder
        return 0
    since = int((now - retention).timestamp() * 1000)
    seen = tuple(f"{name}=" for name in state.metadata["partitionColumns"])
    unused = set[str]()
    for found in store.list_prefix(log.table_key):
        is_old = found.written_at is not None and found.written_at < since * 1000
        if is_old and _is_passed_over(found.key.removeprefix(f"{log.table_key}/"), seen):
            unused.add(found.key)
    if unused:
        unused.difference_update(_key(log, path) for path in state.files.paths())
    if unused:
        removed = (file["path"] for file in _removed(log, latest) if int(file.get("deletionTimestamp", 0)) >= since)
        unused.difference_update(_key(log, path) for path in removed)
    store.delete_all(sorted(unused))
    return len(unused)


def _is_passed_over(path: str, seen: tuple[str, ...]) -> bool:
    """Whether only folders of data partitions hide the file. `seen`: how folders begin that VACUUM does not pass over.

    Files in other hidden folders, such as Delta's `_change_data`, are not the pipeline's to delete.
    """
    *folders, name = path.split("/")
    hidden = [folder for folder in folders if folder.startswith((".", "_")) and not folder.startswith(seen)]
    are_partitions = all(folder.startswith(OWN_PREFIX) and "=" in folder for folder in hidden)
    return bool(hidden) and are_partitions and name.endswith(".parquet")


def _removed(log: DeltaLog, latest: int) -> Iterator[Action]:
    """Yields the tombstones of the last checkpoint and of the commits since."""
    checkpoint, keys = log.checkpoint_before(latest)
    for batch in log.checkpoint_batches(keys, frozenset({_REMOVED})):
        yield from plain_actions(batch.column(_REMOVED).drop_null())
    for version in range(checkpoint + 1, latest + 1):
        commit = log.read(version)
        if commit is None:
            raise log.missing(version, latest)
        yield from commit.of_kind(_REMOVED)


def _key(log: DeltaLog, path: str) -> str:
    """Returns the key of a file in the table's folder. Paths in the log are encoded as in URLs."""
    return f"{log.table_key}/{unquote(path)}"
