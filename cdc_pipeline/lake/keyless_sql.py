"""A claim of a keyless table, as Spark SQL: how many copies of each distinct row it adds or removes.

Rows are equal if all their columns are equal; NULL equals NULL and NaN equals NaN. Columns that the source dropped do
not count, because later events lack them. A delete that finds no copy does nothing. Where inserts may arrive after
their deletes, such a delete stays as a hidden row until its insert arrives.
"""

from cdc_pipeline.lake.change_sql import ACT
from cdc_pipeline.lake.deduplicate_sql import EVENT, ClaimShape
from cdc_pipeline.lake.lake_rows_sql import HIDDEN
from cdc_pipeline.lake.merge_sql import insert_clause, partition_values
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.quoting import identifier, text_literal
from cdc_pipeline.record import DELETED, OPERATION, STATE, STATE_TYPE, VERSION

NET, COPIES = "cdc_net_change", "cdc_copies"


def net_changes(shape: ClaimShape) -> str:
    """Returns SQL for NET: `_cdc_net` copies per content, never 0, at their newest version.

    A repeated event counts once. If columns are not compared, `_cdc_added` has their values of each insert, newest
    first.
    """
    columns, is_added = _columns(shape), f"{OPERATION} <> 'd'"
    copy = f", first({_copy(shape)}) AS _cdc_copy" if shape.dropped else ""
    added = f", sort_array(collect_list(_cdc_copy) FILTER (WHERE {is_added}), false) AS _cdc_added" if copy else ""
    return f"""
        SELECT {columns}, max({VERSION}) AS {VERSION}, sum(IF({OPERATION} = 'd', -1, 1)) AS _cdc_net{added}
        FROM (SELECT {OPERATION}, {VERSION}, {columns}{copy} FROM {EVENT} GROUP BY {OPERATION}, {VERSION}, {columns})
        GROUP BY {columns} HAVING sum(IF({OPERATION} = 'd', -1, 1)) <> 0"""


def without_looking(shape: ClaimShape) -> str:
    """Returns SQL for COPIES if every content only gains copies. It does not read the lake's rows."""
    return f"SELECT *, {_no_copies(shape)} AS _cdc_copies, 0 AS _cdc_unmatched, _cdc_net AS _cdc_final FROM {NET}"


def rows_like(shape: ClaimShape, lake: str, wanted: str) -> str:
    """Returns SQL for the rows of the relation `lake` whose content is one of `wanted` (SQL)."""
    return f"SELECT lake.* FROM {lake} AS lake LEFT SEMI JOIN ({wanted}) AS net ON {_same(shape, 'lake', 'net')}"


def with_copies(shape: ClaimShape, lake: str, wanted: str, truncated_at: str, *, keeps_unmatched: bool) -> str:
    """Returns SQL for COPIES: NET with the lake's copies, newest first, and how many copies there will be.

    `_cdc_unmatched` counts the lake's hidden rows of the content: deletes that found no copy. `_cdc_final` is the
    number of copies; if negative, the number of hidden rows. `lake` is SQL of a relation that has at least the lake's
    rows whose content is one of `wanted` (SQL). `keeps_unmatched`: a delete that finds no copy stays as a hidden row.
    """
    final = "_cdc_net + size(_cdc_copies) - _cdc_unmatched"
    return f"""
        SELECT *, {final if keeps_unmatched else f"greatest(0, {final})"} AS _cdc_final
        FROM (SELECT net.*, coalesce(found._cdc_lake_copies, {_no_copies(shape)}) AS _cdc_copies,
                     coalesce(found._cdc_lake_unmatched, 0) AS _cdc_unmatched
              FROM {NET} AS net
              LEFT JOIN (SELECT {_columns(shape)}, count_if({HIDDEN}) AS _cdc_lake_unmatched,
                                sort_array(collect_list({_copy(shape)}) FILTER (WHERE NOT {HIDDEN}), false)
                                    AS _cdc_lake_copies
                         FROM ({rows_like(shape, lake, wanted)})
                         WHERE {VERSION} > {text_literal(truncated_at)}
                         GROUP BY {_columns(shape)}) AS found ON {_same(shape, "found", "net")})"""


def count_copies() -> str:
    """Returns SQL that counts what COPIES does. A delete that finds no copy counts as ignored."""
    visible = "greatest(_cdc_final, 0)"
    without_copy = "greatest(0, _cdc_unmatched - _cdc_net - size(_cdc_copies)) - _cdc_unmatched"
    return f"""
        SELECT coalesce(sum(greatest(0, {visible} - size(_cdc_copies))), 0) AS inserted,
               coalesce(sum(greatest(0, size(_cdc_copies) - {visible})), 0) AS deleted,
               coalesce(sum(greatest(0, {without_copy})), 0) AS ignored, count_if({_replaced()}) AS replaced
        FROM {COPIES}"""


def replaced_copies(shape: ClaimShape, lake: str, columns: str) -> str:
    """Returns SQL for `columns` of the rows of the relation `lake` that the claim deletes."""
    wanted = f"SELECT * FROM {COPIES} WHERE {_replaced()}"
    return f"SELECT {columns} FROM ({rows_like(shape, lake, wanted)})"


def written_copies(shape: ClaimShape) -> str:
    """Returns SQL for the rows that the claim writes: the source's columns, VERSION, DELETED, and NULL for STATE."""
    rows = ", ".join(map(identifier, (*shape.names, VERSION, DELETED)))
    return f"SELECT {rows}, CAST(NULL AS {STATE_TYPE}) AS {STATE} FROM ({_rows(shape)}) WHERE {ACT} = 'write'"


def merge_copies(table: LakeTable, shape: ClaimShape, lake: str, *, replaced: bool, truncated_at: str) -> str:
    """Returns the MERGE of COPIES. A content that loses copies loses all of them and gets back those that stay.

    Both happen in one commit. Without `replaced` the MERGE reads nothing of the table and only adds rows.
    """
    names = tuple(name for name, _ in shape.columns)
    values = {name: f"claim.{identifier(name)}" for name in (*names, VERSION, DELETED)}
    values |= {STATE: f"CAST(NULL AS {STATE_TYPE})"} | partition_values(table, names)
    condition = f"claim.{ACT} = 'drop' AND {_same(shape, 'lake', 'claim')}" if replaced else "false"
    clauses = [
        f"MERGE INTO {lake} AS lake USING ({_rows(shape)}) AS claim ON {condition}",
        "WHEN MATCHED THEN DELETE" if replaced else "",
        f"WHEN NOT MATCHED AND claim.{ACT} = 'write' THEN {insert_clause(values)}",
        f"WHEN NOT MATCHED BY SOURCE AND lake.{VERSION} <= {text_literal(truncated_at)} THEN DELETE"
        if truncated_at
        else "",
    ]
    return "\n".join(filter(None, clauses))


def _rows(shape: ClaimShape) -> str:
    """Returns SQL with one row to drop per content that is replaced, and one row to write per copy."""
    rest = "".join(f", _cdc_copy.kept_{number} AS {identifier(name)}" for number, name, _ in _rest(shape))
    nothing = "".join(f", CAST(NULL AS {type_}) AS {identifier(name)}" for _, name, type_ in _rest(shape))
    new = f"(version, place) -> named_struct('version', version{_rest_of_new(shape)})"
    stay = "slice(_cdc_copies, 1, CAST(greatest(0, least(_cdc_final, size(_cdc_copies))) AS INT))"
    added = "CAST(greatest(0, abs(_cdc_final) - IF(_cdc_final < 0, 0, size(_cdc_copies))) AS INT)"
    fresh = f"transform(array_repeat({VERSION}, {added}), {new})"
    copies = f"IF({_replaced()}, concat({stay}, {fresh}), {fresh})"
    return f"""
        SELECT {_columns(shape)}, _cdc_copy.version AS {VERSION}, {DELETED}, 'write' AS {ACT}{rest}
        FROM (SELECT {_columns(shape)}, _cdc_final < 0 AS {DELETED}, explode({copies}) AS _cdc_copy FROM {COPIES})
        UNION ALL
        SELECT {_columns(shape)}, {VERSION}, false, 'drop'{nothing} FROM {COPIES} WHERE {_replaced()}"""


def _replaced() -> str:
    return "(_cdc_unmatched > 0 OR size(_cdc_copies) > greatest(_cdc_final, 0))"


def _columns(shape: ClaimShape) -> str:
    return ", ".join(identifier(name) for name, _ in _compared(shape))


def _same(shape: ClaimShape, left: str, right: str) -> str:
    return " AND ".join(f"{left}.{identifier(name)} <=> {right}.{identifier(name)}" for name, _ in _compared(shape))


def _compared(shape: ClaimShape) -> list[tuple[str, str]]:
    return [(name, type_) for name, type_ in shape.columns if name not in shape.dropped]


def _rest(shape: ClaimShape) -> list[tuple[int, str, str]]:
    """Returns the columns that are not compared. Copies that stay keep their values there."""
    return [(number, name, type_) for number, (name, type_) in enumerate(shape.columns) if name in shape.dropped]


def _copy(shape: ClaimShape) -> str:
    rest = "".join(f", 'kept_{number}', {identifier(name)}" for number, name, _ in _rest(shape))
    return f"named_struct('version', {VERSION}{rest})"


def _rest_of_new(shape: ClaimShape) -> str:
    """Returns SQL for the values of the new copy at `place`. Hidden rows have none: deletes lack these columns."""
    value = "IF(_cdc_final < 0, NULL, get(_cdc_added, place).kept_{number})"
    return "".join(f", 'kept_{number}', {value.format(number=number)}" for number, _, _ in _rest(shape))


def _no_copies(shape: ClaimShape) -> str:
    fields = "".join(f", kept_{number}: {type_}" for number, _, type_ in _rest(shape))
    return f"CAST(array() AS ARRAY<STRUCT<version: STRING{fields}>>)"
