"""Maintenance of a lake table: merge small files, write checkpoints, remove tombstones, delete unused files."""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession

from cdc_pipeline.errors import CdcError
from cdc_pipeline.lake.checkpoint import write_checkpoint
from cdc_pipeline.lake.checkpoint_rows import UnknownContent
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.fence import OF_CHECKPOINTS
from cdc_pipeline.lake.lake_rows_sql import DELETION
from cdc_pipeline.lake.protocol import Clock, LakeTable
from cdc_pipeline.lake.quoting import table_at, text_literal
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.session import configured
from cdc_pipeline.lake.spark_errors import spark_calls
from cdc_pipeline.lake.table_state import LakeTableState
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import CONFIRMED, DELETED, PARTIAL, STATE, VERSION
from cdc_pipeline.steps import OnStep, step

logger = structlog.get_logger()

USUAL_RETENTION = timedelta(days=7)
_CHECKPOINT_INTERVAL = 10
"""Delta's default, in versions."""
_FILES_PER_INTERVAL = 100_000
"""The interval grows by itself for each of so many files, so that the cost of checkpoints per commit stays bounded."""
_ROWS_PER_INTERVAL = 1_000_000
"""It also grows for each of so many rows of the last checkpoint.

Most of them can be tombstones: one for each file that each claim of the last days touched.
"""
FILE_RETENTION = "delta.deletedFileRetentionDuration"
_LEFT_TO_DELTA = (
    "delta.checkpoint.writeStatsAsStruct",
    "delta.checkpoint.writeStatsAsJson",
    "delta.checkpointPolicy",
    "delta.setTransactionRetentionDuration",
)
"""Properties that change what a checkpoint contains. Who sets one gets Delta's own checkpoints."""
_TRANSACTION = "spark.databricks.delta.write.txnVersion"
EMPTY_COMMITS = {"spark.databricks.delta.skipRecordingEmptyCommits": "false"}
_CHECKPOINT_CONFS = {
    **EMPTY_COMMITS,
    "spark.databricks.delta.write.txnAppId": OF_CHECKPOINTS,
}
"""The empty commit has an application id of its own. So it cannot move a fence that is still in the session's confs."""


def optimize(session: SparkSession, url: str) -> None:
    """Merges small files.

    Files of at least 16 MiB stay as they are (session confs `optimize.minFileSize`, `maxFileSize`).
    """
    session.sql(f"OPTIMIZE {table_at(url)}").collect()


def checkpoint_when_due(
    open_session: Callable[[], SparkSession],
    store: ObjectStore,
    log: DeltaLog,
    state: LakeTableState,
    clock: Clock,
    on_step: OnStep,
) -> None:
    """Writes a checkpoint of `state.version` if enough versions came after the last one, and deletes expired commits.

    The commit is already durable, so a failure is only logged; the next commit tries again. Delta writes checkpoints of
    logs with content that the pipeline does not know; only that opens a session.
    """
    configuration = configuration_of(state.metadata)
    if state.version - max(state.checkpoint, 0) < _versions_between_checkpoints(state):
        return
    now, retention = clock(), file_retention(configuration)
    try:
        state.checkpoint, _ = log.checkpoint_before(state.version)
        state.checkpoint_rows = log.checkpoint_rows()
        if state.version - max(state.checkpoint, 0) < _versions_between_checkpoints(state):
            return
        if retention is None or any(name in configuration for name in _LEFT_TO_DELTA):
            state.checkpoints_by_delta = True
        if retention is not None and not state.checkpoints_by_delta:
            _write_checkpoint(store, log, state, int((now - retention).timestamp() * 1000), on_step)
            clean_log(store, log, state, now, on_step)
        elif (state.version + 1) % _interval(configuration) == 0:
            _checkpoint_by_delta(open_session(), store.spark_url(log.table_key), state.version + 1, on_step)
    except (CdcError, OSError, pa.ArrowException) as error:
        logger.warning("no checkpoint was written", lake=log.table_key, found=str(error))


def _versions_between_checkpoints(state: LakeTableState) -> int:
    more = max(len(state.files) // _FILES_PER_INTERVAL, state.checkpoint_rows // _ROWS_PER_INTERVAL)
    return _interval(configuration_of(state.metadata)) * (1 + more)


def _interval(configuration: Mapping[str, str]) -> int:
    return int(configuration.get("delta.checkpointInterval", _CHECKPOINT_INTERVAL))


def _write_checkpoint(
    store: ObjectStore, log: DeltaLog, state: LakeTableState, kept_since: int, on_step: OnStep
) -> None:
    try:
        write_checkpoint(store, log, state.version, kept_since, on_step)
        state.checkpoint = state.version
    except UnknownContent as unknown:
        logger.info("Delta writes the checkpoints of this table", lake=log.table_key, found=str(unknown))
        state.checkpoints_by_delta = True


def _checkpoint_by_delta(session: SparkSession, url: str, version: int, on_step: OnStep) -> None:
    """Makes Spark write a checkpoint of `version`, a multiple of the interval.

    It does so only with a commit of its own, so this commits without rows. It then deletes expired commits, too.
    """
    with (
        spark_calls("writing a checkpoint"),
        configured(session, _CHECKPOINT_CONFS | {_TRANSACTION: str(version)}),
        step(on_step, "lake_log.checkpoint"),
    ):
        commit_nothing(session, url)


def commit_nothing(session: SparkSession, url: str) -> None:
    """Commits without rows, if the session's confs allow an empty commit."""
    session.sql(f"INSERT INTO {table_at(url)} SELECT * FROM {table_at(url)} WHERE false").collect()


def purge(session: SparkSession, table: LakeTable, url: str, below_version: str) -> None:
    """Removes tombstones with a lower version. Incomplete rows stay, because they are not deleted.

    There is no commit if there is nothing to remove. Reads little more than the footers of files without hidden rows.
    """
    if not table.is_history:
        columns = session.read.format("delta").load(url).columns
        if table.deletes == "soft" or STATE not in columns:
            return
    session.sql(f"DELETE FROM {table_at(url)} WHERE {is_tombstone(table, below_version)}").collect()


def is_tombstone(table: LakeTable, below_version: str) -> str:
    """Returns SQL that is true for the tombstones with a lower version.

    It names DELETED bare: by that Spark passes over row groups whose statistics say that no row is hidden.
    """
    older = f"{VERSION} < {text_literal(below_version)}"
    if table.is_history:
        last = f"coalesce(array_max(map_keys({CONFIRMED})), {VERSION}) < {text_literal(below_version)}"
        return f"{DELETED} AND {PARTIAL} IS NULL AND {older} AND {last}"
    dead = f"{DELETION} >= {VERSION}" if table.schema.key else "true"
    return f"{DELETED} AND {dead} AND {older}"


def vacuum(session: SparkSession, url: str) -> None:
    """Deletes files that only versions refer to which were replaced longer ago than `file_retention`."""
    session.sql(f"VACUUM {table_at(url)}").collect()  # Delta ignores every RETAIN other than 0 HOURS


_UNFINISHED_FOLDER = "_temporary"
"""Spark writes files in such a folder before it moves them."""


def delete_leftovers(store: ObjectStore, folder: str, older_than: datetime) -> int:
    """Deletes unfinished files that were written before `older_than`. Returns how many.

    `folder`: the table's. Lists everything in it, so do not call it for a claim.
    """
    keys = [found.key for found in store.list_prefix(folder) if _is_unfinished(found.key.removeprefix(f"{folder}/"))]
    filesystem, root = store.filesystem()
    written = [info.mtime for info in filesystem.get_file_info([f"{root}/{key}" for key in keys])]
    old = [key for key, at in zip(keys, written, strict=True) if at is not None and at < older_than]
    old += [found.key for found in store.unfinished(folder, older_than)]
    store.delete_all(old)
    return len(old)


def _is_unfinished(path: str) -> bool:
    return _UNFINISHED_FOLDER in path.split("/")[:-1]


_VERSIONED = re.compile(r"(?:\d{20}\.)?(\d{20})\.(?:json|crc|compacted\.json|checkpoint\..+)")
"""An object of the log. The number is its version; for compacted commits the last one."""
_SWITCH, _RETENTION = "delta.enableExpiredLogCleanup", "delta.logRetentionDuration"
_LONGEST = "interval 30 days"
_AMOUNT = re.compile(r"(\d+) (week|day|hour|minute|second|millisecond|microsecond)s?")


def clean_log(store: ObjectStore, log: DeltaLog, state: LakeTableState, now: datetime, on_step: OnStep) -> int:
    """Deletes objects that only versions older than `delta.logRetentionDuration` need. Returns their number.

    Every version that was the latest at some time since then can still be read. Like Delta, this counts whole days, so
    it lists and deletes once a day. At other times it reads at most a few objects, whatever the length of the log: what
    a process before this one has deleted shows in the log itself.
    """
    latest, configuration = state.version, configuration_of(state.metadata)
    retention = duration_of(configuration.get(_RETENTION, _LONGEST))
    if configuration.get(_SWITCH, "").lower() == "false" or retention is None:
        return 0
    cutoff = (now - retention).replace(hour=0, minute=0, second=0, microsecond=0)
    if cutoff == state.cleaned_before:
        return 0
    # Versions are deleted from the oldest on, so those that exist are the last ones.
    oldest = bisect_left(range(latest), 1, key=lambda version: int(log.exists(version)))
    if _time_of(log, oldest) >= cutoff:
        return 0
    young = bisect_left(range(oldest, latest + 1), cutoff, key=lambda version: _time_of(log, version))
    last_expired = oldest + young - 1
    if last_expired - oldest < _versions_between_checkpoints(state):
        state.cleaned_before = cutoff  # the oldest version is the checkpoint that the last clean-up kept
        return 0
    kept_from, _ = log.checkpoint_before(last_expired)
    with step(on_step, "lake_log.clean"):
        expired = [found.key for found in store.list_prefix(log.folder) if _version_of(found.key) < kept_from]
        store.delete_all(sorted(expired, key=_version_of))
    state.cleaned_before = cutoff
    return len(expired)


def file_retention(configuration: Mapping[str, str]) -> timedelta | None:
    """Returns for how long files of replaced versions are kept. None if the table property cannot be read."""
    text = configuration.get(FILE_RETENTION)
    return USUAL_RETENTION if text is None else duration_of(text)


def duration_of(text: str) -> timedelta | None:
    """Returns the duration of a table property such as `interval 7 days`. None if it is written in another way."""
    words = text.strip().lower().removeprefix("interval ")
    amounts = _AMOUNT.findall(words)
    if not amounts or _AMOUNT.sub("", words).strip():
        return None
    return sum((timedelta(**{f"{unit}s": int(amount)}) for amount, unit in amounts), timedelta())


def _time_of(log: DeltaLog, version: int) -> datetime:
    """Returns the time of a commit. A commit without a time counts as young and is kept."""
    commit = log.read(version)
    return commit.time if commit is not None and "timestamp" in commit.info else datetime.max.replace(tzinfo=UTC)


def _version_of(key: str) -> float:
    found = _VERSIONED.fullmatch(key.rpartition("/")[2])
    return int(found[1]) if found else float("inf")
