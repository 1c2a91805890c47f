"""What an upsert did, as the table's log records it."""

import time
from dataclasses import replace

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.claim_merge import counted
from cdc_pipeline.lake.delta_log import Commit
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable, UpsertOutcome
from cdc_pipeline.record import ClaimCounts


def applied(
    commit: Commit | None, table: LakeTable, work: ClaimWork, counts: ClaimCounts | None, started: float
) -> UpsertOutcome:
    """Returns what the claim's commit did. Raises LakeError if `commit` is not the claim's."""
    if commit is None or commit.user_metadata.get("claim_id") != work.claim_id:
        raise LakeError(
            f"claim {work.claim_id} was applied, but no commit of {table.name} carries it",
            expected="a commit with the claim's id",
            remedy="retry: the fence shows whether the claim was applied",
        )
    return UpsertOutcome(
        counts=replace(counted(commit, counts), read=sum(content.rows for content in work.slices)),
        lake_version=commit.version,
        bytes_written=_bytes_added(commit),
        seconds=time.monotonic() - started,
    )


def _bytes_added(commit: Commit) -> int:
    """Counts new data files and deletion vectors. A file that only got a deletion vector was not written again."""
    vectors = [add["deletionVector"] for add in commit.of_kind("add") if add.get("deletionVector")]
    files = [add["size"] for add in commit.of_kind("add") if not add.get("deletionVector")]
    return sum(map(int, files)) + sum(int(vector["sizeInBytes"]) for vector in vectors)


def nothing_new(version: int, *, already: bool, started: float) -> UpsertOutcome:
    seconds = time.monotonic() - started
    return UpsertOutcome(counts=ClaimCounts(), lake_version=version, already_applied=already, seconds=seconds)
