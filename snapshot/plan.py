"""A table at the cutoff, split into ranges of its pages: each becomes one snapshot data file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg2.extensions
from psycopg2 import sql

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.metadata_store.rows import SourceTable
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.sources.postgres_shape import Shape, ShapeColumn, read_shapes
from cdc_pipeline.sources.shape_changes import Retaken, compare_shapes

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
    """Pages [first, end) of one relation; `end` None reaches to whatever its last page is."""

    schema: str
    relation: str
    first: int
    end: int | None

    def to_json(self) -> dict[str, object]:
        return {"schema": self.schema, "relation": self.relation, "first": self.first, "end": self.end}


def page_ranges(schema: str, relation: str, size_bytes: int, file_bytes: int) -> list[PageRange]:
    """Ranges of about `file_bytes` that cover every page, also those that are added later."""
    pages = max(1, file_bytes // PAGE_BYTES)
    starts = range(0, max(1, -(-size_bytes // PAGE_BYTES)), pages)
    return [
        PageRange(schema=schema, relation=relation, first=first, end=None if first == starts[-1] else first + pages)
        for first in starts
    ]


def plan_ranges(connection: psycopg2.extensions.connection, table: TableName, file_bytes: int) -> list[PageRange]:
    """Of a partitioned table, the ranges of all its leaves."""
    relations: Sequence[tuple[str, str, int]] = []
    with connection.cursor() as cursor:
        name = sql.Identifier(table.schema, table.table).as_string(connection)
        for query in (_LEAVES, _PLAIN):
            cursor.execute(query, (name,))
            relations = relations or cursor.fetchall()
    return [page for schema, relation, size in relations for page in page_ranges(schema, relation, size, file_bytes)]


def shape_at(connection: psycopg2.extensions.connection, row: SourceTable) -> Shape | None:
    """The table's shape as the connection's snapshot has it, which has to be one that its stream knows.

    None for a table whose shapes the metadata store does not know. Raises SnapshotError when it changed just now.
    """
    known = [Shape.from_json(document) for document in row.shape or ()]
    if not known:
        return None
    now = read_shapes(connection, [row.source_oid]).get(row.source_oid)
    numbers = None if now is None else [column.number for column in now.columns]
    for shape in reversed(known):
        if now is not None and shape.appearance == now.appearance and [c.number for c in shape.columns] == numbers:
            return replace(shape, file_number=now.file_number, leaves=now.leaves, columns=_as_of(shape, now))
    raise SnapshotError(
        f"{row.name} changed its columns right before the cutoff",
        expected="the columns that its stream was opened with",
        remedy="run cdc snapshot again: it finds what changed",
    )


def _as_of(shape: Shape, now: Shape) -> tuple[ShapeColumn, ...]:
    written = {column.number: column.changed_by for column in now.columns}
    return tuple(replace(column, changed_by=written[column.number]) for column in shape.columns)


def refuse_rewritten(connection: psycopg2.extensions.connection, name: TableName, before: Shape) -> None:
    """Raises SnapshotError if the table was rewritten since the cutoff: to older snapshots it looks empty then."""
    now = read_shapes(connection, [before.oid]).get(before.oid)
    types = {column.number: column.type for column in before.columns}
    change = None if now is None else compare_shapes(before, now.with_types(types))
    if change is None or isinstance(change, Retaken):
        raise SnapshotError(
            f"{name} changed while it was exported: {'it was dropped' if change is None else change.reason}",
            expected="a table whose rows the cutoff still shows",
            remedy="run cdc snapshot again",
        )


def range_query(connection: psycopg2.extensions.connection, pages: PageRange, schema: TableSchema) -> str:
    """SELECT of the table's columns, in order, for one range."""
    conditions = [sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({pages.first},0)"))]
    if pages.end is not None:
        conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({pages.end},0)")))
    query = sql.SQL("SELECT {} FROM ONLY {} WHERE {}").format(
        sql.SQL(", ").join(map(sql.Identifier, schema.names)),
        sql.Identifier(pages.schema, pages.relation),
        sql.SQL(" AND ").join(conditions),
    )
    return query.as_string(connection)
