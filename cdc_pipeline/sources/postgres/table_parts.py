"""Reads the relations that a table consists of, and what the server lets the pipeline see of their rows."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psycopg2.extensions

from cdc_pipeline.sources.postgres.catalogue import PARTS, rows

_PARTS = f"""
WITH RECURSIVE wanted AS (SELECT unnest(%(tables)s::oid[]) AS oid), {PARTS}
SELECT part.of::bigint, format('%%I.%%I', n.nspname, c.relname), n.nspname::text, c.relname::text,
       CASE WHEN c.relkind = 'f' THEN 'foreign' WHEN c.relpersistence <> 'p' THEN 'unlogged' ELSE '' END,
       c.relreplident = 'f',
       -- the server takes no deferrable primary key as the replica identity
       coalesce((SELECT array_agg(a.attname::text ORDER BY k.place)
                 FROM pg_index AS i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
                 JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                 WHERE i.indrelid = c.oid AND i.indimmediate AND i.indnkeyatts >= k.place
                   AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END), '{{}}'),
       NOT %(rights)s OR has_schema_privilege(n.oid, 'USAGE'),
       NOT %(rights)s OR part.is_above OR has_table_privilege(c.oid, 'SELECT'),
       %(rights)s AND NOT part.is_above AND row_security_active(c.oid),
       CASE WHEN part.is_named THEN (
           SELECT jsonb_agg(jsonb_build_array(i.indimmediate, (
                      SELECT jsonb_agg(a.attname) FROM pg_attribute AS a WHERE a.attrelid = i.indrelid
                        AND a.attnum = ANY ((i.indkey::int2[])[:i.indnkeyatts - 1]))))
           FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
                                AND i.indpred IS NULL AND i.indexprs IS NULL) END,
       coalesce((SELECT array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum))
                 FROM pg_index AS i JOIN pg_attribute AS a
                   ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[:i.indnkeyatts - 1])
                 WHERE i.indrelid = c.oid AND i.indisprimary AND part.is_named), '{{}}')
FROM (SELECT root AS of, relation, relation = root AS is_named,
             relation = root AND count(*) OVER (PARTITION BY root) > 1 AS is_above
      FROM parts WHERE relation = root OR kind <> 'p') AS part
JOIN pg_class AS c ON c.oid = part.relation JOIN pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY 1, NOT part.is_named, 2
"""
UNLOGGED = "unlogged"
"""A value of `TablePart.not_in_log`."""


@dataclass(frozen=True, slots=True)
class TablePart:
    """The table itself, or a partition of it that has rows.

    `sql`: its quoted name. `not_in_log`: "foreign" or "unlogged" if its changes are not in the server's log for that
    reason, else "". `is_whole`: updates and deletes carry the whole old row. `identity`: otherwise, the columns of the
    old row that they carry; if it is empty, the server refuses updates and deletes of the table once it is published.
    `reads`: the pipeline's role may read its rows. `is_filtered`: row-level security hides rows from that role. Both do
    not concern a table that has its rows in partitions: a copy reads those. `unique`: of the table itself, each unique
    index: whether the server checks it with each row, not at the end of the statement or transaction, and its columns.
    `primary_key`: of the table itself, the columns of its primary key.
    """

    sql: str
    schema: str
    name: str
    not_in_log: str
    is_whole: bool
    identity: Sequence[str]
    uses_schema: bool
    reads: bool
    is_filtered: bool
    unique: Sequence[tuple[bool, Sequence[str]]] | None
    primary_key: Sequence[str]

    def lacking(self, key: Sequence[str]) -> tuple[str, ...]:
        """Returns the columns of the id that updates and deletes do not carry."""
        return () if self.is_whole else tuple(name for name in key if name not in self.identity)

    def carries(self, key: Sequence[str]) -> bool:
        """Returns whether updates and deletes carry the id; the whole row if the id is empty."""
        return self.is_whole or (bool(key) and not self.lacking(key))

    def may_repeat(self, key: Sequence[str]) -> bool:
        """Returns whether rows may share the id within a transaction: only deferrable constraints make it unique."""
        checks = [at_once for at_once, names in self.unique or () if set(key).issuperset(names)]
        return bool(checks) and not any(checks)


def parts_that_hide(parts: Sequence[TablePart], key: Sequence[str], *, is_new: bool) -> list[TablePart]:
    """Returns the parts whose updates and deletes do not carry the id.

    `is_new` False: without partitions of a published table for which the server refuses updates and deletes.
    """
    return [part for part in parts if not part.carries(key) and (is_new or part is parts[0] or part.identity)]


def read_parts(
    connection: psycopg2.extensions.connection, tables: Collection[int], *, with_rights: bool = True
) -> Mapping[int, Sequence[TablePart]]:
    """Returns the parts of each table, by its oid: the table itself, then its partitions that have rows.

    `with_rights` False: does not ask what the pipeline's role may read, and shows all parts as readable.
    """
    found: defaultdict[int, list[TablePart]] = defaultdict(list)
    for oid, *fields in rows(connection, _PARTS, {"tables": list(tables), "rights": with_rights}):
        found[oid].append(TablePart(*fields))
    return found
