"""Rewinds a table: restores content and fence of an older version in one new commit."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import FenceMismatch, LakeError
from cdc_pipeline.lake.deletion_vectors import IN_TABLE, vector_path
from cdc_pipeline.lake.delta_log import Action, Commit, DeltaLog
from cdc_pipeline.lake.fence import AGAIN, REWOUND_FROM, commit_info, fence_action, fence_of, read_fence
from cdc_pipeline.lake.maintenance import FILE_RETENTION, file_retention
from cdc_pipeline.lake.new_shape import both_protocols, properties_of_users
from cdc_pipeline.lake.protocol import Clock, Fence, LakeTable
from cdc_pipeline.lake.publication import remove
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.table_features import check_features, check_features_then
from cdc_pipeline.lake.table_files import ELSEWHERE
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.steps import OnStep, step

_ADDED = ("path", "partitionValues", "size", "modificationTime", "stats", "tags", "deletionVector")


def rewind(
    store: ObjectStore, table: LakeTable, to_version: int, clock: Clock, on_step: OnStep, *, fence_then: int | None
) -> Fence:
    """Returns the fence after the rewind, which is durable and visible on return. Repeating the call does nothing.

    Raises LakeError if the log of `to_version` is gone or its files are or may be, or if only Delta's writer may
    commit; FenceMismatch if its fence had another number than `fence_then`, unless that is None.
    """
    now, log = clock(), DeltaLog(store, lake_key(table.name))
    with step(on_step, "fence.read"):
        fence = read_fence(log, table.app_id)
        if fence is None:
            raise LakeError(f"there is no lake table {table.name}", remedy="take its snapshot first")
        commit, number = _fence_at(log, table, to_version)
        if fence_then not in (None, number):
            raise FenceMismatch(
                f"version {to_version} of {table.name} held slices to {number}",
                expected=f"{fence_then}, as the metadata store says",
                remedy="run cdc rebuild: the metadata store does not belong to this lake",
            )
        if fence.rewound_from is not None and fence.number == number:
            return fence
        to_version = _last_alike(log, table, to_version)
        _check_kept(log, table, to_version, now, _kept(log, table, fence.lake_version))
        check_features(log, fence.lake_version, "a rewind")
        then, latest = log.active_files(to_version), log.active_files(fence.lake_version)
        back = [file for identity, file in then.items() if identity not in latest]
        _check_there(store, table, to_version, back)
        shape = _shape_then(log, to_version, fence.lake_version)
    metadata = json.dumps(commit.user_metadata | {REWOUND_FROM: fence.number}, separators=(",", ":"))
    actions: list[Action] = [
        commit_info(operation="CDC REWIND", user_metadata=metadata, read_version=fence.lake_version, now=now),
        fence_action(table.app_id, number, now),
        *shape,
        *(remove(file, int(now.timestamp() * 1000)) for identity, file in latest.items() if identity not in then),
        *map(_add, back),
    ]
    with step(on_step, "lake_table.rewind"):
        log.append(fence.lake_version + 1, actions)
    return replace(fence_of(commit, number, latest=fence.lake_version + 1), rewound_from=fence.number)


def _shape_then(log: DeltaLog, version: int, latest: int) -> list[Action]:
    """Returns protocol and metadata of the older version; nothing if its metadata equals the latest.

    The protocol has the features of both versions, because a rewind never removes a feature. The properties of users
    and those of Delta that depend on no column stay as they are. Raises LakeError if the older version has a feature
    that the pipeline does not maintain.
    """
    check_features_then(log, version)
    then, now = log.metadata(version), log.metadata(latest)
    of_users = properties_of_users(then)
    own = {name: value for name, value in configuration_of(then).items() if name not in of_users}
    then = {**then, "configuration": own | properties_of_users(now)}
    if all(then.get(name) == now.get(name) for name in ("schemaString", "partitionColumns", "configuration")):
        return []
    protocol = both_protocols(log.newest("protocol", latest), log.newest("protocol", version))
    return [{"protocol": protocol}, {"metaData": then}]


def _fence_at(log: DeltaLog, table: LakeTable, version: int) -> tuple[Commit, int]:
    for commit in log.backwards(version):
        number = commit.transaction_version(table.app_id)
        if number is not None:
            return commit, number
    raise LakeError(
        f"the log of {table.name} does not say any more what version {version} held",
        expected="a version whose log is kept",
        remedy="choose a later position, or take a new snapshot",
    )


def _last_alike(log: DeltaLog, table: LakeTable, version: int) -> int:
    """Returns the last version up to which no commit changed rows, shape or fence: its files are the ones kept longest.

    Such commits are those that merge small files or repeat the fence.
    """
    while (following := log.read(version + 1)) is not None:
        files = [*following.of_kind("add"), *following.of_kind("remove")]
        moves_fence = following.transaction_version(table.app_id) is not None and AGAIN not in following.user_metadata
        if moves_fence or following.of_kind("metaData") or any(file.get("dataChange", True) for file in files):
            break
        version += 1
    return version


def _kept(log: DeltaLog, table: LakeTable, latest: int) -> timedelta:
    """Returns for how long maintenance keeps a version's files after the next version."""
    configuration = configuration_of(log.metadata(latest))
    kept = file_retention(configuration)
    if kept is None:
        raise LakeError(
            f"the property {FILE_RETENTION} of {table.name} is {configuration[FILE_RETENTION]!r}",
            expected="a duration such as interval 7 days",
            remedy="set it by ALTER TABLE … SET TBLPROPERTIES in Spark, and rewind again",
        )
    return kept


def _check_kept(log: DeltaLog, table: LakeTable, version: int, now: datetime, kept: timedelta) -> None:
    """Raises LakeError if maintenance may have deleted files of `version`. One hour of `kept` is reserve."""
    following = log.read(version + 1)
    if following is None:
        return
    since = datetime.fromtimestamp(int(following.info.get("timestamp", 0)) / 1000, UTC)
    if now - since > kept - timedelta(hours=1):
        raise _gone(
            f"version {version} of {table.name} was replaced at {since:%Y-%m-%dT%H:%M:%SZ}",
            expected=f"less than {kept} ago: maintenance may have deleted its files",
        )


def _check_there(store: ObjectStore, table: LakeTable, version: int, files: Iterable[Action]) -> None:
    """Raises LakeError if one of these files of `version` is gone: they may have been kept for a shorter time once."""
    folder = lake_key(table.name)
    needed = {key for file in files for key in _keys(folder, file)}
    if needed:
        needed.difference_update(found.key for found in store.list_prefix(folder))
    if needed:
        raise _gone(
            f"version {version} of {table.name} lacks {len(needed)} of its files, such as {min(needed)}",
            expected="all of them: maintenance has deleted these",
        )


def _keys(folder: str, file: Action) -> Iterator[str]:
    """Yields the keys of a data file and of its deletion vector, unless they lie outside the table's folder."""
    if not re.search(ELSEWHERE, file["path"]):
        yield f"{folder}/{unquote(file['path'])}"
    vector = file.get("deletionVector") or {}
    if vector.get("storageType") == IN_TABLE:
        yield f"{folder}/{vector_path(vector['pathOrInlineDv'])}"


def _gone(found: str, *, expected: str) -> LakeError:
    return LakeError(found, expected=expected, remedy="choose a later position, or take a new snapshot")


def _add(file: Action) -> Action:
    return {"add": {name: file[name] for name in _ADDED if file.get(name) is not None} | {"dataChange": True}}
