"""The MERGE that applies a claim: a fast way for whole rows in order, a general way for everything else.

The general way first computes and counts what happens to each id or row, then merges that. A claim that changes nothing
has no MERGE.
"""

from dataclasses import dataclass, replace

from cdc_pipeline.lake.claim_changes import is_whole_and_in_order, keyed_changes, keyless_changes, safe_ranges
from cdc_pipeline.lake.claim_view import Views, claim_shape, name_events
from cdc_pipeline.lake.deduplicate_sql import ClaimShape
from cdc_pipeline.lake.delta_log import Commit
from cdc_pipeline.lake.fence import claim_metadata, once
from cdc_pipeline.lake.keyless_sql import merge_copies
from cdc_pipeline.lake.merge_sql import merge_changes, merge_whole_rows
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.shape import Shape
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import ClaimCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMerge:
    """`sql` is None if nothing changes. `counts` is None if only the MERGE itself can count."""

    sql: str | None
    counts: ClaimCounts | None


def claim_merge(
    views: Views,
    store: ObjectStore,
    table: LakeTable,
    work: ClaimWork,
    url: str,
    lake: Shape,
) -> ClaimMerge:
    """Makes the claim's views and returns its MERGE. `table` and `lake` are already fitted to the claim.

    A claim whose slices have no rows only changes columns.
    """
    if not any(content.rows for content in work.slices):
        return ClaimMerge(sql=None, counts=ClaimCounts())
    shape = claim_shape(table, work, lake)
    name_events(views, store, table, work, lake, shape)
    if table.schema.is_keyless:
        return _keyless(views, shape, table, work, url)
    if is_whole_and_in_order(table, work, shape):
        sql = merge_whole_rows(table, url, shape, work.key_ranges)
        return ClaimMerge(sql=sql, counts=None)
    return _general(views, shape, table, work, url)


def claim_confs(table: LakeTable, work: ClaimWork, merge: ClaimMerge) -> dict[str, str]:
    """Returns the confs for this MERGE only: the fence, the commit's userMetadata, and how its source is read."""
    materialized = "auto" if merge.counts is None else "none"
    return {**fence_confs(table, work), "spark.databricks.delta.merge.materializeSource": materialized}


def fence_confs(table: LakeTable, work: ClaimWork) -> dict[str, str]:
    """Returns the confs by which Spark's next commit moves the fence over the claim."""
    return {
        **once(table.app_id, work.last_number),
        "spark.databricks.delta.commitInfo.userMetadata": claim_metadata(work, in_history=table.keeps_history),
    }


def counted(commit: Commit, counts: ClaimCounts | None) -> ClaimCounts:
    """Returns what the claim did, including the rows of the table that its truncate removed."""
    metrics = {name: int(value) for name, value in commit.info.get("operationMetrics", {}).items()}
    if counts is not None:
        return replace(
            counts,
            updated=counts.updated + metrics.get("numTargetRowsNotMatchedBySourceUpdated", 0),
            deleted=counts.deleted + metrics.get("numTargetRowsNotMatchedBySourceDeleted", 0),
        )
    inserted, updated, deleted = (metrics.get(f"numTargetRows{done}", 0) for done in ("Inserted", "Updated", "Deleted"))
    ignored = max(0, metrics.get("numSourceRows", 0) - inserted - updated - deleted)
    return ClaimCounts(inserted=inserted, updated=updated, deleted=deleted, ignored=ignored)


def _general(views: Views, shape: ClaimShape, table: LakeTable, work: ClaimWork, url: str) -> ClaimMerge:
    lake, ranges = table_at(url), safe_ranges(table, work)
    changes = keyed_changes(views, shape, table, work, lake, lake, ranges)
    if not work.truncates and not changes.acts:
        return ClaimMerge(sql=None, counts=changes.counts)
    truncated_at = work.truncated_at if work.truncates else ""
    sql = merge_changes(table, url, shape, ranges, truncated_at=truncated_at)
    return ClaimMerge(sql=sql, counts=changes.counts)


def _keyless(views: Views, shape: ClaimShape, table: LakeTable, work: ClaimWork, url: str) -> ClaimMerge:
    lake = table_at(url)
    changes = keyless_changes(views, shape, table, work, lambda _: lake)
    truncated_at = work.truncated_at if work.truncates else ""
    if not truncated_at and not changes.acts:
        return ClaimMerge(sql=None, counts=changes.counts)
    sql = merge_copies(table, shape, lake, replaced=changes.replaces, truncated_at=truncated_at)
    return ClaimMerge(sql=sql, counts=changes.counts)
