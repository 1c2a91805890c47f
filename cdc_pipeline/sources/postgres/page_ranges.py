"""Splits a table into ranges of pages. Each range becomes one snapshot data file."""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg2.extensions
from psycopg2 import sql

from cdc_pipeline.record import TableName, TableSchema

PAGE_BYTES = 8192
_LEAVES = """
SELECT n.nspname, c.relname, pg_relation_size(c.oid)
FROM pg_partition_tree(%s::regclass) AS tree
JOIN pg_class c ON c.oid = tree.relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE tree.isleaf ORDER BY 1, 2
"""
_PLAIN = """
SELECT n.nspname, c.relname, pg_relation_size(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s::regclass
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRange:
    """Pages [first, end) of one relation. `end` is None for a range up to the relation's last page."""

    schema: str
    relation: str
    first: int
    end: int | None


def page_ranges(schema: str, relation: str, size_bytes: int, file_bytes: int) -> list[PageRange]:
    """Returns ranges of about `file_bytes` that cover every page, including pages that are added later."""
    pages = max(1, file_bytes // PAGE_BYTES)
    starts = range(0, max(1, -(-size_bytes // PAGE_BYTES)), pages)
    return [
        PageRange(schema=schema, relation=relation, first=first, end=None if first == starts[-1] else first + pages)
        for first in starts
    ]


def plan_ranges(connection: psycopg2.extensions.connection, table: TableName, file_bytes: int) -> list[PageRange]:
    """Returns the ranges of a table; for a partitioned one, those of all its leaves."""
    relations: Sequence[tuple[str, str, int]] = []
    with connection.cursor() as cursor:
        name = sql.Identifier(table.schema, table.table).as_string(connection)
        for query in (_LEAVES, _PLAIN):
            cursor.execute(query, (name,))
            relations = relations or cursor.fetchall()
    return [page for schema, relation, size in relations for page in page_ranges(schema, relation, size, file_bytes)]


def range_query(connection: psycopg2.extensions.connection, pages: PageRange, schema: TableSchema) -> str:
    """Returns a SELECT of one range with the schema's columns, in order."""
    conditions = [sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({pages.first},0)"))]
    if pages.end is not None:
        conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({pages.end},0)")))
    query = sql.SQL("SELECT {} FROM ONLY {} WHERE {}").format(
        sql.SQL(", ").join(map(sql.Identifier, schema.names)),
        sql.Identifier(pages.schema, pages.relation),
        sql.SQL(" AND ").join(conditions),
    )
    return query.as_string(connection)
