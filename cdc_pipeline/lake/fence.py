"""The fence of a table: reads it from the Delta log without Spark, and builds the commits that move it."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from cdc_pipeline.errors import FenceMismatch
from cdc_pipeline.lake.delta_log import Action, Commit, DeltaLog
from cdc_pipeline.lake.ledger_values import SliceIdentity
from cdc_pipeline.lake.protocol import NOTHING_APPLIED, ClaimWork, Fence, app_id_of
from cdc_pipeline.lake.table_features import has_unknown_features

REWOUND_FROM = "rewound_from"
AGAIN = "again"
"""Key in the metadata of a commit that only repeats the fence of an older commit."""
_IN_HISTORY = "history"
OF_CHECKPOINTS = app_id_of("checkpoint")
"""The application id of commits that only make Delta write a checkpoint."""
_FEW_COMMITS = 10
"""Read without a look at the checkpoint: that costs a read, too, and the fence has nearly always moved in them."""


def read_fence(log: DeltaLog, app_id: str) -> Fence | None:
    """Returns the table's fence, or None if there is no table.

    Each commit since the last one that moved the fence costs one read. If the log before a checkpoint was cleaned,
    or belongs to the table as it was registered before, one column of the checkpoint is read.
    """
    latest = log.latest_version()
    if latest is None:
        return None
    known = _moves(log, app_id, latest)
    for commit, number in known:
        return replace(fence_of(commit, number, latest=latest), repeated_at=_repeated_at(commit, known))
    numbers = [int(txn["version"]) for txn in log.checkpointed("txn") if txn["appId"] == app_id]
    number = max(numbers, default=NOTHING_APPLIED)
    return Fence(number=number, claim_id="", slices=(), lake_version=latest, snapshot_id=None)


def _repeated_at(newest: Commit, older: Iterator[tuple[Commit, int]]) -> int | None:
    """Returns the earliest version in which one of the newest claims applied slices that the lake already had, or None.

    This happens when a worker checks the fence and pauses, its claim is given up, and another claim with a lower end is
    applied. When the worker then merges, Delta sees a greater number than the last and accepts the commit.
    """
    repeated, commit = None, newest
    while REWOUND_FROM not in commit.user_metadata and (AGAIN in commit.user_metadata or _is_claim(commit)):
        earlier, number = next(older, (None, NOTHING_APPLIED))
        if earlier is None:
            break
        if AGAIN not in commit.user_metadata:
            if int(commit.user_metadata["first"]) > number:
                break
            repeated = commit.version
        commit = earlier
    return repeated


def _is_claim(commit: Commit) -> bool:
    return commit.user_metadata.get("first") is not None and REWOUND_FROM not in commit.user_metadata


def _moves(log: DeltaLog, app_id: str, latest: int) -> Iterator[tuple[Commit, int]]:
    """Yields the commits that moved the fence, and its number, from the newest to the oldest that the log still has.

    If no commit since the last checkpoint moved it, and the checkpoint has fences of the table's other ids alone, no
    older commit did, and none is read.
    """
    checkpoint, keys, is_ours = latest, list[str](), False
    for passed, commit in enumerate(log.backwards(latest)):
        number = commit.transaction_version(app_id)
        if number is not None:
            is_ours = True
            yield commit, number
        if passed == _FEW_COMMITS and not is_ours:
            checkpoint, keys = log.checkpoint_before(latest)
        if passed >= _FEW_COMMITS and not is_ours and commit.version <= checkpoint:
            if _is_of_others(log, keys, app_id):
                return
            is_ours = True


def _is_of_others(log: DeltaLog, keys: list[str], app_id: str) -> bool:
    """Whether this checkpoint has the fence of another id of the table alone.

    That it lacks `app_id` is not enough: by `delta.setTransactionRetentionDuration` Delta leaves old fences out. But
    then those of ids that the table had before are older, and left out, too.
    """
    fences = {str(txn["appId"]) for txn in log.in_checkpoint(keys, "txn")} - {OF_CHECKPOINTS}
    return app_id not in fences and any(each.startswith(app_id_of("")) for each in fences)


def find_claim(log: DeltaLog, app_id: str, work: ClaimWork, latest: int) -> Commit | None:
    """Returns the commit that moved the fence to or past `work.last_number`.

    Returns None if there is no such commit, or if the log does not reach back so far.
    """
    found: Commit | None = None
    for commit in log.backwards(latest):
        number = commit.transaction_version(app_id)
        if number is not None and number < work.last_number:
            return found
        if number is not None:
            found = commit
    return found


def prove_applied(commit: Commit | None, work: ClaimWork) -> None:
    """Raises FenceMismatch unless `commit` records each slice of `work` with the same id and hash.

    A commit that publishes a snapshot passes, because the snapshot contains the slices.
    """
    recorded = () if commit is None else recorded_slices(commit)
    if commit is not None and commit.user_metadata.get("snapshot_id"):
        return
    ours = {content.number: content.identity for content in work.slices}
    theirs = {identity.number: identity for identity in recorded}
    differing = sorted(number for number, identity in ours.items() if theirs.get(number) != identity)
    if commit is None or differing:
        raise FenceMismatch(
            f"the lake's log records slice {work.last_number}, but not with the slices of claim {work.claim_id}"
            f" (differing numbers: {differing or 'unknown, the log was cleaned'})",
            expected="the same slice ids and hashes in the lake and in the metadata store",
            remedy="the metadata store may be an older one: do not apply, run cdc rebuild",
        )


def write_again(log: DeltaLog, app_id: str, now: datetime, older_than: timedelta) -> bool:
    """Repeats the last commit that moved the fence, with its number and metadata, in a new commit.

    Returns False if that commit is younger than `older_than`, if the log no longer has it, or if only Delta's writer
    may commit to the table: Delta does not write the same number twice.
    """
    latest = log.latest_version()
    for commit, number in () if latest is None else _moves(log, app_id, latest):
        if now - commit.time < older_than or has_unknown_features(log, latest or 0):
            return False
        words = json.dumps(commit.user_metadata | {AGAIN: True}, separators=(",", ":"))
        info = commit_info(operation="CDC FENCE", user_metadata=words, read_version=latest or 0, now=now)
        log.append((latest or 0) + 1, [info, fence_action(app_id, number, now)])
        return True
    return False


def claim_metadata(work: ClaimWork, *, in_history: bool = False, snapshot_id: str | None = None) -> str:
    """Returns the JSON text that a claim's commit carries as userMetadata.

    `in_history`: the claim is applied to the table's history already, which lacks nothing. `snapshot_id`, in a commit
    of the history: the snapshot right before the claim, which is taken over.
    """
    document = {
        "claim_id": work.claim_id,
        "first": work.first_number,
        "last": work.last_number,
        "position": work.position,
        "slices": [list(content.identity) for content in work.slices],
    } | ({_IN_HISTORY: True} if in_history else {})
    document |= {} if snapshot_id is None else {"snapshot_id": snapshot_id}
    return json.dumps(document, separators=(",", ":"))


def commit_info(*, operation: str, user_metadata: str, read_version: int, now: datetime) -> Action:
    return {
        "commitInfo": {
            "timestamp": int(now.timestamp() * 1000),
            "operation": operation,
            "operationParameters": {},
            "readVersion": read_version,
            "isolationLevel": "Serializable",
            "isBlindAppend": False,
            "engineInfo": "cdc-pipeline",
            "txnId": str(uuid.uuid4()),
            "userMetadata": user_metadata,
        }
    }


def fence_action(app_id: str, number: int, now: datetime) -> Action:
    return {"txn": {"appId": app_id, "version": number, "lastUpdated": int(now.timestamp() * 1000)}}


def recorded_slices(commit: Commit) -> tuple[SliceIdentity, ...]:
    return tuple(
        SliceIdentity(int(number), str(slice_id), str(sha256))
        for number, slice_id, sha256 in commit.user_metadata.get("slices", ())
    )


def fence_of(commit: Commit, number: int, *, latest: int) -> Fence:
    metadata = commit.user_metadata
    return Fence(
        number=number,
        claim_id=str(metadata.get("claim_id", "")),
        slices=recorded_slices(commit),
        lake_version=latest,
        snapshot_id=metadata.get("snapshot_id"),
        rewound_from=metadata.get(REWOUND_FROM),
        in_history=bool(metadata.get(_IN_HISTORY)),
    )


def history_lags(own: Fence, of_table: Fence) -> bool:
    """Returns whether the table has changes that its history, with the fence `own`, does not contain.

    That is so before the history begins, and after the table was kept without a history for a time. A claim that
    changes nothing in the history leaves its fence behind: the table's own commit says that the history had it. A
    snapshot may set the table back to before what the history contains.
    """
    if not has_begun(own) or (own.number < of_table.number and not of_table.in_history):
        return True
    is_snapshot = own.number >= of_table.number and of_table.snapshot_id is not None
    return is_snapshot and own.snapshot_id != of_table.snapshot_id


def has_begun(fence: Fence) -> bool:
    """Returns whether slices or a snapshot came into the lake under this id of the table."""
    return bool(fence.number) or fence.snapshot_id is not None


def once(app_id: str, number: int) -> dict[str, str]:
    """Returns confs by which Spark's commit does nothing if one under `app_id` had this number or a greater one."""
    return {"spark.databricks.delta.write.txnAppId": app_id, "spark.databricks.delta.write.txnVersion": str(number)}
