"""Computes and counts what happens to the ids, or the rows, of a claim. Append and MERGE both use it."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cdc_pipeline.lake.change_sql import ACT, CHANGE, EFFECT, TIES, Policy, changes
from cdc_pipeline.lake.claim_view import Views, truncates_in
from cdc_pipeline.lake.deduplicate_sql import EVENT, ClaimShape
from cdc_pipeline.lake.keyless_sql import COPIES, NET, count_copies, net_changes, with_copies, without_looking
from cdc_pipeline.lake.lake_rows_sql import MOST_BROADCAST_ROWS
from cdc_pipeline.lake.moves_sql import resolve_moves
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange, LakeTable
from cdc_pipeline.lake.quoting import text_literal
from cdc_pipeline.record import OPERATION, STATE, VERSION, ClaimCounts

_EFFECTS = ("inserted", "updated", "deleted", "ignored", "incomplete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """`acts`: whether any row of the table changes. `replaces`: whether existing rows are deleted or replaced.

    `replaced`: of a table with a key, file -> indexes of these rows, if the lake's rows were located.
    """

    counts: ClaimCounts
    acts: bool
    replaces: bool
    replaced: Mapping[str, Sequence[int]] = field(default_factory=dict)


def is_whole_and_in_order(table: LakeTable, work: ClaimWork, shape: ClaimShape) -> bool:
    """Whether every event has its whole row and is newer than the lake's row of its id, and no deleted row stays.

    Then the rows to write depend on the claim alone. A deleted row that stays remembers which columns were known. A
    column that the claim's schema lacks keeps its value.
    """
    one_schema = len({content.schema for content in work.slices}) == 1
    out_of_order = not table.ordered or work.late or work.truncates
    keeps_deleted = table.deletes == "soft" or work.tombstones
    return one_schema and not (out_of_order or work.partial_rows or shape.lacking or keeps_deleted)


def has_few_rows(work: ClaimWork) -> bool:
    """Whether the ids of the claim, and their rows, fit into the memory of every executor."""
    return sum(content.rows for content in work.slices) <= MOST_BROADCAST_ROWS


def safe_ranges(table: LakeTable, work: ClaimWork) -> tuple[KeyRange, ...]:
    """Returns ranges that hold each id that the claim changes; none if it may change ids that it does not have.

    A truncate that comes out of order also changes the rows that are newer than itself.
    """
    in_order = table.ordered and not work.late
    return work.key_ranges if in_order or not work.truncates else ()


def keyed_changes(
    views: Views,
    shape: ClaimShape,
    table: LakeTable,
    work: ClaimWork,
    lake: str,
    moved: str,
    ranges: tuple[KeyRange, ...],
    carried: tuple[str, str] | None = None,
) -> Changes:
    """Makes the view CHANGE and counts it.

    `lake` is SQL of a relation with the lake's rows of the claim's ids, `moved` of one with the rows of the moves' old
    ids. `carried`: the columns of `lake` that locate a row; then `lake` has the rows of the claim's ids alone.
    """
    few = has_few_rows(work)
    if work.truncates and not (table.ordered and not work.late):
        _add_deletes_of_truncate(views, shape, work, lake)
    if work.key_changes:
        truncates = truncates_in(views.session, work)
        emptied_before = "" if work.truncated_at in truncates else work.truncated_at
        resolve_moves(views, shape, moved, emptied_before, truncates, few=few)
    policy = Policy(
        soft=table.deletes == "soft",
        tombstones=work.tombstones or not table.ordered,
        truncated_at=work.truncated_at,
        ties=not table.ordered,
    )
    views.keep_sql(CHANGE, changes(shape, policy, lake, ranges, few=few, carried=carried or ()))
    return _counted(views, carried)


def _counted(views: Views, carried: tuple[str, str] | None) -> Changes:
    """Counts the ids of CHANGE by what happens to them, and gathers the places of the rows that are replaced."""
    file, row = carried or ("CAST(NULL AS STRING)", "CAST(NULL AS BIGINT)")
    sql = f"""
        SELECT {EFFECT} AS effect, {ACT} <> 'none' AS acts, {file} AS file, count(*) AS ids, sum({TIES}) AS ties,
               collect_list({row}) AS rows
        FROM {CHANGE} GROUP BY 1, 2, 3"""
    ids, replaced = dict.fromkeys(_EFFECTS, 0), defaultdict[str, list[int]](list)
    found = views.session.sql(sql).toArrow().to_pylist()
    for group in found:
        ids[group["effect"]] += group["ids"]
        if group["acts"] and group["file"] is not None:
            replaced[group["file"]] += group["rows"]
    counts = ClaimCounts(tied=sum(group["ties"] for group in found), **ids)
    return Changes(counts=counts, acts=any(group["acts"] for group in found), replaces=True, replaced=replaced)


def keyless_changes(
    views: Views, shape: ClaimShape, table: LakeTable, work: ClaimWork, rows_like: Callable[[str], str]
) -> Changes:
    """Makes the view COPIES of a keyless table and counts it.

    `rows_like` takes SQL of contents and returns a relation that has at least the lake's rows with these contents.
    """
    keeps_unmatched = work.tombstones or not table.ordered
    net = views.keep_sql(NET, net_changes(shape))
    (found,) = net.selectExpr("count(*) AS contents", "count_if(_cdc_net < 0) AS less").collect()
    if not found["contents"] and not work.truncates:
        return Changes(counts=ClaimCounts(), acts=False, replaces=False)
    if keeps_unmatched or found["less"]:
        wanted = f"SELECT * FROM {NET}" + ("" if keeps_unmatched else " WHERE _cdc_net < 0")
        copies = with_copies(shape, rows_like(wanted), wanted, work.truncated_at, keeps_unmatched=keeps_unmatched)
    else:
        copies = without_looking(shape)
    views.keep_sql(COPIES, copies)
    (counted,) = views.session.sql(count_copies()).collect()
    counts = ClaimCounts(inserted=counted["inserted"], deleted=counted["deleted"], ignored=counted["ignored"])
    replaces = bool(counted["replaced"])
    return Changes(
        counts=counts, acts=bool(counts.inserted or replaces or (keeps_unmatched and counts.ignored)), replaces=replaces
    )


def _add_deletes_of_truncate(views: Views, shape: ClaimShape, work: ClaimWork, lake: str) -> None:
    """Adds a delete at the truncate's version to EVENT for each newer row of the lake with a STATE.

    Such a row may have columns older than the truncate. For these columns the truncate acts as a delete of the id.
    """
    at = text_literal(work.truncated_at)
    deletes = views.session.sql(
        f"SELECT {shape.keys()}, 'd' AS {OPERATION}, {at} AS {VERSION} FROM {lake}"
        f" WHERE {VERSION} > {at} AND {STATE} IS NOT NULL"
    )
    events = views.session.sql(f"SELECT * FROM {EVENT}")
    views.name(EVENT, events.unionByName(deletes, allowMissingColumns=True))
