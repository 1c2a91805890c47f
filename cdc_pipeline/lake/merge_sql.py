"""MERGE of a claim's outcome into its lake table, as Spark SQL."""

from cdc_pipeline.lake.columns import partition_expression
from cdc_pipeline.lake.fold_sql import KNOWN, OUTCOME
from cdc_pipeline.lake.protocol import KeyRange, LakeTable
from cdc_pipeline.lake.quoting import identifier, literal, table_at, text_literal
from cdc_pipeline.record import ABSENT, DELETED, VERSION

_NEWER = f"s.{VERSION} > t.{VERSION}"


def merge_sql(
    table: LakeTable, url: str, columns: tuple[str, ...], ranges: tuple[KeyRange, ...], truncated_at: str | None
) -> str:
    """`columns`: what the outcome view holds of the source, id included. `truncated_at`: version of a truncate.

    Ranges mention the target only, which is all that spares it files; a truncate must see every row.
    """
    soft = table.deletes == "soft"
    clauses = [
        f"MERGE INTO {table_at(url)} AS t USING {OUTCOME} AS s ON {_condition(table, ranges, truncated_at)}",
        "" if soft else f"WHEN MATCHED AND {_NEWER} AND s.{DELETED} THEN DELETE",
        f"WHEN MATCHED AND {_NEWER} THEN UPDATE SET {_assignments(table, columns, truncated_at)}",
        f"WHEN NOT MATCHED AND {f's.{KNOWN}' if soft else f'NOT s.{DELETED}'} THEN {_insert(table, columns)}",
    ]
    if truncated_at is not None:
        older = f"WHEN NOT MATCHED BY SOURCE AND t.{VERSION} < {text_literal(truncated_at)} THEN"
        flag = f"UPDATE SET t.{DELETED} = true, t.{VERSION} = {text_literal(truncated_at)}"
        clauses.append(f"{older} {flag if soft else 'DELETE'}")
    return "\n".join(filter(None, clauses))


def _condition(table: LakeTable, ranges: tuple[KeyRange, ...], truncated_at: str | None) -> str:
    same = " AND ".join(f"t.{identifier(name)} = s.{identifier(name)}" for name in table.schema.key)
    if not ranges or truncated_at is not None:
        return same
    first = identifier(table.schema.key[0])
    within = " OR ".join(f"t.{first} BETWEEN {literal(part.low)} AND {literal(part.high)}" for part in ranges)
    return f"({within}) AND {same}"


def _assignments(table: LakeTable, columns: tuple[str, ...], truncated_at: str | None) -> str:
    others = [name for name in columns if name not in table.schema.key]
    partitions = [
        (part.lake_column, part.column, partition_expression(part, f"s.{identifier(part.column)}"))
        for part in table.partition_by
        if part.column in others
    ]
    values = [(name, name, f"s.{identifier(name)}") for name in others]
    kept = [
        f"t.{identifier(target)} = IF({_keeps(table, source, truncated_at)}, t.{identifier(target)}, {value})"
        for target, source, value in values + partitions
    ]
    own = [f"t.{VERSION} = s.{VERSION}"] + ([f"t.{DELETED} = s.{DELETED}"] if table.deletes == "soft" else [])
    return ", ".join(kept + own)


def _keeps(table: LakeTable, column: str, truncated_at: str | None) -> str:
    """Whether the lake's row keeps its value: no event told one, and no truncate lies between."""
    absent = f"array_contains(s.{ABSENT}, {text_literal(column)})"
    if table.deletes == "soft":
        return f"NOT s.{KNOWN} OR {absent}"
    return absent if truncated_at is None else f"{absent} AND t.{VERSION} >= {text_literal(truncated_at)}"


def _insert(table: LakeTable, columns: tuple[str, ...]) -> str:
    values = {name: f"s.{identifier(name)}" for name in (*columns, *table.own_columns)}
    for part in table.partition_by:
        if part.column in columns:
            values[part.lake_column] = partition_expression(part, f"s.{identifier(part.column)}")
    names = ", ".join(map(identifier, values))
    return f"INSERT ({names}) VALUES ({', '.join(values.values())})"
