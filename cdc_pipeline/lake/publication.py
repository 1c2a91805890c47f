"""Publishes a snapshot: its files replace the table's whole content, and the fence moves, in one commit."""

import json
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import FenceMismatch, LakeError, SnapshotError
from cdc_pipeline.lake.columns import stats_columns
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.fence import REWOUND_FROM, commit_info, fence_action, read_fence
from cdc_pipeline.lake.ledger import PUBLISHED, properties_of
from cdc_pipeline.lake.ledger_values import PublishedTable
from cdc_pipeline.lake.log_paths import path_in_log
from cdc_pipeline.lake.new_shape import physical_fields, shape_actions
from cdc_pipeline.lake.protocol import NOTHING_APPLIED, Clock, DataFile, Fence, LakePublication, LakeTable
from cdc_pipeline.lake.quoting import identifier
from cdc_pipeline.lake.shape import COLUMNS, GENERATION, HIGHEST, shape_of_source
from cdc_pipeline.lake.table_ddl import STATS, listed_stats
from cdc_pipeline.lake.table_features import check_features
from cdc_pipeline.record import VERSION
from cdc_pipeline.steps import OnStep, step

_CLOCKS_DIFFER_BY = timedelta(hours=1)
"""At most. A snapshot begins by the clock of the metadata store, a commit has the time of its worker."""
KeepDeleted = Callable[[PublishedTable, int], tuple[DataFile, ...]]
"""Takes what a snapshot publishes and a lake version. Returns files of that version's rows that the snapshot lacks."""


def publish(
    log: DeltaLog,
    table: LakeTable,
    content: LakePublication,
    clock: Clock,
    on_step: OnStep,
    keep_deleted: KeepDeleted = lambda _published, _read: (),
) -> int:
    """Returns the lake version that shows the snapshot.

    It is durable and visible on return; repeating the call does nothing. `keep_deleted` is called for a table with soft
    deletes that has rows: the commit adds the files that it returns, too. Raises FenceMismatch if the lake has applied
    slices that the snapshot does not contain, and has changed since `content.replaces`, or if it has another snapshot
    of the table and this one begins it; SnapshotError if the table was written again since the files were written, with
    other names inside; LakeError for a table whose features only Delta's writer maintains.
    """
    with step(on_step, "fence.read"):
        fence = read_fence(log, table.app_id)
        if fence is None:
            raise LakeError(f"there is no lake table {table.name}", remedy="create it before publishing")
        published = _published_version(log, table, content, fence)
    if published is not None:
        return published
    _check_fence(table, content, fence)
    read = fence.lake_version
    with step(on_step, "fence.read"):
        check_features(log, read, "publishing a snapshot")
        old = log.active_files(read).values()
    kept = tuple[DataFile, ...]()
    # An empty beginning says nothing of what the source deleted.
    if old and table.deletes == "soft" and table.schema.key and content.table is not None and not content.begins:
        kept = keep_deleted(content.table, read)
    with step(on_step, "snapshot.publish"):
        log.append(read + 1, _actions(log, table, content, fence, clock, old=old, kept=kept))
    return read + 1


def _check_fence(table: LakeTable, content: LakePublication, fence: Fence) -> None:
    if fence.number > content.fence_number and fence.lake_version != content.replaces:
        raise FenceMismatch(
            f"the lake of {table.name} is at slice {fence.number}",
            expected=f"at most {content.fence_number}, the last slice that snapshot {content.snapshot_id} holds",
            remedy="take a newer snapshot: this one would take applied changes away",
        )
    if content.begins and fence.snapshot_id is not None:
        raise FenceMismatch(
            f"the lake of {table.name} has snapshot {fence.snapshot_id}",
            expected=f"none, since snapshot {content.snapshot_id} begins the table",
            remedy="run it again: that one was published meanwhile",
        )


def _published_version(log: DeltaLog, table: LakeTable, content: LakePublication, fence: Fence) -> int | None:
    """Returns the version that published this snapshot. None if it is not published yet."""
    if fence.number == NOTHING_APPLIED and fence.snapshot_id is None and fence.rewound_from is None:
        return None  # by this id of the table; the log of another one may be long
    since = None if content.started_at is None else content.started_at - _CLOCKS_DIFFER_BY
    for commit in log.backwards(fence.lake_version):
        number = commit.transaction_version(table.app_id)
        if number is None:
            continue
        if number < content.fence_number:
            return None
        if commit.user_metadata.get("snapshot_id") == content.snapshot_id:
            return commit.version
        if since is not None and commit.time < since:
            return None  # a fence of 0 has no lower one, and the log may be long
    return None


def _actions(
    log: DeltaLog,
    table: LakeTable,
    content: LakePublication,
    fence: Fence,
    clock: Clock,
    *,
    old: Collection[Action],
    kept: tuple[DataFile, ...],
) -> list[Action]:
    now = clock()
    milliseconds = int(now.timestamp() * 1000)
    properties = {} if content.table is None else properties_of(content.table)
    metadata: dict[str, Any] = {
        "snapshot_id": content.snapshot_id,
        "rows": sum(file.rows for file in content.files),
        PUBLISHED: properties,
    }
    if fence.number > content.fence_number:
        metadata[REWOUND_FROM] = fence.number
    read = fence.lake_version
    return [
        commit_info(operation="CDC SNAPSHOT", user_metadata=json.dumps(metadata), read_version=read, now=now),
        fence_action(table.app_id, content.fence_number, now),
        *_shape(log, table, content, read, properties),
        *(remove(file, milliseconds) for file in old),
        *(add(table, file, milliseconds) for file in (*content.files, *kept)),
    ]


def _shape(
    log: DeltaLog, table: LakeTable, content: LakePublication, read: int, properties: Mapping[str, str]
) -> list[Action]:
    """Returns actions for the table's columns if the snapshot has others, and for its properties if they change.

    The table may have another id than before, of the same columns: then files get statistics of the new one. A user's
    list of columns with statistics is kept, before it what it lacks; the pipeline's own ends with VERSION.
    """
    actions = shape_actions(log, table, read, content.snapshot_id)
    metadata = next((action["metaData"] for action in actions if "metaData" in action), None) or log.metadata(read)
    _check_names(table, content, metadata)
    known = metadata.get("configuration") or {}
    before = {name: value for name, value in known.items() if name not in (COLUMNS, HIGHEST, GENERATION)}
    configuration = {**before, **properties, **shape_of_source(table.schema).properties()}
    listed, stats = listed_stats(configuration), stats_columns(table)
    missing = [name for name in stats if name not in listed]
    if missing:
        is_own = not listed or listed[-1] == VERSION
        names = map(identifier, stats if is_own else missing)
        configuration[STATS] = ",".join(names if is_own else (*names, configuration[STATS]))
    if configuration == metadata.get("configuration"):
        return actions
    others = [action for action in actions if "metaData" not in action]
    return [*others, {"metaData": {**metadata, "configuration": configuration}}]


def _check_names(table: LakeTable, content: LakePublication, metadata: Action) -> None:
    """Raises SnapshotError if the files have other names inside than `metadata` says: they would read as NULL."""
    inside = {name for name, _ in physical_fields(metadata).values()}
    counted = (json.loads(file.stats).get("nullCount", {}).keys() for file in content.files)
    others = next((names - inside for names in counted if names - inside), None)
    if others:
        raise SnapshotError(
            f"files of snapshot {content.snapshot_id} of {table.name} have columns named {', '.join(sorted(others))}",
            expected="the names that the lake's table has inside its files",
            remedy="run cdc snapshot again: the table was written again while this one was taken",
        )


def add(table: LakeTable, file: DataFile, milliseconds: int) -> Action:
    return {
        "add": {
            "path": path_in_log(file.key.removeprefix(f"{lake_key(table.name)}/")),
            "partitionValues": dict(file.partition_values),
            "size": file.size_bytes,
            "modificationTime": milliseconds,
            "dataChange": True,
            "stats": file.stats,
        }
    }


def remove(file: Action, milliseconds: int) -> Action:
    kept = {name: file[name] for name in ("path", "partitionValues", "size", "deletionVector") if file.get(name)}
    return {
        "remove": {
            "partitionValues": {},
            **kept,
            "deletionTimestamp": milliseconds,
            "dataChange": True,
            "extendedFileMetadata": True,
        }
    }
