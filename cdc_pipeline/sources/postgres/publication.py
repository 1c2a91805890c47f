"""Reads a publication: whether it publishes a table whole, and a mark that changes whenever this may have changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg2.extensions

from cdc_pipeline.record import TableName
from cdc_pipeline.sources.postgres.catalogue import rows

_PUBLICATION = """
SELECT oid::bigint, xmin::text, pubinsert AND pubupdate AND pubdelete AND pubtruncate,
       coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false), puballtables
FROM pg_publication AS p WHERE pubname = %s
"""
_TABLES = """
-- one row per published table: its oid, whether rows or columns of it are left out, and the rows of the catalogue
-- that publish it; adding it again, or with other options, makes new ones
SELECT t.schemaname::text, t.tablename::text, c.oid::bigint,
       to_jsonb(t) ->> 'rowfilter' IS NOT NULL,
       to_jsonb(t) -> 'attnames',
       (SELECT string_agg(r.oid || '/' || r.xmin, ' ' ORDER BY r.oid) FROM pg_publication_rel AS r
        WHERE r.prpubid = %(publication)s
          AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid))))
FROM pg_publication_tables AS t
JOIN pg_namespace AS n ON n.nspname = t.schemaname
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = %(name)s
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
_HAS_SCHEMAS = """
SELECT 1 FROM pg_publication_namespace AS s JOIN pg_publication AS p ON p.oid = s.pnpubid WHERE p.pubname = %s LIMIT 1
"""
_FIRST_VERSION_WITH_SCHEMAS = 150_000
FIRST_VERSION_WITH_GENERATED = 180_000
"""The first version in which a publication can include stored generated columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationTable:
    """One table of the publication. `columns`: those that are published; None if the server cannot leave any out.

    `mark`: a text that differs once the table was removed and added again, or published with other options.
    """

    mark: str
    has_row_filter: bool
    columns: frozenset[str] | None

    def hides(self, names: Iterable[str]) -> bool:
        """Returns whether one of these columns is left out."""
        return self.columns is not None and not self.columns.issuperset(names)


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
    oid, changed_by, whole, tells_generated, has_all = found[0]
    with_schemas = connection.server_version >= _FIRST_VERSION_WITH_SCHEMAS
    by_schema: dict[int, str] = dict(rows(connection, _SCHEMAS, (oid,))) if with_schemas else {}
    tables = {
        (schema, table): PublicationTable(
            mark=" ".join(filter(None, (str(table_oid), f"{oid}/{changed_by}", tables_mark, by_schema.get(table_oid)))),
            has_row_filter=has_row_filter,
            columns=frozenset(columns) if columns else None,
        )
        for schema, table, table_oid, has_row_filter, columns, tables_mark in rows(
            connection, _TABLES, {"publication": oid, "name": name}
        )
    }
    return Publication(is_whole=whole, tells_generated=tells_generated, has_all=has_all, tables=tables)


def holds_schemas(connection: psycopg2.extensions.connection, name: str) -> bool:
    """Returns whether the publication holds tables by their schema."""
    with_schemas = connection.server_version >= _FIRST_VERSION_WITH_SCHEMAS
    return with_schemas and bool(rows(connection, _HAS_SCHEMAS, (name,)))
