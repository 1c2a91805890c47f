"""Reads a table from the source's catalogue: its kind, the right to read it, and the columns that its events carry."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2.extensions

from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.sources.postgres.catalogue import TypeRow, read_types, rows
from cdc_pipeline.sources.postgres.shape import SourceShape, named, read_shapes

STORED, VIRTUAL = "sv"
"""Values of `pg_attribute.attgenerated`."""
_TABLE = """
SELECT c.oid, c.relkind::text, c.relreplident::text,
       has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_INDEXED_COLUMNS = """
SELECT i.indisprimary, i.indisreplident, array_agg(a.attname::text ORDER BY k.place)
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND (i.indisprimary OR i.indisreplident) GROUP BY i.indexrelid, i.indisprimary, i.indisreplident
"""
_WITHOUT_WHOLE_ROWS = """
SELECT format('%%I.%%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relreplident <> 'f' AND c.relkind = 'r'
  AND (c.oid = %(table)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s)))
ORDER BY 1
"""
_COMPUTED_OTHERWISE = """
SELECT DISTINCT a.attname::text COLLATE "C"
FROM pg_attribute AS a JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
CROSS JOIN LATERAL pg_partition_tree(a.attrelid) AS leaf
JOIN pg_attribute AS b ON b.attrelid = leaf.relid AND b.attname = a.attname
JOIN pg_attrdef AS e ON e.adrelid = b.attrelid AND e.adnum = b.attnum
WHERE a.attrelid = %s AND a.attgenerated <> ''
  AND pg_get_expr(e.adbin, e.adrelid) <> pg_get_expr(d.adbin, d.adrelid)
ORDER BY 1
"""
_GENERATED = """
SELECT coalesce(array_agg(DISTINCT attgenerated::text) FILTER (WHERE attgenerated <> ''), '{}'),
       EXISTS (SELECT FROM pg_class AS c WHERE c.relreplident = 'f' AND c.relkind = 'r'
               AND (c.oid = %(table)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s))))
FROM pg_attribute WHERE attrelid = %(table)s AND attnum > 0 AND NOT attisdropped
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueTable:
    """A table as the source's catalogue has it. `identity`: the columns that a delete event carries.

    `without_whole_rows`: the table, or those of its partitions, whose updates and deletes do not carry the whole old
    row. `has_whole_rows`: for the table, or at least one partition, they do. `computed_otherwise`: generated columns
    for which a partition has another expression. `generated`: "s" if it has stored generated columns, "v" if it has
    virtual ones.
    """

    name: TableName
    oid: int
    relkind: str
    readable: bool
    shape: SourceShape
    primary_key: tuple[str, ...]
    identity: tuple[str, ...]
    without_whole_rows: tuple[str, ...]
    computed_otherwise: tuple[str, ...]
    generated: frozenset[str]
    has_whole_rows: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that change events carry."""
        return tuple(column.name for column in self.shape.streamed)

    def schema(self, key: tuple[str, ...]) -> TableSchema:
        return self.shape.schema(key)


def read_table(
    connection: psycopg2.extensions.connection,
    types: Mapping[int, TypeRow],
    name: TableName,
    as_text: Collection[str] = (),
) -> CatalogueTable | None:
    """Reads a table. Returns None if it does not exist or was dropped during the read.

    `as_text`: columns whose values the lake keeps as the source's texts.
    """
    found = rows(connection, _TABLE, (name.schema, name.table))
    if not found:
        return None
    oid, relkind, replica_identity, readable = found[0]
    shape = read_shapes(connection, [oid]).get(oid)
    if shape is None:
        return None
    if any(column.type_oid not in types for column in shape.columns):
        types = read_types(connection)
    indexes = rows(connection, _INDEXED_COLUMNS, (oid,))
    generated, has_whole_rows = rows(connection, _GENERATED, {"table": oid})[0]
    primary_key = next((tuple(row[2]) for row in indexes if row[0]), ())
    return CatalogueTable(
        name=name,
        oid=oid,
        relkind=relkind,
        readable=readable,
        shape=named(shape, types, as_text),
        primary_key=primary_key,
        identity=_identity(replica_identity, shape, primary_key, indexes),
        without_whole_rows=tuple(row[0] for row in rows(connection, _WITHOUT_WHOLE_ROWS, {"table": oid})),
        computed_otherwise=tuple(row[0] for row in rows(connection, _COMPUTED_OTHERWISE, (oid,))),
        generated=frozenset(generated),
        has_whole_rows=has_whole_rows,
    )


def _identity(
    replica_identity: str, shape: SourceShape, primary_key: tuple[str, ...], indexes: Sequence[Any]
) -> tuple[str, ...]:
    match replica_identity:
        case "f":
            return tuple(column.name for column in shape.streamed)
        case "i":
            return next((tuple(row[2]) for row in indexes if row[1]), ())
        case "d":
            return primary_key
        case _:
            return ()
