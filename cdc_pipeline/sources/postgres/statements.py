"""SQL for everything that the source lacks. `setup-source` runs it, or an administrator if its role may not."""

from collections.abc import Collection, Iterator, Sequence

import psycopg2.extensions
from psycopg2 import sql

from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.postgres.catalogue import Server, Slot, read_server, read_slot, read_types, rows
from cdc_pipeline.sources.postgres.publication import FIRST_VERSION_WITH_GENERATED, Publication, read_publication
from cdc_pipeline.sources.postgres.table_parts import UNLOGGED
from cdc_pipeline.sources.postgres.tables import STORED, VIRTUAL, CatalogueTable, read_table

PLUGIN = "pgoutput"
_PUBLISH = "publish = 'insert, update, delete, truncate'"
_PUBLISH_GENERATED = "publish_generated_columns = stored"
_FIRST_FIXED = {14: 140_018, 15: 150_013, 16: 160_009, 17: 170_005}
"""By major version, the release of May 2025. Others are always fixed, or not read."""
_MEMBERS = """
SELECT n.nspname::text, c.relname::text
FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
JOIN pg_class AS c ON c.oid = r.prrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE p.pubname = %s
"""


def missing_on_source(
    connection: psycopg2.extensions.connection, source: PostgresSource, tables: Sequence[TableSettings]
) -> tuple[str, ...]:
    """Returns the missing statements in the order in which to run them. Changes nothing.

    Needs only the right to connect. Leaves out what does not exist on the source, or is no table.
    """
    server, slot = read_server(connection), read_slot(connection, source.slot)
    publication = read_publication(connection, source.publication)
    members = published_tables(connection, source)
    types = read_types(connection)
    found = ((table, read_table(connection, types, table.table)) for table in tables)
    there = [(each, table) for each, table in found if table is not None and table.is_table]
    there = [(each, table) for each, table in there if _stays_writable(server, each, table)]
    there = [(each, table) for each, table in there if not table.parts[0].may_repeat(each.id or table.primary_key)]
    names = {table.name: table for _, table in there}
    unpublished = [name for name in names if publication is None or publication.of(name) is None]
    hidden = [name for name in unpublished if (name.schema, name.table) in members]
    new = [name for name in unpublished if name not in hidden]
    return (
        *_server_statements(connection, server),
        *_right_statements(connection, server, names.values()),
        *_generated_statements(connection, source, publication, there),
        *(
            f"ALTER TABLE {part.sql} SET LOGGED"
            for _, table in there
            for part in table.parts
            if part.not_in_log == UNLOGGED
        ),
        *(each for settings, table in there for each in _identity(settings, table)),
        *publication_statements(connection, source, new, is_new=publication is None, has_slot=slot is not None),
        *_whole_statements(connection, source, publication, names, hidden),
        *slot_statements(connection, source, slot),
    )


def _stays_writable(server: Server, settings: TableSettings, table: CatalogueTable) -> bool:
    """Returns whether the source still accepts the table's updates and deletes once it is published as required."""
    is_old = server.version_number < FIRST_VERSION_WITH_GENERATED
    return is_old or VIRTUAL not in table.generated or not _has_whole_rows(settings, table)


def _has_whole_rows(settings: TableSettings, table: CatalogueTable) -> bool:
    """Returns whether old rows are whole, now or after all missing statements were run."""
    return table.has_whole_rows or any(_identity(settings, table))


def _generated_statements(
    connection: psycopg2.extensions.connection,
    source: PostgresSource,
    publication: Publication | None,
    there: Sequence[tuple[TableSettings, CatalogueTable]],
) -> Iterator[str]:
    """Lets the publication include stored generated columns, if a table needs it.

    Must run before replica identities change and tables are published: until then the source would refuse updates.
    """
    if publication is None or publication.tells_generated or connection.server_version < FIRST_VERSION_WITH_GENERATED:
        return
    if any(STORED in table.generated and _has_whole_rows(settings, table) for settings, table in there):
        change = sql.SQL("ALTER PUBLICATION {} SET ({})")
        yield change.format(sql.Identifier(source.publication), sql.SQL(_PUBLISH_GENERATED)).as_string(connection)


def published_tables(connection: psycopg2.extensions.connection, source: PostgresSource) -> set[tuple[str, str]]:
    """Returns schema and name of each table in the publication; a partitioned table is there under its own name."""
    return set(rows(connection, _MEMBERS, (source.publication,)))


def publication_statements(
    connection: psycopg2.extensions.connection,
    source: PostgresSource,
    missing: Sequence[TableName],
    *,
    is_new: bool,
    has_slot: bool,
) -> list[str]:
    """Returns one statement per table for a publication that exists: a table that is refused keeps no other out.

    A slot that is created later waits for the transactions that run, so no table needs to be locked for it. Nor does
    one for a new publication: where that could lack changes, set-up refuses a slot that is there already.
    """
    if not missing:
        return []
    if not is_new:
        locks = has_slot and needs_lock(connection.server_version)
        return [adding_statement(connection, source.publication, table, locks=locks) for table in missing]
    tells_generated = connection.server_version >= FIRST_VERSION_WITH_GENERATED
    options = [_PUBLISH, "publish_via_partition_root = true", *([_PUBLISH_GENERATED] if tells_generated else [])]
    create = sql.SQL(f"CREATE PUBLICATION {{}} FOR TABLE {{}} WITH ({', '.join(options)})")
    names = sql.SQL(", ").join(only(table.schema, table.table) for table in missing)
    return [create.format(sql.Identifier(source.publication), names).as_string(connection)]


def needs_lock(version_number: int) -> bool:
    """Returns whether the server may leave out changes of a table that is published while a transaction writes it.

    Decoding then takes the table for unpublished also behind that transaction, until something else changes it.
    """
    return version_number < _FIRST_FIXED.get(version_number // 10_000, 0)


def adding_statement(
    connection: psycopg2.extensions.connection, publication: str, table: TableName, *, locks: bool
) -> str:
    """Adds a table. `locks`: once the transactions have ended that have written it; new ones wait, 10 seconds at most.

    A partition may be written without its table, so the lock takes the partitions, too.
    """
    name = only(table.schema, table.table)
    add = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(publication), name)
    if not locks:
        return add.as_string(connection)
    locked = sql.Identifier(table.schema, table.table)
    lock = sql.SQL("SET LOCAL lock_timeout = '10s'; LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(locked)
    body = sql.SQL("BEGIN {}; {}; END").format(lock, add).as_string(connection)
    return sql.SQL("DO {}").format(sql.Literal(body)).as_string(connection)


def slot_statements(connection: psycopg2.extensions.connection, source: PostgresSource, slot: Slot | None) -> list[str]:
    if slot is not None:
        return []
    create = sql.SQL("SELECT pg_create_logical_replication_slot({}, {})")
    return [create.format(sql.Literal(source.slot), sql.Literal(PLUGIN)).as_string(connection)]


def _server_statements(connection: psycopg2.extensions.connection, server: Server) -> Iterator[str]:
    if not server.can_decode:
        yield "ALTER SYSTEM SET wal_level = 'logical' /* and restart the server */"
    if not server.may_replicate:
        role = sql.Identifier(server.user)
        yield sql.SQL("ALTER ROLE {} REPLICATION").format(role).as_string(connection)


def _right_statements(
    connection: psycopg2.extensions.connection, server: Server, there: Collection[CatalogueTable]
) -> Iterator[str]:
    """Lets the role read every row. `ALTER ROLE ... BYPASSRLS` is what only a superuser may run."""
    role = sql.Identifier(server.user)
    granted: set[str] = set()
    parts = [part for table in there for part in table.parts]
    for part in parts:
        if not part.uses_schema and part.schema not in granted:
            granted.add(part.schema)
            grant = sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(part.schema), role)
            yield grant.as_string(connection)
        if not part.reads:
            yield (
                sql.SQL("GRANT SELECT ON {} TO {}")
                .format(sql.Identifier(part.schema, part.name), role)
                .as_string(connection)
            )
    if any(part.is_filtered for part in parts):
        yield sql.SQL("ALTER ROLE {} BYPASSRLS").format(role).as_string(connection)


def _identity(settings: TableSettings, table: CatalogueTable) -> Iterator[str]:
    """Makes old rows whole if the events of updates and deletes would not carry the id."""
    key = settings.id or table.primary_key
    yield from (f"ALTER TABLE {part.sql} REPLICA IDENTITY FULL" for part in table.parts if not part.carries(key))


def _whole_statements(
    connection: psycopg2.extensions.connection,
    source: PostgresSource,
    publication: Publication | None,
    there: dict[TableName, CatalogueTable],
    hidden: Sequence[TableName],
) -> Iterator[str]:
    """Makes an existing publication complete: kinds of changes, rows, columns, and the names of partitioned tables."""
    if publication is None:
        return
    name = sql.Identifier(source.publication)
    if not publication.is_whole:
        yield sql.SQL("ALTER PUBLICATION {} SET ({})").format(name, sql.SQL(_PUBLISH)).as_string(connection)
    locks = needs_lock(connection.server_version)
    if hidden:
        via_root = sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true)")
        yield via_root.format(name).as_string(connection)
    for table, found in there.items():
        published = publication.of(table)
        if published is None:
            continue
        if published.has_row_filter or published.hides(column.number for column in found.shape.streamed):
            drop = sql.SQL("ALTER PUBLICATION {} DROP TABLE {}")
            yield drop.format(name, only(table.schema, table.table)).as_string(connection)
            yield adding_statement(connection, source.publication, table, locks=locks)


def only(schema: str, table: str) -> sql.Composed:
    """Names a table in a publication without the tables that inherit from it, which may lack a replica identity.

    Partitions are not left out.
    """
    return sql.SQL("ONLY {}").format(sql.Identifier(schema, table))
