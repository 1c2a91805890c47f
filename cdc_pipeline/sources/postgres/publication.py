"""Reads a publication: whether it publishes a table whole, and a mark that changes whenever this may have changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg2.extensions

from cdc_pipeline.record import TableName
from cdc_pipeline.sources.postgres.catalogue import rows

_PUBLICATION = """
SELECT oid::bigint, xmin::text, pubinsert AND pubupdate AND pubdelete AND pubtruncate,
       coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false), puballtables, pubviaroot
FROM pg_publication AS p WHERE pubname = %s
"""
_TABLES = """
-- What the view pg_publication_tables shows; that takes a lock on each table, and so waits for whoever alters one.
WITH RECURSIVE schemas (oid) AS ({schemas}),
listed (relation) AS (
    SELECT r.prrelid FROM pg_publication_rel AS r
    WHERE r.prpubid = %(publication)s AND to_jsonb(r) ->> 'prexcept' IS DISTINCT FROM 'true'
    UNION
    SELECT c.oid FROM pg_class AS c
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
      AND CASE WHEN %(all)s THEN CASE WHEN %(via_root)s THEN NOT c.relispartition ELSE c.relkind = 'r' END
          AND NOT EXISTS (SELECT FROM pg_publication_rel AS r
                          WHERE r.prpubid = %(publication)s
                            AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid))))
          ELSE c.relnamespace IN (SELECT oid FROM schemas) END
),
-- published through its root, a partition is there under the name of that; otherwise, a root by its partitions
below (relation) AS (
    SELECT relation FROM listed WHERE NOT %(via_root)s
    UNION
    SELECT i.inhrelid FROM below JOIN pg_class AS c ON c.oid = below.relation AND c.relkind = 'p'
    JOIN pg_inherits AS i ON i.inhparent = below.relation AND NOT i.inhdetachpending
),
shown (relation) AS (
    SELECT below.relation FROM below JOIN pg_class AS c ON c.oid = below.relation AND c.relkind <> 'p'
    UNION
    SELECT listed.relation FROM listed JOIN pg_class AS c ON c.oid = listed.relation
    WHERE %(via_root)s AND NOT (c.relispartition AND EXISTS (
        SELECT FROM pg_partition_ancestors(c.oid) AS above
        WHERE above.relid <> c.oid AND above.relid IN (SELECT relation FROM listed)))
)
-- one row per published table: its oid, whether rows or columns of it are left out, and the rows of the catalogue
-- that publish it; adding it again, or with other options, makes new ones
SELECT n.nspname::text, c.relname::text, c.oid::bigint,
       to_jsonb(own) ->> 'prqual' IS NOT NULL,
       to_jsonb(own) -> 'prattrs',
       (SELECT string_agg(r.oid || '/' || r.xmin, ' ' ORDER BY r.oid) FROM pg_publication_rel AS r
        WHERE r.prpubid = %(publication)s
          AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid))))
FROM shown JOIN pg_class AS c ON c.oid = shown.relation JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_publication_rel AS own ON own.prpubid = %(publication)s AND own.prrelid = c.oid
    AND c.relnamespace NOT IN (SELECT oid FROM schemas)
"""
_SCHEMAS = """
-- the oid of each table that the publication holds by its schema, and a text that differs once the schema was
-- published again, or the table was in another schema in between
SELECT c.oid::bigint, p.oid || '/' || p.xmin || ' ' || d.xmin
FROM pg_publication_namespace AS p JOIN pg_class AS c ON c.relnamespace = p.pnnspid AND c.relkind IN ('r', 'p')
JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
                   AND d.refclassid = 'pg_namespace'::regclass
WHERE p.pnpubid = %s
"""
_PUBLISHED_SCHEMAS = "SELECT pnnspid FROM pg_publication_namespace WHERE pnpubid = %(publication)s"
_NO_SCHEMAS = "SELECT 0::oid WHERE false"
_HAS_SCHEMAS = """
SELECT 1 FROM pg_publication_namespace AS s JOIN pg_publication AS p ON p.oid = s.pnpubid WHERE p.pubname = %s LIMIT 1
"""
_FIRST_VERSION_WITH_SCHEMAS = 150_000
FIRST_VERSION_WITH_GENERATED = 180_000
"""The first version in which a publication can include stored generated columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationTable:
    """One table of the publication. `columns`: the attribute numbers of a list of columns, None if there is no list.

    `mark`: a text that differs once the table was removed and added again, or published with other options.
    """

    mark: str
    has_row_filter: bool
    columns: frozenset[int] | None

    def hides(self, numbers: Iterable[int]) -> bool:
        """Returns whether one of these columns is left out."""
        return self.columns is not None and not self.columns.issuperset(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A publication. `tables`: by schema and name.

    `is_whole`: it publishes every kind of change. `tells_generated`: it publishes stored generated columns, too.
    `has_all`: it holds all tables.
    """

    is_whole: bool
    tells_generated: bool
    has_all: bool
    tables: Mapping[tuple[str, str], PublicationTable]

    def of(self, name: TableName) -> PublicationTable | None:
        return self.tables.get((name.schema, name.table))


def read_publication(connection: psycopg2.extensions.connection, name: str) -> Publication | None:
    """Reads the publication, None if there is none of this name."""
    found = rows(connection, _PUBLICATION, (name,))
    if not found:
        return None
    oid, changed_by, whole, tells_generated, has_all, via_root = found[0]
    with_schemas = connection.server_version >= _FIRST_VERSION_WITH_SCHEMAS
    by_schema: dict[int, str] = dict(rows(connection, _SCHEMAS, (oid,))) if with_schemas else {}
    query = _TABLES.format(schemas=_PUBLISHED_SCHEMAS if with_schemas else _NO_SCHEMAS)
    tables = {
        (schema, table): PublicationTable(
            mark=" ".join(filter(None, (str(table_oid), f"{oid}/{changed_by}", tables_mark, by_schema.get(table_oid)))),
            has_row_filter=has_row_filter,
            columns=None if columns is None else frozenset(columns),
        )
        for schema, table, table_oid, has_row_filter, columns, tables_mark in rows(
            connection, query, {"publication": oid, "all": has_all, "via_root": via_root}
        )
    }
    return Publication(is_whole=whole, tells_generated=tells_generated, has_all=has_all, tables=tables)


def holds_schemas(connection: psycopg2.extensions.connection, name: str) -> bool:
    """Returns whether the publication holds tables by their schema."""
    with_schemas = connection.server_version >= _FIRST_VERSION_WITH_SCHEMAS
    return with_schemas and bool(rows(connection, _HAS_SCHEMAS, (name,)))
