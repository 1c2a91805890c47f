"""Reads all columns that a table has at a held position, and checks that its rows as of there still exist."""

import sys
from collections.abc import Sequence

import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import Column, TableName
from cdc_pipeline.settings.libpq import one_line
from cdc_pipeline.sources.postgres.catalogue import canonical_type, read_types, rows
from cdc_pipeline.sources.postgres.page_ranges import PageRange, plan_ranges

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
