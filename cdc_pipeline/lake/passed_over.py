"""Deletes files that VACUUM passes over because of the folder that they are in, and all where VACUUM must not run.

VACUUM takes a folder whose name begins with `_` for hidden, unless a data partition column that the table has now and
`=` begin it. Folders of former data partition columns have other names, and so have those of a column whose name Spark
escapes: it writes `_cdc_a%2Fb_value=1`.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
from urllib.parse import unquote

import structlog

from cdc_pipeline.lake.arrow_actions import plain_actions
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.log_paths import has_another_form
from cdc_pipeline.lake.maintenance import USUAL_RETENTION, delete_leftovers, file_retention
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import OWN_PREFIX

logger = structlog.get_logger()

_REMOVED = "remove"


def delete_unneeded(
    store: ObjectStore, log: DeltaLog, states: LakeTableStates, now: datetime, vacuum: Callable[[], None]
) -> None:
    """Deletes the files of a table that nobody needs: unfinished ones of killed writes, and unused ones.

    Calls `vacuum` only if the log has Delta's form of each path that is needed. Otherwise unused data files are deleted
    here; unused files of deletion vectors stay until then.
    """
    is_safe = is_for_vacuum(log, states, now)
    if is_safe:
        vacuum()
    delete_leftovers(store, log.table_key, now - USUAL_RETENTION)
    delete_unused(store, log, states, now, everywhere=not is_safe)


def is_for_vacuum(log: DeltaLog, states: LakeTableStates, now: datetime) -> bool:
    """Returns whether VACUUM finds each file that the latest version has, or that was removed within the retention."""
    latest = log.latest_version()
    if latest is None:
        return True
    state = states.at(log, latest)
    retention = file_retention(configuration_of(state.metadata))
    since = 0 if retention is None else _milliseconds(now - retention)
    others = [path for path in chain(state.files.paths(), _kept(log, latest, since)) if has_another_form(path)]
    if others:
        logger.info("files deleted without VACUUM", lake=log.table_key, names=len(others), such_as=min(others))
    return not others


def delete_unused(
    store: ObjectStore, log: DeltaLog, states: LakeTableStates, now: datetime, *, everywhere: bool = False
) -> int:
    """Deletes unused data files in folders of data partitions by VACUUM's rule, and returns how many.

    A file stays if the latest version has it, or if it was removed or written within `file_retention`. Call it after
    VACUUM, which refuses a log with gaps. Lists the table's folder, so do not call it for a claim; memory grows with
    the files in such folders. `everywhere`: also in the folders that VACUUM does not pass over. Raises LakeError if the
    log cannot show the latest version.
    """
    latest = log.latest_version()
    if latest is None:
        return 0
    state = states.at(log, latest)
    retention = file_retention(configuration_of(state.metadata))
    if retention is None or state.files.has_files_elsewhere:  # such a path may lead back into this folder
        return 0
    since = _milliseconds(now - retention)
    seen = tuple(f"{name}=" for name in state.metadata["partitionColumns"])
    unused = set[str]()
    for found in store.list_prefix(log.table_key):
        is_old = found.written_at is not None and found.written_at < since * 1000
        if is_old and _is_data_file(found.key.removeprefix(f"{log.table_key}/"), seen, everywhere=everywhere):
            unused.add(found.key)
    if unused:
        unused.difference_update(_key(log, path) for path in state.files.paths())
    if unused:
        unused.difference_update(_key(log, path) for path in _kept(log, latest, since))
    store.delete_all(sorted(unused))
    return len(unused)


def _is_data_file(path: str, seen: tuple[str, ...], *, everywhere: bool) -> bool:
    """Whether only folders of data partitions hide the file. `seen`: how folders begin that VACUUM does not pass over.

    `everywhere`: or none hides it. Files in other hidden folders, such as Delta's `_change_data`, are not the
    pipeline's to delete.
    """
    *folders, name = path.split("/")
    hidden = [folder for folder in folders if folder.startswith((".", "_")) and not folder.startswith(seen)]
    are_partitions = all(folder.startswith(OWN_PREFIX) and "=" in folder for folder in hidden)
    return (everywhere or bool(hidden)) and are_partitions and name.endswith(".parquet")


def _kept(log: DeltaLog, latest: int, since: int) -> Iterator[str]:
    """Yields the paths of the files that were removed at `since`, in milliseconds since 1970, or later."""
    return (file["path"] for file in _removed(log, latest) if int(file.get("deletionTimestamp", 0)) >= since)


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


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)
