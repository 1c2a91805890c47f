"""Computes, without MERGE, the rows that a claim writes and deletes, as SQL over the table's data files."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from cdc_pipeline.lake.change_sql import ACT, CHANGE
from cdc_pipeline.lake.claim_changes import (
    Changes,
    Counts,
    has_few_rows,
    is_whole_and_in_order,
    keyed_changes,
    keyless_changes,
    safe_ranges,
)
from cdc_pipeline.lake.claim_view import Views
from cdc_pipeline.lake.deduplicate_sql import EVENT, ClaimShape, deduplicate_whole_rows
from cdc_pipeline.lake.keyless_sql import replaced_copies, rows_like, written_copies
from cdc_pipeline.lake.lake_files import FILE, ROW, LakeFiles
from cdc_pipeline.lake.lake_rows_sql import within_ranges
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange, LakeTable
from cdc_pipeline.lake.quoting import identifier
from cdc_pipeline.record import DELETED, OLD_ID_PREFIX, OPERATION, STATE, VERSION

IS_NEWER, IS_DELETE = "_cdc_is_newer", "_cdc_is_delete"
_FILE_ROW, _LAKE_ROW, _MOVED_ROW = "cdc_file_row", "cdc_lake_row", "cdc_moved_row"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRows:
    """What a claim writes and deletes.

    `written` is SQL of the rows to write. They have the source's columns in the lake's names, VERSION, DELETED and
    possibly STATE. `found` is SQL or its result, with FILE, `rows` (indexes of lake rows that the claim deletes or
    replaces), IS_DELETE (the claim deletes them) and IS_NEWER (the claim's event is newer than the lake's row). If
    `counts` is None, `found` has one more row, with '' as FILE; its `rows` is the number of ids whose last event is a
    delete. `found` may include rows that a deletion vector already deletes; it is None if the claim deletes no row.
    `acts`: whether any row of the table may change.
    """

    written: str
    found: str | pa.Table | None
    counts: Counts | None
    acts: bool = True


def claim_rows(
    views: Views,
    files: LakeFiles,
    shape: ClaimShape,
    table: LakeTable,
    work: ClaimWork,
    *,
    in_general: bool,
    found_by_arrow: Callable[[], pa.Table | None],
) -> ClaimRows:
    """Returns the rows that a claim writes and deletes.

    Without `in_general`, a claim of whole rows in order is written before the lake's rows are known. The rows found
    then show whether that was right: if one is not older than the claim's event, the claim needs `in_general`.
    `found_by_arrow` finds them for such a claim; it returns None if Spark has to do it.
    """
    if table.schema.is_keyless:
        return _keyless(views, files, shape, table, work)
    if in_general or not is_plain(table, work, shape):
        return _in_general(views, files, shape, table, work)
    found = found_by_arrow()
    if found is None:
        found = _found_by_spark(views, files, shape, table, work)
    written = f"SELECT * FROM ({deduplicate_whole_rows(shape)}) WHERE NOT {DELETED}"
    return ClaimRows(written=written, found=found, counts=None)


def is_plain(table: LakeTable, work: ClaimWork, shape: ClaimShape) -> bool:
    """Whether the rows to write depend on the claim alone."""
    keeps_values = table.deletes == "soft" or work.tombstones or shape.lacking
    return is_whole_and_in_order(table, work, shape) and not keeps_values


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


def _in_general(views: Views, files: LakeFiles, shape: ClaimShape, table: LakeTable, work: ClaimWork) -> ClaimRows:
    ranges = safe_ranges(table, work)
    _name_lake_rows(views, files, shape, _LAKE_ROW, f"SELECT DISTINCT {shape.keys()} FROM {EVENT}", work, ranges)
    if work.key_changes:
        old = ", ".join(f"{identifier(OLD_ID_PREFIX + name)} AS {identifier(name)}" for name in shape.key)
        ids = f"SELECT DISTINCT {old} FROM {EVENT} WHERE {OPERATION} = 'm'"
        _name_lake_rows(views, files, shape, _MOVED_ROW, ids, work, ())
    changes = keyed_changes(views, shape, table, work, _LAKE_ROW, _MOVED_ROW, ())
    acting = f"SELECT {shape.keys()} FROM {CHANGE} WHERE {ACT} <> 'none'"
    rows = f"SELECT lake.* FROM {_LAKE_ROW} AS lake LEFT SEMI JOIN ({acting}) AS claim ON {shape.same('lake', 'claim')}"
    written = f"SELECT * FROM {CHANGE} WHERE {ACT} = 'write'"
    return _counted(written, rows, changes)


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
) -> None:
    """Makes the view `name` of the lake's rows with these ids, computed once."""
    files.name_rows(views, _FILE_ROW, files.candidates(ranges), _all_columns(shape))
    hint = "/*+ BROADCAST(wanted) */ " if has_few_rows(work) else ""
    within = f" WHERE {within_ranges(shape.key[0], ranges)}" if ranges else ""
    same = shape.same("lake", "wanted")
    sql = f"SELECT {hint}lake.* FROM {_FILE_ROW} AS lake LEFT SEMI JOIN ({ids}) AS wanted ON {same}{within}"
    files.keep_live(views, name, sql)


def _all_columns(shape: ClaimShape) -> tuple[str, ...]:
    return (*shape.names, VERSION, DELETED, STATE)
