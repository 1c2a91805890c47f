"""Rewinds a table: restores content and fence of an older version in one new commit."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cdc_pipeline.errors import FenceMismatch, LakeError
from cdc_pipeline.lake.delta_log import Action, Commit, DeltaLog
from cdc_pipeline.lake.fence import REWOUND_FROM, commit_info, fence_action, fence_of, read_fence
from cdc_pipeline.lake.maintenance import file_retention
from cdc_pipeline.lake.new_shape import both_protocols
from cdc_pipeline.lake.protocol import Clock, Fence, LakeTable
from cdc_pipeline.lake.publication import remove
from cdc_pipeline.lake.reshaping import configuration_of
from cdc_pipeline.lake.table_features import check_features
from cdc_pipeline.steps import OnStep, step

_ADDED = ("path", "partitionValues", "size", "modificationTime", "stats", "tags", "deletionVector")


def rewind(
    log: DeltaLog, table: LakeTable, to_version: int, clock: Clock, on_step: OnStep, *, fence_then: int | None = None
) -> Fence:
    """Returns the fence after the rewind, which is durable and visible on return. Repeating the call does nothing.

    Raises LakeError if the log of `to_version` is gone or its files may be, or if only Delta's writer may commit;
    FenceMismatch if its fence had another number than `fence_then`.
    """
    now = clock()
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
        kept = file_retention(configuration_of(log.metadata(fence.lake_version))) or timedelta()
        _check_kept(log, table, to_version, now, kept)
        check_features(log, fence.lake_version, "a rewind")
        then, latest = log.active_files(to_version), log.active_files(fence.lake_version)
        shape = _shape_then(log, to_version, fence.lake_version)
    milliseconds = int(now.timestamp() * 1000)
    metadata = json.dumps(commit.user_metadata | {REWOUND_FROM: fence.number}, separators=(",", ":"))
    actions: list[Action] = [
        commit_info(operation="CDC REWIND", user_metadata=metadata, read_version=fence.lake_version, now=now),
        fence_action(table.app_id, number, now),
        *shape,
        *(remove(file, milliseconds) for identity, file in latest.items() if identity not in then),
        *(_add(file) for identity, file in then.items() if identity not in latest),
    ]
    with step(on_step, "lake_table.rewind"):
        log.append(fence.lake_version + 1, actions)
    return replace(fence_of(commit, number, latest=fence.lake_version + 1), rewound_from=fence.number)


def _shape_then(log: DeltaLog, version: int, latest: int) -> list[Action]:
    """Returns protocol and metadata of the older version; nothing if its metadata equals the latest.

    The protocol has the features of both versions, because a rewind never removes a feature.
    """
    then, now = log.metadata(version), log.metadata(latest)
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


def _check_kept(log: DeltaLog, table: LakeTable, version: int, now: datetime, kept: timedelta) -> None:
    """Raises LakeError if maintenance may have deleted files of `version`.

    Maintenance keeps a version's files for as long as `kept` after the next version. One hour of it is reserve.
    """
    following = log.read(version + 1)
    if following is None:
        return
    since = datetime.fromtimestamp(int(following.info.get("timestamp", 0)) / 1000, UTC)
    if now - since > kept - timedelta(hours=1):
        raise LakeError(
            f"version {version} of {table.name} was replaced at {since:%Y-%m-%dT%H:%M:%SZ}",
            expected=f"less than {kept} ago: maintenance may have deleted its files",
            remedy="choose a later position, or take a new snapshot",
        )


def _add(file: Action) -> Action:
    return {"add": {name: file[name] for name in _ADDED if file.get(name) is not None} | {"dataChange": True}}
