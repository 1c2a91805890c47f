"""Copies the tables of a PostgreSQL database as an exported snapshot shows them, and checks that it still does."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from cdc_pipeline.errors import SnapshotError, SourceError
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.settings.libpq import one_line
from cdc_pipeline.sources.copied_rows import CopiedRows
from cdc_pipeline.sources.known import Document, FoundTable, KnownTable
from cdc_pipeline.sources.postgres.catalogue import canonical_type, read_types, rows
from cdc_pipeline.sources.postgres.copy_stream import copy_record_batches
from cdc_pipeline.sources.postgres.page_ranges import PageRange, plan_ranges, range_query
from cdc_pipeline.sources.postgres.shape import ShapeColumn, SourceShape
from cdc_pipeline.sources.postgres.shape_changes import why_copy_differs
from cdc_pipeline.sources.postgres.tables import read_shapes
from cdc_pipeline.steps import OnStep, step

_ACCESS_SHARE = sql.SQL("SELECT FROM ONLY {} LIMIT 0")
_COLUMNS = """
SELECT a.attname, a.atttypid, a.atttypmod, a.attnum
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_CHANGED_SINCE = """
-- The query sees the catalogue as of the snapshot, its functions see it as it is now.
WITH RECURSIVE tree AS (
    SELECT c.oid, c.relkind, c.relfilenode, true AS is_root
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
    UNION ALL
    SELECT c.oid, c.relkind, c.relfilenode, false
    FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
    JOIN pg_class c ON c.oid = i.inhrelid WHERE tree.relkind = 'p'
)
SELECT coalesce(bool_or(relkind = 'r' AND pg_relation_filenode(oid) IS DISTINCT FROM relfilenode), false)
       OR coalesce(bool_or(oid IS DISTINCT FROM %s OR relkind = 'p' AND (
           SELECT count(*) FROM pg_partition_tree(oid)) <> (SELECT count(*) FROM tree AS every)) FILTER (WHERE is_root),
           false)
FROM tree
"""
_NOT_NAMED_SO_NOW = """
-- As above: the query sees the names as of the snapshot, its function sees them as they are now.
SELECT a.attname
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attname = ANY(%s)
  AND (pg_identify_object_as_address('pg_class'::regclass, c.oid, a.attnum)).object_names[3] IS DISTINCT FROM a.attname
ORDER BY a.attnum
"""
_NAMED_NOW = "SELECT to_regclass(format('%%I.%%I', %s, %s))::oid"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresCopy:
    """Implements `TableCopy` over one read-only connection that sees the database as of the position."""

    connection: psycopg2.extensions.connection
    on_step: OnStep

    def columns(self, table: KnownTable) -> tuple[Column, ...]:
        """Includes generated columns."""
        with step(self.on_step, "source.check"):
            return read_columns(self.connection, table.name)

    def description(self, table: KnownTable) -> FoundTable | None:
        shape = _shape_at(self.connection, table)
        if shape is None:
            return None
        return FoundTable(
            name=table.name,
            source_id=shape.oid,
            key=table.key,
            schema=shape.schema(table.key),
            description=(shape.to_json(),),
        )

    def parts(self, table: TableName, file_bytes: int) -> Sequence[Document]:
        """Returns ranges of pages; for a partitioned table, those of all its leaves."""
        return [asdict(pages) for pages in plan_ranges(self.connection, table, file_bytes)]

    def rows(self, table: TableName, schema: TableSchema, part: Document | None = None) -> Iterator[CopiedRows]:
        """Reads each partition by its own name: no right to read the partitioned table and no policy of it counts."""
        ranges = plan_ranges(self.connection, table, sys.maxsize) if part is None else [PageRange(**part)]
        if part is None:
            refuse_changed(self.connection, table)
            for pages in ranges:
                refuse_renamed(self.connection, pages, schema.names)
        for pages in ranges:
            query = range_query(self.connection, pages, schema)
            yield from copy_record_batches(self.connection, query, schema, on_step=self.on_step)


def _shape_at(connection: psycopg2.extensions.connection, table: KnownTable) -> SourceShape | None:
    """Returns the shape that the connection's snapshot shows.

    Returns None for a table without registered shapes. Raises SnapshotError if its columns are those of none of them.
    """
    known = [SourceShape.from_json(document) for document in table.description]
    if not known:
        return None
    now = read_shapes(connection, [table.source_id]).get(table.source_id)
    for shape in reversed(known):
        if now is not None and _columns(shape) == _columns(now):
            found = replace(shape, file_number=now.file_number, leaves=now.leaves, columns=_as_of(shape, now))
            return replace(found, large_values=now.large_values)
    raise SnapshotError(
        f"{table.name} changed its columns right before the cutoff",
        expected="the columns that its stream was opened with",
        remedy="run cdc snapshot again: it finds what changed",
    )


def _columns(shape: SourceShape) -> list[tuple[int, tuple[str, int, int], str | None]]:
    return [(column.number, column.look, column.generated) for column in shape.columns]


def _as_of(shape: SourceShape, now: SourceShape) -> tuple[ShapeColumn, ...]:
    written = {column.number: column.changed_by for column in now.columns}
    return tuple(replace(column, changed_by=written[column.number]) for column in shape.columns)


def refuse_rewritten(connection: psycopg2.extensions.connection, table: FoundTable, *, needs_file: bool) -> None:
    """Raises SnapshotError if the table was rewritten, or it or a column got another name, after it was described.

    An older snapshot sees a table that ALTER TABLE rewrote as empty. `needs_file`: as in `why_copy_differs`.
    """
    before = SourceShape.from_json(table.description[-1])
    now = read_shapes(connection, [before.oid]).get(before.oid)
    reason = "it was dropped" if now is None else why_copy_differs(before, now, needs_file=needs_file)
    if reason is None and oid_now(connection, table.name) != before.oid:
        reason = "it has another name now"
    if reason is not None:
        raise SnapshotError(
            f"{table.name} changed while it was exported: {reason}",
            expected="a table whose rows the cutoff still shows",
            remedy="run cdc snapshot again",
        )


def read_columns(connection: psycopg2.extensions.connection, table: TableName) -> tuple[Column, ...]:
    """Returns the columns as of the connection's snapshot, with generated ones; none for a table that does not exist.

    Locks the table, or each of its partitions, until the transaction ends, so that nobody can change its columns or
    rewrite it. Raises SourceError as `refuse_changed` does, and if the role may not read the table.
    """
    try:
        if not rows(connection, _COLUMNS, (table.schema, table.table)):
            return ()
        with connection.cursor() as cursor:
            for pages in plan_ranges(connection, table, sys.maxsize):
                cursor.execute(_ACCESS_SHARE.format(sql.Identifier(pages.schema, pages.relation)))
        refuse_changed(connection, table)
        types = read_types(connection)
        found = rows(connection, _COLUMNS, (table.schema, table.table))
    except psycopg2.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"the source refuses to show {table}: {one_line(error)}",
            expected="a role that may read all rows of the table, or of each of its partitions",
            remedy="have an administrator run what cdc setup-source --print-sql prints",
        ) from error
    return tuple(Column(name=row[0], type=canonical_type(types, row[1], row[2]), number=row[3]) for row in found)


def refuse_changed(connection: psycopg2.extensions.connection, table: TableName) -> None:
    """Raises SourceError if the table's rows as of the connection's snapshot are gone, or its name is another table's.

    They are gone once it was rewritten or truncated, or got other partitions. As `oid_now`, it is called right after
    the session took a lock.
    """
    if rows(connection, _CHANGED_SINCE, (table.schema, table.table, oid_now(connection, table)))[0][0]:
        raise SourceError(
            f"{table} was rewritten, truncated or parted otherwise while it was to be read, or has another name",
            expected="a table that keeps its shape and name meanwhile",
            remedy="run the same command again",
        )


def refuse_renamed(connection: psycopg2.extensions.connection, pages: PageRange, names: Sequence[str]) -> None:
    """Raises SourceError if a column has not the name that the connection's snapshot shows: another one may have it.

    A query that names a column reads the one that has the name now, whatever the snapshot shows. As `oid_now`, it is
    called right after the session took a lock.
    """
    found = rows(connection, _NOT_NAMED_SO_NOW, (pages.schema, pages.relation, list(names)))
    if found:
        raise SourceError(
            f"{pages.schema}.{pages.relation} changed its columns while it was to be read:"
            f' column "{found[0][0]}" does not exist, or another one has its name',
            expected="a table whose columns keep their names meanwhile",
            remedy="run the same command again",
        )


def oid_now(connection: psycopg2.extensions.connection, table: TableName) -> int | None:
    """Returns the oid of the table that has this name now, whatever the connection's snapshot shows.

    A session learns of another one's DDL only when it takes a lock: call it after `plan_ranges`, which takes one.
    """
    found: int | None = rows(connection, _NAMED_NOW, (table.schema, table.table))[0][0]
    return found
