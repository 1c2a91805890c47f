"""Whether a server and its slot can serve a stream at all, and a new slot in place of one that cannot."""

import psycopg2.errors
import psycopg2.extensions

from cdc_pipeline.errors import SourceError
from cdc_pipeline.settings import PostgresSource
from cdc_pipeline.sources.postgres_catalogue import Server, Slot, read_slot, rows
from cdc_pipeline.sources.postgres_statements import PLUGIN

_OLDEST_VERSION, _NEWEST_VERSION = 14, 18


def check_server(server: Server, source: PostgresSource) -> None:
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


def check_slot_kind(slot: Slot | None, source: PostgresSource, server: Server) -> None:
    if slot is None:
        return
    if slot.plugin != PLUGIN or slot.database != server.database:
        raise SourceError(
            f"the slot {source.slot} decodes {slot.database} by {slot.plugin}",
            expected=f"a slot of {server.database} by {PLUGIN}",
            remedy="choose another source.slot, or drop that one",
        )


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
