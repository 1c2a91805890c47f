"""The MERGE that applies a claim: computes and counts what happens to each id or row, then merges that.

A claim that changes nothing has no MERGE.
"""

from dataclasses import dataclass, replace

from cdc_pipeline.lake.claim_changes import keyed_changes, keyless_changes, safe_ranges
from cdc_pipeline.lake.claim_view import Views, claim_shape, name_events
from cdc_pipeline.lake.deduplicate_sql import ClaimShape
from cdc_pipeline.lake.delta_log import Commit
from cdc_pipeline.lake.fence import claim_metadata, once
from cdc_pipeline.lake.keyless_sql import merge_copies
from cdc_pipeline.lake.merge_sql import merge_changes
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.shape import Shape
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import ClaimCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMerge:
    """`sql` is None if nothing changes. `counts` lack the rows of the table that a truncate removes."""

    sql: str | None
    counts: ClaimCounts


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
    return _keyed(views, shape, table, work, url)


def claim_confs(table: LakeTable, work: ClaimWork) -> dict[str, str]:
    """Returns the confs for a MERGE only: the fence, the commit's userMetadata, and that its source is kept already."""
    return {**fence_confs(table, work), "spark.databricks.delta.merge.materializeSource": "none"}


def fence_confs(table: LakeTable, work: ClaimWork) -> dict[str, str]:
    """Returns the confs by which Spark's next commit moves the fence over the claim."""
    return {
        **once(table.app_id, work.last_number),
        "spark.databricks.delta.commitInfo.userMetadata": claim_metadata(work, in_history=table.keeps_history),
    }


def counted(commit: Commit, counts: ClaimCounts) -> ClaimCounts:
    """Returns what the claim did, including the rows of the table that its truncate removed."""
    metrics = commit.info.get("operationMetrics", {})
    return replace(
        counts,
        updated=counts.updated + int(metrics.get("numTargetRowsNotMatchedBySourceUpdated", 0)),
        deleted=counts.deleted + int(metrics.get("numTargetRowsNotMatchedBySourceDeleted", 0)),
    )


def _keyed(views: Views, shape: ClaimShape, table: LakeTable, work: ClaimWork, url: str) -> ClaimMerge:
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
