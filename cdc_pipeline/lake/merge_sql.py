"""The MERGE of a claim into its lake table, as Spark SQL."""

from cdc_pipeline.lake.change_sql import ACT, CHANGE
from cdc_pipeline.lake.columns import partition_expression
from cdc_pipeline.lake.fold_sql import FRESH, KNOWN, FoldShape, fold_complete_rows
from cdc_pipeline.lake.lake_rows_sql import DELETION, HIDDEN, within_ranges
from cdc_pipeline.lake.protocol import KeyRange, LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at, text_literal
from cdc_pipeline.record import DELETED, STATE, STATE_TYPE, VERSION

_NEWER = f"s.{VERSION} > t.{VERSION}"
OWN_COLUMNS = (VERSION, DELETED, STATE)


def merge_complete_rows(
    table: LakeTable, url: str, shape: FoldShape, ranges: tuple[KeyRange, ...], *, tombstones: bool
) -> str:
    """Returns the MERGE of EVENT, deduplicated, for whole rows in order.

    Columns that the claim lacks keep their values. They are NULL in rows that the claim inserts.
    """
    soft = table.deletes == "soft"
    told = [name for name in shape.names if name not in shape.lacking]
    values = _row_values(table, tuple(told))
    assigned = {
        name: f"IF(NOT s.{KNOWN}, t.{identifier(name)}, {value})" if soft or tombstones else value
        for name, value in values.items()
        if name not in (*shape.key, *OWN_COLUMNS)
    }
    assigned |= {
        name: f"IF(s.{FRESH} OR {_of_target(HIDDEN)}, NULL, t.{identifier(name)})"
        for _, name in shape.others
        if name in shape.lacking
    }
    assigned |= {name: values[name] for name in OWN_COLUMNS}
    born = "true" if tombstones else f"s.{KNOWN}" if soft else f"NOT s.{DELETED}"
    clauses = [
        f"MERGE INTO {table_at(url)} AS t USING ({fold_complete_rows(shape)}) AS s ON {_condition(shape, ranges)}",
        "" if soft or tombstones else f"WHEN MATCHED AND {_NEWER} AND s.{DELETED} THEN DELETE",
        f"WHEN MATCHED AND {_NEWER} THEN UPDATE SET {_assignments(assigned)}",
        f"WHEN NOT MATCHED AND {born} THEN {insert_clause(values)}",
    ]
    return "\n".join(filter(None, clauses))


def merge_changes(
    table: LakeTable, url: str, shape: FoldShape, ranges: tuple[KeyRange, ...], *, truncated_at: str
) -> str:
    """Returns the MERGE of CHANGE, whose rows have their final content.

    `truncated_at` is set if the claim truncates; then the MERGE reads every other row of the table too. The condition
    on versions protects the table even if a paused worker continues after the table was replaced.
    """
    values = _row_values(table, shape.names)
    assigned = {name: value for name, value in values.items() if name not in shape.key}
    source = f"(SELECT * FROM {CHANGE} WHERE {ACT} <> 'none')"
    clauses = [
        f"MERGE INTO {table_at(url)} AS t USING {source} AS s ON {_condition(shape, () if truncated_at else ranges)}",
        f"WHEN MATCHED AND s.{VERSION} >= t.{VERSION} AND s.{ACT} = 'drop' THEN DELETE",
        f"WHEN MATCHED AND s.{VERSION} >= t.{VERSION} THEN UPDATE SET {_assignments(assigned)}",
        f"WHEN NOT MATCHED AND s.{ACT} = 'write' THEN {insert_clause(values)}",
    ]
    if truncated_at:
        clauses.append(_truncate(truncated_at, soft=table.deletes == "soft"))
    return "\n".join(clauses)


def _truncate(truncated_at: str, *, soft: bool) -> str:
    """Returns the clause for rows at or below the truncate. They are deleted, or flagged if deletes are soft."""
    at = text_literal(truncated_at)
    if not soft:
        return f"WHEN NOT MATCHED BY SOURCE AND t.{VERSION} <= {at} THEN DELETE"
    columns = f"coalesce(t.{STATE}.columns, CAST(map() AS MAP<STRING, STRING>))"
    alive = f"{_of_target(DELETION)} < t.{VERSION}"
    return (
        f"WHEN NOT MATCHED BY SOURCE AND t.{VERSION} <= {at} AND {alive} THEN UPDATE SET t.{DELETED} = true,"
        f" t.{STATE} = CAST(named_struct('deletion', {at}, 'columns', {columns}) AS {STATE_TYPE})"
    )


def insert_clause(values: dict[str, str]) -> str:
    """Returns the INSERT clause. `values`: lake column -> SQL."""
    return f"INSERT ({', '.join(map(identifier, values))}) VALUES ({', '.join(values.values())})"


def _row_values(table: LakeTable, columns: tuple[str, ...]) -> dict[str, str]:
    """Returns what a row at `s` writes: these columns, the pipeline's own, and its data partitions."""
    values = {name: f"s.{identifier(name)}" for name in (*columns, *OWN_COLUMNS)}
    return values | partition_values(table, columns)


def partition_values(table: LakeTable, columns: tuple[str, ...]) -> dict[str, str]:
    return {
        part.lake_column: partition_expression(part, f"s.{identifier(part.column)}")
        for part in table.partition_by
        if part.column in columns
    }


def _condition(shape: FoldShape, ranges: tuple[KeyRange, ...]) -> str:
    within = f"{within_ranges(shape.key[0], ranges)} AND " if ranges else ""
    return within + shape.same("t", "s")


def _assignments(values: dict[str, str]) -> str:
    return ", ".join(f"t.{identifier(name)} = {value}" for name, value in values.items())


def _of_target(expression: str) -> str:
    """Returns an expression over the pipeline's own columns, read from the target's row."""
    for name in OWN_COLUMNS:
        expression = expression.replace(name, f"t.{name}")
    return expression
