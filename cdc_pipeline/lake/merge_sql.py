"""The MERGE of a claim into its lake table, as Spark SQL."""

from cdc_pipeline.lake.change_sql import ACT, CHANGE, COPY
from cdc_pipeline.lake.columns import partition_expression
from cdc_pipeline.lake.deduplicate_sql import ClaimShape, deduplicate_whole_rows
from cdc_pipeline.lake.lake_rows_sql import DELETION, within_ranges
from cdc_pipeline.lake.protocol import KeyRange, LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at, text_literal
from cdc_pipeline.record import DELETED, STATE, STATE_TYPE, VERSION

_COPIES = "_cdc_copies"
_NEWER = f"claim.{VERSION} > lake.{VERSION}"
OWN_COLUMNS = (VERSION, DELETED, STATE)


def merge_whole_rows(table: LakeTable, url: str, shape: ClaimShape, ranges: tuple[KeyRange, ...]) -> str:
    """Returns the MERGE of EVENT, deduplicated, for whole rows in order. It leaves no deleted rows."""
    values = _row_values(table, shape.names)
    assigned = {name: value for name, value in values.items() if name not in shape.key}
    source = f"({deduplicate_whole_rows(shape)})"
    clauses = [
        f"MERGE INTO {table_at(url)} AS lake USING {source} AS claim ON {_condition(shape, ranges)}",
        f"WHEN MATCHED AND {_NEWER} AND claim.{DELETED} THEN DELETE",
        f"WHEN MATCHED AND {_NEWER} THEN UPDATE SET {_assignments(assigned)}",
        f"WHEN NOT MATCHED AND NOT claim.{DELETED} THEN {insert_clause(values)}",
    ]
    return "\n".join(clauses)


def merge_changes(
    table: LakeTable, url: str, shape: ClaimShape, ranges: tuple[KeyRange, ...], *, truncated_at: str
) -> str:
    """Returns the MERGE of CHANGE, whose rows have their final content.

    `truncated_at` is set if the claim truncates; then the MERGE reads every other row of the table too. The condition
    on versions protects the rows of an id even if a paused worker continues after the table was replaced. Of an id that
    the lake has more than once, the second copy deletes all rows, and the first one is inserted again.
    """
    values = _row_values(table, shape.names)
    assigned = {name: value for name, value in values.items() if name not in shape.key}
    counted = (
        f"SELECT * EXCEPT ({VERSION}), max({VERSION}) OVER ids AS {VERSION}, max({COPY}) OVER ids AS {_COPIES}"
        f" FROM {CHANGE} WINDOW ids AS (PARTITION BY {shape.keys()})"
    )
    source = f"(SELECT * FROM ({counted}) WHERE {ACT} <> 'none' OR {_COPIES} > 1)"
    condition = _condition(shape, () if truncated_at else ranges)
    is_copy = f"claim.{COPY} = least(claim.{_COPIES}, 2)"
    clauses = [
        f"MERGE INTO {table_at(url)} AS lake USING {source} AS claim ON {condition} AND {is_copy}",
        f"WHEN MATCHED AND claim.{VERSION} >= lake.{VERSION} AND claim.{ACT} = 'drop' THEN DELETE",
        f"WHEN MATCHED AND claim.{VERSION} >= lake.{VERSION} THEN UPDATE SET {_assignments(assigned)}",
        f"WHEN NOT MATCHED AND claim.{ACT} <> 'drop' THEN {insert_clause(values)}",
    ]
    if truncated_at:
        clauses.append(_truncate(truncated_at, soft=table.deletes == "soft"))
    return "\n".join(clauses)


def _truncate(truncated_at: str, *, soft: bool) -> str:
    """Returns the clause for rows at or below the truncate. They are deleted, or flagged if deletes are soft."""
    at = text_literal(truncated_at)
    if not soft:
        return f"WHEN NOT MATCHED BY SOURCE AND lake.{VERSION} <= {at} THEN DELETE"
    columns = f"coalesce(lake.{STATE}.columns, CAST(map() AS MAP<STRING, STRING>))"
    is_live = f"{_of_target(DELETION)} < lake.{VERSION}"
    return (
        f"WHEN NOT MATCHED BY SOURCE AND lake.{VERSION} <= {at} AND {is_live} THEN UPDATE SET lake.{DELETED} = true,"
        f" lake.{STATE} = CAST(named_struct('deletion', {at}, 'columns', {columns}) AS {STATE_TYPE})"
    )


def insert_clause(values: dict[str, str]) -> str:
    """Returns the INSERT clause. `values`: lake column -> SQL."""
    return f"INSERT ({', '.join(map(identifier, values))}) VALUES ({', '.join(values.values())})"


def _row_values(table: LakeTable, columns: tuple[str, ...]) -> dict[str, str]:
    """Returns what a row at `claim` writes: these columns, the pipeline's own, and its data partitions."""
    values = {name: f"claim.{identifier(name)}" for name in (*columns, *OWN_COLUMNS)}
    return values | partition_values(table, columns)


def partition_values(table: LakeTable, columns: tuple[str, ...]) -> dict[str, str]:
    return {
        part.lake_column: partition_expression(part, f"claim.{identifier(part.column)}")
        for part in table.partition_by
        if part.column in columns
    }


def _condition(shape: ClaimShape, ranges: tuple[KeyRange, ...]) -> str:
    within = f"{within_ranges(shape.key[0], ranges)} AND " if ranges else ""
    return within + shape.same("lake", "claim")


def _assignments(values: dict[str, str]) -> str:
    return ", ".join(f"lake.{identifier(name)} = {value}" for name, value in values.items())


def _of_target(expression: str) -> str:
    """Returns an expression over the pipeline's own columns, read from the target's row."""
    for name in OWN_COLUMNS:
        expression = expression.replace(name, f"lake.{name}")
    return expression
