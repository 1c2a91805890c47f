"""Computes, without MERGE, the rows that a claim writes and deletes, as SQL over the table's data files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from cdc_pipeline.lake.change_sql import ACT, CHANGE
from cdc_pipeline.lake.claim_changes import (
    Changes,
    has_few_rows,
    is_whole_and_in_order,
    keyed_changes,
    keyless_changes,
    safe_ranges,
)
from cdc_pipeline.lake.claim_view import Views
from cdc_pipeline.lake.deduplicate_sql import EVENT, ClaimShape, deduplicate_whole_rows
from cdc_pipeline.lake.few_events import FewEvents, LiveRows
from cdc_pipeline.lake.keyless_sql import replaced_copies, rows_like, written_copies
from cdc_pipeline.lake.lake_files import FILE, IS_DELETE, IS_NEWER, ROW, LakeFiles
from cdc_pipeline.lake.lake_rows_sql import within_ranges
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange, LakeTable
from cdc_pipeline.lake.registers import joint_columns
from cdc_pipeline.record import DELETED, OPERATION, STATE, VERSION, ClaimCounts

_FILE_ROW, _LAKE_ROW, _MOVED_ROW = "cdc_file_row", "cdc_lake_row", "cdc_moved_row"

_FOUND = pa.schema(
    [(FILE, pa.string()), ("rows", pa.list_(pa.int64())), (IS_DELETE, pa.bool_()), (IS_NEWER, pa.bool_())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRows:
    """What a claim writes and deletes.

    `written` is SQL of the rows to write. They have the source's columns in the lake's names, VERSION, DELETED and
    possibly STATE. `found` is SQL or its result, with FILE, `rows` (indexes of lake rows that the claim deletes or
    replaces), IS_DELETE (the claim deletes them) and IS_NEWER (the claim's event is newer than the lake's row). If
    `counts` is None, `found` has one more row, with '' as FILE; its `rows` is the number of ids whose last event is a
    delete. `found` may then include rows that a deletion vector already deletes. It is None if no row is deleted.
    `acts`: whether any row of the table may change.
    """

    written: str
    found: str | pa.Table | None
    counts: ClaimCounts | None
    acts: bool = True


def claim_rows(
    views: Views,
    files: LakeFiles,
    shape: ClaimShape,
    table: LakeTable,
    work: ClaimWork,
    *,
    in_general: bool,
    few_events: FewEvents,
) -> ClaimRows:
    """Returns the rows that a claim writes and deletes.

    Without `in_general`, a claim of whole rows in order is written before the lake's rows are known. The rows found
    then show whether that was right: if one is not older than the claim's event, the claim needs `in_general`.
    `few_events` searches them without Spark, if it can.
    """
    if table.schema.is_keyless:
        return _keyless(views, files, shape, table, work)
    if in_general or not is_whole_and_in_order(table, work, shape):
        return _in_general(views, files, shape, table, work, few_events)
    found = few_events.found()
    if found is None:
        found = _found_by_spark(views, files, shape, table, work)
    written = f"SELECT * FROM ({deduplicate_whole_rows(shape)}) WHERE NOT {DELETED}"
    return ClaimRows(written=written, found=found, counts=None)


def _found_by_spark(views: Views, files: LakeFiles, shape: ClaimShape, table: LakeTable, work: ClaimWork) -> str:
    """Returns SQL that reads only id and version of the lake's rows, because the claim's events have whole rows."""
    ranges = safe_ranges(table, work)
    files.name_rows(views, _FILE_ROW, files.candidates(ranges), (*shape.key, VERSION))
    hint = "/*+ BROADCAST(claim) */ " if has_few_rows(work) else ""
    within = f" AND {within_ranges(shape.key[0], ranges)}" if ranges else ""
    order = f"struct({VERSION}, {OPERATION})"
    ids = f"""SELECT {shape.keys()}, max({VERSION}) AS {VERSION}, max({order}).{OPERATION} = 'd' AS {IS_DELETE}
              FROM {EVENT} GROUP BY {shape.keys()}"""
    return f"""
        SELECT {hint}lake.{FILE}, collect_list(lake.{ROW}) AS rows, claim.{IS_DELETE},
               claim.{VERSION} > lake.{VERSION} AS {IS_NEWER}
        FROM {_FILE_ROW} AS lake JOIN ({ids}) AS claim ON {shape.same("lake", "claim")}{within}
        GROUP BY lake.{FILE}, claim.{IS_DELETE}, claim.{VERSION} > lake.{VERSION}
        UNION ALL SELECT '', array(count(*)), true, true FROM ({ids}) WHERE {IS_DELETE}"""


def _in_general(
    views: Views, files: LakeFiles, shape: ClaimShape, table: LakeTable, work: ClaimWork, few_events: FewEvents
) -> ClaimRows:
    ranges = safe_ranges(table, work)
    ids = f"SELECT DISTINCT {shape.keys()} FROM {EVENT}"
    states = _name_lake_rows(views, files, shape, _LAKE_ROW, ids, work, ranges, few_events.live(ranges))
    apart = few_events.absent() | shape.lacking
    if not apart:
        work = replace(work, key_changes=0)  # none of them asks for values of its old row
    if work.key_changes:
        ids, ranges = few_events.moved()
        _name_lake_rows(views, files, shape, _MOVED_ROW, ids, work, ranges, few_events.live(ranges, moved=True))
    shape = replace(shape, joint=joint_columns(shape.others, apart, states))
    changes = keyed_changes(views, shape, table, work, _LAKE_ROW, _MOVED_ROW, (), carried=(FILE, ROW))
    return ClaimRows(
        written=f"SELECT * FROM {CHANGE} WHERE {ACT} = 'write'",
        found=_replaced(changes),
        counts=changes.counts,
        acts=changes.acts,
    )


def _replaced(changes: Changes) -> pa.Table:
    """Returns the lake rows that the changes replace or delete, as `ClaimRows.found`."""
    rows = [{FILE: file, "rows": rows, IS_DELETE: False, IS_NEWER: True} for file, rows in changes.replaced.items()]
    return pa.Table.from_pylist(rows, _FOUND)


def _keyless(views: Views, files: LakeFiles, shape: ClaimShape, table: LakeTable, work: ClaimWork) -> ClaimRows:
    def live_rows_like(wanted: str) -> str:
        files.name_rows(views, _FILE_ROW, files.candidates(()), _all_columns(shape))
        files.keep_live(views, _LAKE_ROW, rows_like(shape, _FILE_ROW, wanted))
        return _LAKE_ROW

    changes = keyless_changes(views, shape, table, work, live_rows_like)
    rows = replaced_copies(shape, _LAKE_ROW, f"{FILE}, {ROW}") if changes.replaces else ""
    return _counted(written_copies(shape) if changes.acts else "", rows, changes)


def _counted(written: str, rows: str, changes: Changes) -> ClaimRows:
    found = (
        f"SELECT {FILE}, collect_list({ROW}) AS rows, false AS {IS_DELETE}, true AS {IS_NEWER} FROM ({rows}) GROUP BY 1"
    )
    return ClaimRows(written=written, found=found if rows else None, counts=changes.counts, acts=changes.acts)


def _name_lake_rows(
    views: Views,
    files: LakeFiles,
    shape: ClaimShape,
    name: str,
    ids: str,
    work: ClaimWork,
    ranges: tuple[KeyRange, ...],
    live: LiveRows | None,
) -> Iterable[Mapping[str, str]]:
    """Makes the view `name` of the lake's rows with these ids. Returns the column versions of those with a STATE.

    `live`: these rows; None if Spark has to find them. It then computes the view once.
    """
    within = f" WHERE {within_ranges(shape.key[0], ranges)}" if ranges else ""
    if live is not None:
        rows = files.name_located(views, f"{name}_file", live.places, _all_columns(shape))
        views.name_sql(name, f"SELECT * FROM ({rows}) AS lake{within}")
        return live.states
    files.name_rows(views, _FILE_ROW, files.candidates(ranges), _all_columns(shape))
    hint = "/*+ BROADCAST(wanted) */ " if has_few_rows(work) else ""
    same = shape.same("lake", "wanted")
    sql = f"SELECT {hint}lake.* FROM {_FILE_ROW} AS lake LEFT SEMI JOIN ({ids}) AS wanted ON {same}{within}"
    return files.keep_live(views, name, sql, states=True)


def _all_columns(shape: ClaimShape) -> tuple[str, ...]:
    return (*shape.names, VERSION, DELETED, STATE)
