"""The shape of a table: everything in the source's catalogue that decides what its rows are and how they are read.

A change event carries only names and types of columns. So the catalogue is read whenever a stream is opened and before
each cut is registered. `shape_changes` decides what a difference means.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec
import psycopg2.extensions

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.sources.postgres.catalogue import PARTS, TypeRow, column_type, rows
from cdc_pipeline.sources.postgres.session import answering

_SHAPES = f"""
WITH RECURSIVE wanted AS (SELECT unnest(%(tables)s::oid[]) AS oid), {PARTS},
-- a partitioned table has no rows, so what older ones show is kept with its leaves alone
of_leaves AS MATERIALIZED (
    SELECT leaf.root, a.attname, max(array_to_string(a.attmissingval, '')) AS missing
    FROM parts AS leaf JOIN pg_attribute AS a ON a.attrelid = leaf.relation
    WHERE leaf.root <> leaf.relation AND leaf.kind <> 'p' AND a.atthasmissing GROUP BY leaf.root, a.attname
),
-- types that a column's text depends on: base types of domains, elements of arrays and ranges, attributes of
-- composite types
used (relation, type) AS (
    SELECT a.attrelid, a.atttypid FROM pg_attribute AS a JOIN wanted AS w ON w.oid = a.attrelid
    WHERE a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT used.relation, below.type
    FROM used JOIN pg_type AS t ON t.oid = used.type
    CROSS JOIN LATERAL (
        SELECT t.typbasetype WHERE t.typbasetype <> 0
        UNION ALL SELECT t.typelem WHERE t.typelem <> 0
        UNION ALL SELECT r.rngsubtype FROM pg_range AS r
                  WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT a.atttypid FROM pg_attribute AS a
                  WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS below (type)
)
-- all of it from tables of the catalogue: its functions answer for now, not for the snapshot of the transaction
SELECT c.oid::bigint, c.relfilenode::bigint, c.relnatts,
       (SELECT jsonb_agg(jsonb_build_array(
                   a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, a.xmin::text,
                   -- an array of one value, whose type decides how the array's own text parts and quotes values
                   CASE WHEN a.atthasmissing THEN array_to_string(a.attmissingval, '')
                        WHEN c.relkind = 'p' THEN (
                            SELECT l.missing FROM of_leaves AS l WHERE l.root = c.oid AND l.attname = a.attname) END,
                   -- this function takes a lock on the table
                   CASE WHEN a.attgenerated <> '' AND c.oid = ANY (%(shown)s::oid[])
                        THEN pg_get_expr(d.adbin, d.adrelid) END,
                   -- what the expression reads: until version 14 noted with the column, since then with the expression
                   CASE WHEN a.attgenerated <> '' THEN (
                       SELECT jsonb_agg(DISTINCT p.refobjsubid ORDER BY p.refobjsubid) FROM pg_depend AS p
                       WHERE p.refclassid = 'pg_class'::regclass AND p.refobjid = a.attrelid
                         AND p.refobjsubid NOT IN (0, a.attnum)
                         AND (p.classid, p.objid, p.objsubid) IN (
                             ('pg_attrdef'::regclass, d.oid, 0), ('pg_class'::regclass, a.attrelid, a.attnum))) END,
                   a.attcollation::bigint,
                   -- what else the text names, such as functions and types, by their present names
                   CASE WHEN a.attgenerated <> '' THEN concat_ws('/', d.oid, d.xmin, (
                       SELECT string_agg(other.identity, ',' ORDER BY other.identity)
                       FROM pg_depend AS p
                       CROSS JOIN LATERAL pg_identify_object(p.refclassid, p.refobjid, p.refobjsubid) AS other
                       WHERE p.refclassid NOT IN ('pg_class'::regclass, 'pg_attrdef'::regclass)
                         AND (p.classid, p.objid, p.objsubid) IN (
                             ('pg_attrdef'::regclass, d.oid, 0), ('pg_class'::regclass, a.attrelid, a.attnum)))
                   ) ELSE '' END)
                   ORDER BY a.attnum)
        FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT jsonb_object_agg(part.oid, part.shown) FROM (
            SELECT e.oid::text, e.enumlabel FROM pg_enum AS e
            WHERE e.enumtypid IN (SELECT type FROM used WHERE used.relation = c.oid)
            UNION ALL
            -- names are shown, and not compared
            SELECT 'type ' || t.oid, concat(string_agg(a.attnum || ' ' || a.atttypid, ', ' ORDER BY a.attnum), ' = ',
                       t.typname, ' (', string_agg(a.attname || ' ' || b.typname, ', ' ORDER BY a.attnum), ')')
            FROM pg_type AS t LEFT JOIN pg_attribute AS a
                ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN pg_type AS b ON b.oid = a.atttypid
            WHERE t.typrelid <> 0 AND t.oid IN (SELECT type FROM used WHERE used.relation = c.oid)
            GROUP BY t.oid) AS part (oid, shown)),
       CASE WHEN c.relkind = 'p' THEN (
           SELECT coalesce(jsonb_object_agg(leaf.relation::text, jsonb_build_array(
                      file.relfilenode::bigint,
                      -- ATTACH writes the leaf's columns again; CREATE ... PARTITION OF writes all rows by one command
                      (SELECT count(DISTINCT (a.xmin::text, a.cmin::text)) = 1 FROM pg_attribute AS a
                       WHERE a.attrelid = leaf.relation AND a.attnum IN (-1, 1))
                          AND (SELECT i.xmin::text FROM pg_inherits AS i WHERE i.inhrelid = leaf.relation)
                              = (SELECT a.xmin::text FROM pg_attribute AS a
                                 WHERE a.attrelid = leaf.relation AND a.attnum = -1),
                      (SELECT string_agg(i.xmin::text, ' ' ORDER BY i.inhrelid) FROM pg_inherits AS i
                       WHERE i.inhrelid IN (SELECT relid FROM pg_partition_ancestors(leaf.relation))))),
                  '{{}}')
           FROM parts AS leaf JOIN pg_class AS file ON file.oid = leaf.relation
           WHERE leaf.root = c.oid AND leaf.kind <> 'p') END,
       -- PostgreSQL lets no table be unlogged that a publication names
       EXISTS (SELECT FROM pg_publication_rel AS r WHERE r.prrelid = c.oid), c.reltoastrelid::bigint
FROM pg_class AS c JOIN wanted AS w ON w.oid = c.oid
"""
COMPOSITE = "type "
"""How the key of a composite type begins in `SourceShape.labels`."""
_END = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    """One column. `number`: its attribute number. `changed_by`: the transaction that wrote its row of the catalogue.

    `missing`: the value of rows that are older than the column, as text; None for NULL. `generated`: the expression
    that computes the column from the columns with the numbers `inputs`; None for a column that is written.
    `collation`: the oid of its collation, 0 for none, and in a shape of an older version of this project.
    `expression`: the row of the catalogue that has `generated`, and who wrote it; empty in a shape of such a version.
    """

    number: int
    name: str
    type_oid: int
    modifier: int
    changed_by: str
    missing: str | None
    generated: str | None
    inputs: tuple[int, ...] = ()
    collation: int = 0
    expression: str = ""
    type: str = ""

    @property
    def look(self) -> tuple[str, int, int]:
        """The properties of the column that the stream shows."""
        return self.name, self.type_oid, self.modifier


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShape:
    """One table as the catalogue had it at one time.

    `generation`: the end of the source's log when the shape was read; 0 for the first shape of a table. Every event
    that commits after it has this shape or a later one. `last_number`: the highest attribute number ever used.
    `labels`: what the columns' texts depend on besides: enum labels by oid; by "type " and its oid, a composite
    type: numbers and types of its attributes, " = ", and their names. `leaves`: for a partitioned table, by the leaf's
    oid: its file number, whether it was created as a partition, and the transactions that attached it. `is_named`: a
    publication names the table now, and not only its schema or all tables; it is not stored. `large_values`: the oid of
    the table with its large values, 0 for none.
    """

    oid: int
    file_number: int | None
    last_number: int
    columns: tuple[ShapeColumn, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    leaves: Mapping[str, tuple[int, bool, str]] | None = None
    is_named: bool = True
    large_values: int = 0
    generation: int = 0

    @property
    def streamed(self) -> tuple[ShapeColumn, ...]:
        """The columns that change events always carry: all that are not generated."""
        return tuple(column for column in self.columns if column.generated is None)

    @property
    def appearance(self) -> tuple[tuple[str, int, int], ...]:
        """The properties of the table that the stream always shows."""
        return tuple(column.look for column in self.streamed)

    def shows(self, columns: Sequence[tuple[str, int, int]]) -> bool:
        """Returns whether an event with these columns may have this shape.

        An event has generated columns only if the publication includes them.
        """
        shown = set(columns)
        return tuple(columns) == tuple(
            column.look for column in self.columns if column.generated is None or column.look in shown
        )

    def looks_as(self, other: "SourceShape") -> bool:
        """Returns whether both shapes have the same columns in change events."""
        mine, theirs = ([(column.number, column.look) for column in shape.streamed] for shape in (self, other))
        return mine == theirs

    def schema(self, key: Sequence[str]) -> TableSchema:
        columns = tuple(
            Column(name=column.name, type=column.type, number=column.number, missing=column.missing)
            for column in self.columns
        )
        return TableSchema(columns=columns, key=tuple(key), generation=self.generation)

    def is_now(self, other: "SourceShape") -> bool:
        """Returns whether the catalogue is the same for both shapes, apart from the time at which they were read."""
        return replace(self, generation=0, columns=_bare(self)) == replace(other, generation=0, columns=_bare(other))

    def with_types(self, types: Mapping[int, str]) -> "SourceShape":
        """Returns the shape with these canonical names of its columns' types, which are by column number."""
        return replace(
            self, columns=tuple(replace(column, type=types.get(column.number, "")) for column in self.columns)
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the shape as the metadata store returns it: with lists in place of tuples."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del document["is_named"]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "SourceShape":
        return msgspec.convert(document, cls)


def _bare(shape: SourceShape) -> tuple[ShapeColumn, ...]:
    """Returns the columns without the fields that are derived or copied from earlier shapes."""
    return tuple(replace(column, type="", missing=None) for column in shape.columns)


def query_shapes(
    connection: psycopg2.extensions.connection, oids: Sequence[int], shown: Sequence[int]
) -> dict[int, SourceShape]:
    """Reads the shapes of tables in one statement, by oid. Leaves out tables that are gone.

    Generated columns have their expressions only in the tables `shown`, on each of which the server takes a lock. The
    columns have no canonical type names yet; `named` adds them.
    """
    with answering():
        found = rows(connection, _SHAPES, {"tables": list(oids), "shown": list(shown)})
    return {row[0]: _shape(row) for row in found}


def is_partition(connection: psycopg2.extensions.connection, oid: int) -> bool:
    """Returns whether a table with this oid exists and is a partition now."""
    with answering():
        return bool(rows(connection, "SELECT 1 FROM pg_class WHERE oid = %s AND relispartition", (oid,)))


def is_running(connection: psycopg2.extensions.connection, xid: int) -> bool:
    """Returns whether other sessions do not see the transaction yet, as while its commit waits for a standby."""
    held = "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND granted AND transactionid::text = %s"
    with answering():
        return bool(rows(connection, held, (str(xid),)))


def read_end(connection: psycopg2.extensions.connection) -> int:
    """Returns the end of the source's log. Whatever commits later has a higher position."""
    with answering():
        return int(rows(connection, _END)[0][0])


def named(shape: SourceShape, types: Mapping[int, TypeRow], as_text: Collection[str] = ()) -> SourceShape:
    """Returns the shape with canonical type names. `as_text`: columns that the lake keeps as the source's texts."""
    columns = tuple(
        replace(column, type=column_type(types, column.type_oid, column.modifier, as_text=column.name in as_text))
        for column in shape.columns
    )
    return replace(shape, columns=columns)


def _shape(row: Sequence[Any]) -> SourceShape:
    oid, file_number, last_number, columns, labels, leaves, is_named, large_values = row
    return SourceShape(
        oid=oid,
        file_number=file_number,
        last_number=last_number,
        columns=tuple(_column(column) for column in columns or ()),
        labels=labels or {},
        leaves=None
        if leaves is None
        else {oid: (number, bool(own), links or "") for oid, (number, own, links) in leaves.items()},
        is_named=is_named,
        large_values=large_values,
    )


def _column(entry: Sequence[Any]) -> ShapeColumn:
    column = ShapeColumn(*entry)
    return replace(column, inputs=tuple(column.inputs or ()))
