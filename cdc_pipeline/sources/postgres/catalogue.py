"""Reads a PostgreSQL server's identity, types, slot and table names from its catalogue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2.extensions

from cdc_pipeline.errors import SourceError
from cdc_pipeline.types import canonical_name, text_of
from cdc_pipeline.types.table import ARRAY

_SERVER = """
SELECT current_setting('wal_level'), current_setting('server_version_num')::int,
       (SELECT system_identifier::text FROM pg_control_system()),
       -- the file's name has the timeline at once; the control file only after the checkpoint behind a promotion
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END,
       CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint END,
       -- Amazon RDS and Aurora let members of this role replicate, and set REPLICATION for nobody
       (SELECT rolreplication OR rolsuper OR EXISTS (
            SELECT FROM pg_roles AS r WHERE r.rolname = 'rds_replication' AND pg_has_role(r.oid, 'MEMBER'))
        FROM pg_roles WHERE rolname = current_user), current_user, current_database()
"""
_TYPES = """
-- an array whose elements are parted by other than a comma counts as text; of the built-in ones only box[] is such
SELECT t.oid, n.nspname, t.typname, t.typtype, t.typbasetype, t.typtypmod,
       CASE WHEN t.typdelim = ',' OR t.oid = 'box[]'::regtype THEN t.typelem ELSE 0 END, t.typcategory
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
"""
_SLOT = """
SELECT plugin, database, active_pid, (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, wal_status,
       to_jsonb(s) ->> 'invalidation_reason', coalesce((to_jsonb(s) ->> 'two_phase')::boolean, false)
FROM pg_replication_slots AS s WHERE slot_name = %s
"""
_TABLE_NAMES = """
-- a partition comes under the name of its table
SELECT current_database(), n.nspname::text, c.relname::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""
PARTS = """
-- each table of `wanted` and its partitions; the functions of the server would take a lock on each of them
parts (root, relation, kind) AS (
    SELECT c.oid, c.oid, c.relkind FROM wanted AS w JOIN pg_class AS c ON c.oid = w.oid
    UNION ALL
    SELECT parts.root, c.oid, c.relkind
    FROM parts JOIN pg_inherits AS i ON i.inhparent = parts.relation AND NOT i.inhdetachpending
    JOIN pg_class AS c ON c.oid = i.inhrelid WHERE parts.kind = 'p'
)
"""
_DECODES_AT_REPLICA = 190_000
"""From this version on, the first logical slot makes a server with `wal_level = replica` write what decoding needs."""
_VECTORS = frozenset({"int2vector", "oidvector"})


@dataclass(frozen=True, slots=True)
class Server:
    """A PostgreSQL server and the pipeline's role on it. `end_position`: the present end of its log."""

    wal_level: str
    version_number: int
    system_identifier: str
    timeline: int
    end_position: int
    may_replicate: bool
    user: str
    database: str

    @property
    def can_decode(self) -> bool:
        """Whether its `wal_level` allows logical slots."""
        return self.wal_level == "logical" or (
            self.wal_level == "replica" and self.version_number >= _DECODES_AT_REPLICA
        )


@dataclass(frozen=True, slots=True)
class TypeRow:
    """The fields of one row of pg_type that decide a column's type, as `_TYPES` orders them."""

    namespace: str
    name: str
    kind: str
    base: int
    base_modifier: int
    element: int
    category: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot.

    `confirmed_position`: the server no longer sends transactions that committed before it. `wal_status`: "lost" if the
    server dropped log that the slot needs. `lost_by`: why, if the server says so. `two_phase`: the server sends
    prepared transactions before they commit.
    """

    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed_position: int | None
    wal_status: str | None
    lost_by: str | None
    two_phase: bool = False


def read_server(connection: psycopg2.extensions.connection) -> Server:
    """Reads the server's identity. Raises SourceError for a standby, which cannot be written to."""
    row = rows(connection, _SERVER)[0]
    if row[3] is None:
        raise SourceError(
            f"the source, system {row[2]}, is a standby",
            expected="the primary server",
            remedy="point source.url at the primary, or wait until this one is promoted",
        )
    return Server(*row)


def read_types(connection: psycopg2.extensions.connection) -> dict[int, TypeRow]:
    """Returns every type by its oid. Read it again when a relation shows an oid that is not in it."""
    return {oid: TypeRow(*fields) for oid, *fields in rows(connection, _TYPES)}


def canonical_type(types: Mapping[int, TypeRow], oid: int, modifier: int) -> str:
    """Returns the name that `cdc_pipeline.types` uses for a column's type. A domain counts as its base type.

    Raises SourceError for an oid that is not in `types`.
    """
    row = types.get(oid)
    if row is None:
        raise SourceError(
            f"the catalogue has no type with the oid {oid}",
            expected="the type of each column of the table",
            remedy="was it dropped this moment? run the command again",
        )
    if row.kind == "d":
        return canonical_type(types, row.base, row.base_modifier if modifier < 0 else modifier)
    if row.category == "A" and row.element and row.name not in _VECTORS:
        return canonical_type(types, row.element, modifier) + ARRAY
    return canonical_name(namespace=row.namespace, name=row.name, modifier=modifier)


def column_type(types: Mapping[int, TypeRow], oid: int, modifier: int, *, as_text: bool) -> str:
    name = canonical_type(types, oid, modifier)
    return text_of(name) if as_text else name


def read_slot(connection: psycopg2.extensions.connection, slot: str) -> Slot | None:
    found = rows(connection, _SLOT, (slot,))
    return Slot(*found[0]) if found else None


def table_names(connection: psycopg2.extensions.connection) -> list[tuple[str, str, str]]:
    """Returns database, schema and name of every permanent table that is not a partition."""
    return rows(connection, _TABLE_NAMES)


def rows(
    connection: psycopg2.extensions.connection,
    query: str,
    parameters: Sequence[object] | Mapping[str, object] = (),
) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return list(cursor.fetchall())
