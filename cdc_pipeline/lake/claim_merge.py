"""The MERGE that applies a claim: the fast way for whole rows that come in order, the general way for everything else.

The general way computes first what becomes of every id or row, which is counted, and merges that. A claim that changes
nothing has no MERGE.
"""

from dataclasses import dataclass, replace

from cdc_pipeline.lake.bag_sql import COPIES, NET, count_copies, merge_copies, net_changes, with_copies, without_looking
from cdc_pipeline.lake.change_sql import ACT, CHANGE, EFFECT, TIES, Policy, changes
from cdc_pipeline.lake.claim_view import Views, fold_shape, name_events, truncates_in
from cdc_pipeline.lake.delta_log import Commit
from cdc_pipeline.lake.fence import claim_metadata
from cdc_pipeline.lake.fold_sql import EVENT, FoldShape
from cdc_pipeline.lake.lake_rows_sql import MOST_BROADCAST_ROWS
from cdc_pipeline.lake.merge_sql import merge_changes, merge_complete_rows
from cdc_pipeline.lake.moves_sql import resolve_moves
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable
from cdc_pipeline.lake.quoting import table_at, text_literal
from cdc_pipeline.lake.shape import Shape
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import OPERATION, STATE, VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Ids (of a bag: rows), as UpsertOutcome has them. Rows that a truncate takes are not among them."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    parked: int = 0
    tied: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMerge:
    """`sql` None: nothing changes. `counts` None: only the MERGE itself can count."""

    sql: str | None
    counts: Counts | None


def claim_merge(
    views: Views,
    store: ObjectStore,
    table: LakeTable,
    work: ClaimWork,
    url: str,
    lake: Shape,
) -> ClaimMerge:
    """`table` and `lake` as they fit the claim. A claim may carry nothing but a change of columns."""
    if not any(content.rows for content in work.slices):
        return ClaimMerge(sql=None, counts=Counts())
    shape = fold_shape(table, work, lake)
    name_events(views, store, table, work, lake, shape)
    if table.schema.is_bag:
        return _bag(views, shape, table, work, url)
    if is_fast(table, work, shape):
        sql = merge_complete_rows(table, url, shape, work.key_ranges, tombstones=work.tombstones)
        return ClaimMerge(sql=sql, counts=None)
    return _general(views, shape, table, work, url)


def claim_confs(table: LakeTable, work: ClaimWork, merge: ClaimMerge) -> dict[str, str]:
    """For the MERGE and nothing else: the fence, what the log is to say about it, and how its source is read."""
    return {
        "spark.databricks.delta.write.txnAppId": table.app_id,
        "spark.databricks.delta.write.txnVersion": str(work.last_number),
        "spark.databricks.delta.commitInfo.userMetadata": claim_metadata(work),
        "spark.databricks.delta.merge.materializeSource": "auto" if merge.counts is None else "none",
    }


def counted(commit: Commit, merge: ClaimMerge) -> Counts:
    """What the claim did, with what its truncate took from the rest of the table."""
    metrics = {name: int(value) for name, value in commit.info.get("operationMetrics", {}).items()}
    if merge.counts is not None:
        return replace(
            merge.counts,
            updated=merge.counts.updated + metrics.get("numTargetRowsNotMatchedBySourceUpdated", 0),
            deleted=merge.counts.deleted + metrics.get("numTargetRowsNotMatchedBySourceDeleted", 0),
        )
    inserted, updated, deleted = (metrics.get(f"numTargetRows{done}", 0) for done in ("Inserted", "Updated", "Deleted"))
    ignored = max(0, metrics.get("numSourceRows", 0) - inserted - updated - deleted)
    return Counts(inserted=inserted, updated=updated, deleted=deleted, ignored=ignored)


def is_fast(table: LakeTable, work: ClaimWork, shape: FoldShape) -> bool:
    """Every event tells its whole row, and is newer than whatever the lake has of its id."""
    one_schema = len({content.schema for content in work.slices}) == 1
    out_of_order = not table.ordered or work.late or work.truncates
    return one_schema and not out_of_order and not work.partial_rows and not (work.key_changes and shape.lacking)


def _general(views: Views, shape: FoldShape, table: LakeTable, work: ClaimWork, url: str) -> ClaimMerge:
    few = sum(content.rows for content in work.slices) <= MOST_BROADCAST_ROWS
    in_order = table.ordered and not work.late
    if work.truncates and not in_order:
        _delete_what_a_truncate_cuts_short(views, shape, work, url)
    if work.key_changes:
        truncates = truncates_in(views.session, work)
        emptied_before = "" if work.truncated_at in truncates else work.truncated_at
        resolve_moves(views, shape, url, emptied_before, truncates, few=few)
    policy = Policy(
        soft=table.deletes == "soft",
        tombstones=work.tombstones or not table.ordered,
        truncated_at=work.truncated_at,
        ties=not table.ordered,
    )
    views.keep_sql(CHANGE, changes(shape, policy, url, work.key_ranges if in_order else (), few=few))
    found = views.session.sql(
        f"SELECT {EFFECT} AS effect, {ACT} <> 'none' AS acts, count(*) AS ids, sum({TIES}) AS ties"
        f" FROM {CHANGE} GROUP BY 1, 2"
    ).collect()
    ids = {
        effect: sum(row["ids"] for row in found if row["effect"] == effect)
        for effect in ("inserted", "updated", "deleted", "ignored", "parked")
    }
    counts = Counts(tied=sum(row["ties"] for row in found), **ids)
    if not work.truncates and not any(row["acts"] for row in found):
        return ClaimMerge(sql=None, counts=counts)
    truncated_at = work.truncated_at if work.truncates else ""
    ranges = work.key_ranges if in_order else ()
    return ClaimMerge(sql=merge_changes(table, url, shape, ranges, truncated_at=truncated_at), counts=counts)


def _delete_what_a_truncate_cuts_short(views: Views, shape: FoldShape, work: ClaimWork, url: str) -> None:
    """A row newer than the truncate may have columns that are older: for them the truncate is a delete of their id."""
    at = text_literal(work.truncated_at)
    deletes = views.session.sql(
        f"SELECT {shape.keys()}, 'd' AS {OPERATION}, {at} AS {VERSION} FROM {table_at(url)}"
        f" WHERE {VERSION} > {at} AND {STATE} IS NOT NULL"
    )
    events = views.session.sql(f"SELECT * FROM {EVENT}")
    views.name(EVENT, events.unionByName(deletes, allowMissingColumns=True))


def _bag(views: Views, shape: FoldShape, table: LakeTable, work: ClaimWork, url: str) -> ClaimMerge:
    owing = work.tombstones or not table.ordered
    net = views.keep_sql(NET, net_changes(shape))
    (found,) = net.selectExpr("count(*) AS contents", "count_if(_cdc_net < 0) AS less").collect()
    if not found["contents"] and not work.truncates:
        return ClaimMerge(sql=None, counts=Counts())
    looks = owing or found["less"]
    views.keep_sql(COPIES, with_copies(shape, url, work.truncated_at, owing=owing) if looks else without_looking(shape))
    (counted,) = views.session.sql(count_copies()).collect()
    counts = Counts(inserted=counted["inserted"], deleted=counted["deleted"], ignored=counted["ignored"])
    truncated_at = work.truncated_at if work.truncates else ""
    if not truncated_at and not counts.inserted and not counted["replaced"] and not (owing and counts.ignored):
        return ClaimMerge(sql=None, counts=counts)
    sql = merge_copies(table, shape, url, replaced=bool(counted["replaced"]), truncated_at=truncated_at)
    return ClaimMerge(sql=sql, counts=counts)
