"""The source made ready for streaming: what is missing is said as SQL, what cannot work is refused by name."""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg2.extensions
from psycopg2 import sql

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import PostgresSource, TableSettings
from cdc_pipeline.sources.postgres_catalogue import (
    CatalogueTable,
    Server,
    Slot,
    read_published,
    read_server,
    read_slot,
    read_table,
    read_types,
)
from cdc_pipeline.steps import OnStep, step

_OLDEST_VERSION, _NEWEST_VERSION = 14, 18
PLUGIN = "pgoutput"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table that passed every check; one without a key is a bag of rows."""

    name: TableName
    oid: int
    schema: TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """What was found, and the statements that are still to be executed, in order."""

    server: Server
    tables: tuple[SourceTable, ...]
    statements: tuple[str, ...]
    slot: Slot | None


def plan_source(
    connection: psycopg2.extensions.connection, source: PostgresSource, tables: Sequence[TableSettings]
) -> SourcePlan:
    """Raises SourceError that names the first thing that cannot work, and how to mend it. Changes nothing."""
    server = read_server(connection)
    _check_server(server, source)
    types = read_types(connection)
    found = tuple(_check_table(table, read_table(connection, types, table.table)) for table in tables)
    published = read_published(connection, source.publication)
    slot = read_slot(connection, source.slot)
    _check_slot_kind(slot, source, server)
    statements = [
        *_publication_statements(connection, source, [table.name for table in found], published),
        *_slot_statements(connection, source, slot),
    ]
    return SourcePlan(server=server, tables=found, statements=tuple(statements), slot=slot)


def execute_plan(connection: psycopg2.extensions.connection, plan: SourcePlan, on_step: OnStep) -> None:
    """Every statement in its own transaction: a slot cannot be created in one that has written."""
    connection.rollback()
    connection.autocommit = True
    for statement in plan.statements:
        with step(on_step, "source.set_up"), connection.cursor() as cursor:
            cursor.execute(statement)


def _check_server(server: Server, source: PostgresSource) -> None:
    version = server.version_number // 10_000
    if not _OLDEST_VERSION <= version <= _NEWEST_VERSION:
        raise SourceError(
            f"the source is PostgreSQL {version}",
            expected=f"a version from {_OLDEST_VERSION} to {_NEWEST_VERSION}",
            remedy="point source.url at a supported server",
        )
    if server.wal_level != "logical":
        raise SourceError(
            f"the source has wal_level = {server.wal_level}",
            expected="wal_level = logical",
            remedy="run ALTER SYSTEM SET wal_level = 'logical' and restart the server",
        )
    if not server.may_replicate:
        raise SourceError(
            f"the user {server.user} may not replicate",
            expected="a role with REPLICATION, to read the slot " + source.slot,
            remedy=f'run ALTER ROLE "{server.user}" REPLICATION as a superuser',
        )


def _check_table(settings: TableSettings, found: CatalogueTable | None) -> SourceTable:
    name = settings.table
    if found is None:
        raise SourceError(
            f"the source has no table {name}",
            expected="every table of pipeline.yml in the source",
            remedy="create it, or take it out of pipeline.yml",
        )
    if found.relkind not in ("r", "p"):
        raise SourceError(
            f"{name} is not a table (relkind {found.relkind})",
            expected="an ordinary or partitioned table: only their changes are in the log",
            remedy="name the tables that lie under it",
        )
    if not found.readable:
        raise SourceError(
            f"the table {name} cannot be read",
            expected="SELECT on it, for the snapshot",
            remedy=f"run GRANT SELECT ON {_dotted(name)} TO the pipeline's role",
        )
    key = settings.id or found.primary_key
    _check_columns(settings, found, key)
    _check_identity(settings, found, key)
    return SourceTable(name=name, oid=found.oid, schema=found.schema(key))


def _check_columns(settings: TableSettings, found: CatalogueTable, key: tuple[str, ...]) -> None:
    known = {column.name for column in found.columns}
    named = [*key, settings.create_time, settings.update_time, *(part.column for part in settings.partition_by)]
    for column in named:
        if column is not None and column not in known:
            raise SourceError(
                f"the table {settings.name} has no column {column!r}",
                expected=f"one of {', '.join(sorted(known))}",
                remedy="mend id, create_time, update_time or partition_by in pipeline.yml",
            )
    reserved = sorted(name for name in known if name.startswith("_cdc_"))
    if reserved:
        raise SourceError(
            f"the table {settings.name} has a column {reserved[0]!r}",
            expected="no column that begins with _cdc_: those are the pipeline's own",
            remedy="rename the column",
        )


def _check_identity(settings: TableSettings, found: CatalogueTable, key: tuple[str, ...]) -> None:
    name = settings.table
    if not key and found.without_whole_rows:
        raise SourceError(
            f"the table {name} has no id, and its updates and deletes do not carry the whole row",
            expected="a primary key, id in pipeline.yml with columns that no two rows share, or whole old rows",
            remedy="run " + "; ".join(f"ALTER TABLE {each} REPLICA IDENTITY FULL" for each in found.without_whole_rows),
        )
    if not key and settings.deletes == "soft":
        raise SourceError(
            f"the table {name} has no id, and its deletes are to be soft",
            expected="an id, by which a deleted row is flagged and found again",
            remedy="leave deletes out of pipeline.yml for this table, or give it an id",
        )
    outside = [column for column in key if column not in found.identity]
    if outside:
        raise SourceError(
            f"deletes of {name} do not carry {', '.join(outside)}",
            expected="an id within the table's replica identity",
            remedy=f"run ALTER TABLE {_dotted(name)} REPLICA IDENTITY FULL, or USING a unique index on the id",
        )


def _check_slot_kind(slot: Slot | None, source: PostgresSource, server: Server) -> None:
    if slot is None:
        return
    if slot.plugin != PLUGIN or slot.database != server.database:
        raise SourceError(
            f"the slot {source.slot} decodes {slot.database} by {slot.plugin}",
            expected=f"a slot of {server.database} by {PLUGIN}",
            remedy="choose another source.slot, or drop that one",
        )


def _publication_statements(
    connection: psycopg2.extensions.connection,
    source: PostgresSource,
    tables: Sequence[TableName],
    published: set[tuple[str, str]] | None,
) -> list[str]:
    missing = [table for table in tables if published is None or (table.schema, table.table) not in published]
    if not missing:
        return []
    names = sql.SQL(", ").join(sql.Identifier(table.schema, table.table) for table in missing)
    publication = sql.Identifier(source.publication)
    template = "ALTER PUBLICATION {} ADD TABLE {}"
    if published is None:
        options = "WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
        template = "CREATE PUBLICATION {} FOR TABLE {} " + options
    return [sql.SQL(template).format(publication, names).as_string(connection)]


def _slot_statements(
    connection: psycopg2.extensions.connection, source: PostgresSource, slot: Slot | None
) -> list[str]:
    if slot is not None:
        return []
    create = sql.SQL("SELECT pg_create_logical_replication_slot({}, {})")
    return [create.format(sql.Literal(source.slot), sql.Literal(PLUGIN)).as_string(connection)]


def _dotted(name: TableName) -> str:
    return f'"{name.schema}"."{name.table}"'
