"""The source made ready for streaming: what is missing is said as SQL, what cannot work is refused by name."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psycopg2
import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import TableName, TableSchema
from cdc_pipeline.settings import PostgresSource, TableSettings
from cdc_pipeline.sources.postgres_catalogue import (
    CatalogueTable,
    Server,
    Slot,
    read_server,
    read_slot,
    read_table,
    read_types,
    rows,
)
from cdc_pipeline.sources.postgres_guards import KnownTable, check_known
from cdc_pipeline.sources.postgres_publication import Publication, Published, read_publication
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
    """What was found, and the statements that are still to be executed, in order.

    `stale`: known tables that cannot be read on as they are, each with what stops it.
    """

    server: Server
    tables: tuple[SourceTable, ...]
    stale: Mapping[TableName, TableStale]
    statements: tuple[str, ...]
    slot: Slot | None


def plan_source(
    connection: psycopg2.extensions.connection,
    source: PostgresSource,
    tables: Sequence[TableSettings],
    known: Mapping[TableName, KnownTable] | None = None,
    begun_again: Collection[TableName] = (),
) -> SourcePlan:
    """Raises SourceError that names the first thing that cannot work, and how to mend it. Changes nothing.

    `known` tables were read before: what cannot work of them stops nothing else, unless they are `begun_again`.
    """
    server = read_server(connection)
    _check_server(server, source)
    publication = read_publication(connection, source.publication)
    slot = read_slot(connection, source.slot)
    _check_slot_kind(slot, source, server)
    types = read_types(connection)
    found: list[SourceTable] = []
    stale: dict[TableName, TableStale] = {}
    for table in tables:
        in_catalogue = read_table(connection, types, table.table)
        before = None if known is None or table.table in begun_again else known.get(table.table)
        if before is None:
            found.append(_checked(table, in_catalogue, publication))
            continue
        try:
            check_known(connection, table, before, in_catalogue, publication)
            found.append(_checked(table, in_catalogue, publication))
        except TableStale as error:
            stale[table.table] = error
        except SourceError as error:
            remedy = f"{error.remedy}, then cdc snapshot {table.name}"
            stale[table.table] = TableStale(error.found, table=table.name, expected=error.expected, remedy=remedy)
    missing = [table.name for table in found if publication is None or publication.of(table.name) is None]
    statements = [
        *_publication_statements(connection, source, missing, is_new=publication is None),
        *_slot_statements(connection, source, slot),
    ]
    return SourcePlan(server=server, tables=tuple(found), stale=stale, statements=tuple(statements), slot=slot)


def execute_plan(connection: psycopg2.extensions.connection, plan: SourcePlan, on_step: OnStep) -> None:
    """Every statement in its own transaction: a slot cannot be created in one that has written."""
    connection.rollback()
    connection.autocommit = True
    for statement in plan.statements:
        with step(on_step, "source.set_up"), connection.cursor() as cursor:
            cursor.execute(statement)


def replace_slot(connection: psycopg2.extensions.connection, slot: str) -> int:
    """The position from which the new slot serves; the old one may be there or not, but nobody may be reading it."""
    connection.rollback()
    connection.autocommit = True
    try:
        if read_slot(connection, slot) is not None:
            rows(connection, "SELECT pg_drop_replication_slot(%s)", (slot,))
    except psycopg2.errors.ObjectInUse as error:
        raise SourceError(
            f"the slot {slot} is being read: {str(error).strip()}",
            expected="nobody at work on the stream while it begins again",
            remedy="stop the consumer first",
        ) from error
    created = rows(
        connection, "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, %s)", (slot, PLUGIN)
    )
    return int(created[0][0])


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


def _checked(settings: TableSettings, found: CatalogueTable | None, publication: Publication | None) -> SourceTable:
    """Every check of a table that is to be read from now on."""
    table = _check_table(settings, found)
    published = None if publication is None else publication.of(table.name)
    if publication is not None and published is not None:
        _check_published(table, publication, published)
    return table


def _check_published(table: SourceTable, publication: Publication, published: Published) -> None:
    hidden = published.columns is not None and published.columns < len(table.schema.columns)
    if publication.is_whole and not published.has_row_filter and not hidden:
        return
    left_out = "columns" if hidden else "rows" if published.has_row_filter else "kinds of changes"
    raise SourceError(
        f"the publication leaves out {left_out} of {table.name}",
        expected="every insert, update, delete and truncate with all its columns",
        remedy="drop the table from the publication and add it whole, and SET (publish = 'insert, update, delete,"
        " truncate')",
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
    connection: psycopg2.extensions.connection, source: PostgresSource, missing: Sequence[TableName], *, is_new: bool
) -> list[str]:
    if not missing:
        return []
    names = sql.SQL(", ").join(sql.Identifier(table.schema, table.table) for table in missing)
    publication = sql.Identifier(source.publication)
    template = "ALTER PUBLICATION {} ADD TABLE {}"
    if is_new:
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
