"""Reads a table from the source's catalogue: its kind, its parts, and the columns that its events carry."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import psycopg2.extensions

from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.sources.postgres.catalogue import PARTS, TypeRow, read_types, rows
from cdc_pipeline.sources.postgres.shape import SourceShape, named, query_shapes
from cdc_pipeline.sources.postgres.table_parts import TablePart, read_parts

STORED, VIRTUAL = "sv"
"""Values of `pg_attribute.attgenerated`."""
_TABLE = """
SELECT c.oid, c.relkind::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_COMPUTED_OTHERWISE = f"""
WITH RECURSIVE wanted AS (SELECT %s::oid AS oid), {PARTS}
SELECT DISTINCT a.attname::text COLLATE "C"
FROM pg_attribute AS a JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
JOIN parts AS leaf ON leaf.root = a.attrelid AND leaf.relation <> a.attrelid
JOIN pg_attribute AS b ON b.attrelid = leaf.relation AND b.attname = a.attname
JOIN pg_attrdef AS e ON e.adrelid = b.attrelid AND e.adnum = b.attnum
WHERE a.attgenerated <> ''
  -- the function takes a lock on the table, so it is called for partitioned ones alone
  AND CASE WHEN leaf.relation <> a.attrelid THEN
      pg_get_expr(e.adbin, e.adrelid) <> pg_get_expr(d.adbin, d.adrelid) END
ORDER BY 1
"""
_GENERATED = """
SELECT DISTINCT attgenerated::text FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated <> ''
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueTable:
    """A table as the source's catalogue has it. `parts`: the table itself, then its partitions that have rows.

    `computed_otherwise`: generated columns for which a partition has another expression. `generated`: "s" if it has
    stored generated columns, "v" if it has virtual ones.
    """

    name: TableName
    oid: int
    relkind: str
    shape: SourceShape
    parts: Sequence[TablePart]
    computed_otherwise: tuple[str, ...]
    generated: frozenset[str]

    @property
    def is_table(self) -> bool:
        """Whether it has changes of its own in the log: it is no view, and no foreign table."""
        return self.relkind in ("r", "p")

    @property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(self.parts[0].primary_key)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that change events carry."""
        return tuple(column.name for column in self.shape.streamed)

    @property
    def has_whole_rows(self) -> bool:
        """Whether updates and deletes of the table, or of a partition of it, carry the whole old row."""
        return any(part.is_whole for part in self.parts[1:] or self.parts)

    def schema(self, key: tuple[str, ...]) -> TableSchema:
        return self.shape.schema(key)


def read_table(
    connection: psycopg2.extensions.connection,
    types: Mapping[int, TypeRow],
    name: TableName,
    as_text: Collection[str] = (),
    known: Mapping[int, SourceShape] | None = None,
) -> CatalogueTable | None:
    """Reads a table. Returns None if it does not exist or was dropped during the read.

    `as_text`: columns whose values the lake keeps as the source's texts. `known`: see `read_shapes`.
    """
    found = rows(connection, _TABLE, (name.schema, name.table))
    if not found:
        return None
    oid, relkind = found[0]
    shape = read_shapes(connection, [oid], known).get(oid)
    parts = read_parts(connection, [oid]).get(oid)
    if shape is None or parts is None:
        return None
    if any(column.type_oid not in types for column in shape.columns):
        types = read_types(connection)
    return CatalogueTable(
        name=name,
        oid=oid,
        relkind=relkind,
        shape=named(shape, types, as_text),
        parts=parts,
        computed_otherwise=tuple(row[0] for row in rows(connection, _COMPUTED_OTHERWISE, (oid,))),
        generated=frozenset(row[0] for row in rows(connection, _GENERATED, (oid,))),
    )


def read_shapes(
    connection: psycopg2.extensions.connection, oids: Sequence[int], known: Mapping[int, SourceShape] | None = None
) -> dict[int, SourceShape]:
    """Reads the shapes of tables, each by one statement, by oid. Leaves out tables that are gone.

    Expressions of `known` shapes that are the same are not asked for again, since the server locks a table to show one.
    """
    known = known or {}
    shapes = {
        oid: _with_expressions(shape, known.get(oid)) for oid, shape in query_shapes(connection, oids, ()).items()
    }
    unread = [oid for oid, shape in shapes.items() if shape is None]
    again = query_shapes(connection, unread, unread) if unread else {}
    return {oid: shape for oid, shape in (shapes | again).items() if shape is not None}


def _with_expressions(now: SourceShape, before: SourceShape | None) -> SourceShape | None:
    """Returns `now` with the texts of the same expressions of `before`. Returns None if one is not there."""
    wanted = _expressions(now)
    if not wanted:
        return now
    if before is None or not wanted.items() <= _expressions(before).items():
        return None
    texts = {column.number: column.generated for column in before.columns if column.number in wanted}
    return replace(now, columns=tuple(replace(each, generated=texts.get(each.number)) for each in now.columns))


def _expressions(shape: SourceShape) -> dict[int, tuple[str, tuple[str | None, ...]]]:
    """Returns what the text of each generated column's expression depends on: its row, and the names of its inputs."""
    names = {column.number: column.name for column in shape.columns}
    return {
        column.number: (column.expression, tuple(map(names.get, column.inputs)))
        for column in shape.columns
        if column.expression
    }
