"""Checks that a server and its slot can serve a stream, reads how much log the slot keeps, and replaces the slot."""

import psycopg2.errors
import psycopg2.extensions
import structlog

from cdc_pipeline.errors import SourceBusy, SourceError
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.known import KeptLog, shown_bytes
from cdc_pipeline.sources.postgres.catalogue import Server, Slot, rows
from cdc_pipeline.sources.postgres.session import MESSAGE_PREFIX
from cdc_pipeline.sources.postgres.statements import PLUGIN

log = structlog.get_logger()

FORMER_SLOT = "the source keeps its log, until its disk is full, for the slot that was read before"
_OLDEST_VERSION, _NEWEST_VERSION = 14, 19
_KEPT_LOG = """
SELECT s.wal_status, (pg_current_wal_insert_lsn() - s.restart_lsn)::bigint,
       CASE WHEN c.setting::bigint >= 0 THEN c.setting::bigint * 1048576 END, s.safe_wal_size
FROM pg_replication_slots AS s, pg_settings AS c
WHERE s.slot_name = %s AND c.name = 'max_slot_wal_keep_size'
"""
_FAILOVER = "SELECT (to_jsonb(s) ->> 'failover')::boolean FROM pg_replication_slots AS s WHERE slot_name = %s"
_CREATE = "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, %s{})"

_FIRST_MESSAGE = "SELECT pg_logical_emit_message(false, %s, ''), pg_current_xact_id()"
"""A message outside of transactions. The commit, which the transaction's id makes one, brings it to the disk."""


def check_server(server: Server, source: PostgresSource) -> None:
    version = server.version_number // 10_000
    if not _OLDEST_VERSION <= version <= _NEWEST_VERSION:
        raise SourceError(
            f"the source is PostgreSQL {version}",
            expected=f"a version from {_OLDEST_VERSION} to {_NEWEST_VERSION}",
            remedy="point source.url at a supported server",
        )
    if not server.can_decode:
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
    """Raises SourceBusy for a slot that is still being created: the server gives it a position only at the end."""
    if slot is None:
        return
    if slot.plugin != PLUGIN or slot.database != server.database:
        raise SourceError(
            f"the slot {source.slot} decodes {slot.database} by {slot.plugin}",
            expected=f"a slot of {server.database} by {PLUGIN}",
            remedy="choose another source.slot, or drop that one",
        )
    if slot.two_phase:
        raise SourceError(
            f"the slot {source.slot} sends prepared transactions, which may still be rolled back (two_phase)",
            expected="a slot that sends transactions once they are committed",
            remedy="choose another source.slot, or drop that one: cdc setup-source creates one as it must be",
        )
    if slot.confirmed_position is None:
        raise SourceBusy(
            f"the slot {source.slot} is still being created by process {slot.active_pid} of the server,"
            " which waits for the transactions that run",
            expected="a slot with a position from which it sends",
            remedy="end those transactions, which pg_stat_activity shows, or wait for them",
        )


def read_kept_log(connection: psycopg2.extensions.connection, source: PostgresSource) -> KeptLog | None:
    """Returns how much log the primary keeps for the slot, None if there is no such slot."""
    found = rows(connection, _KEPT_LOG, (source.slot,))
    if not found:
        return None
    status, retained, most, left = found[0]
    warning = log_warning(source, status=status, retained=retained, most=most, left=left)
    return KeptLog(
        wal_status=status,
        retained_bytes=retained,
        most_bytes=most,
        bytes_left=left,
        warning=warning,
        summary=_summary(source, retained=retained, left=left),
    )


def _summary(source: PostgresSource, *, retained: int | None, left: int | None) -> str | None:
    """Returns one line about the kept log, None if the server does not say how much it keeps."""
    if retained is None:
        return None
    limit = "no limit" if left is None else f"{shown_bytes(left)} left until it is lost"
    return f"{_keeps(source, retained)}; {limit}"


def _keeps(source: PostgresSource, retained: int) -> str:
    return f"the slot {source.slot} keeps back {shown_bytes(retained)} of the source's log"


def log_warning(
    source: PostgresSource, *, status: str | None, retained: int | None, most: int | None, left: int | None
) -> str | None:
    """Returns a warning about the kept log, None if nobody has to act.

    Warns if the log is lost or about to be lost, if more than half of the server's limit is used, and if more is kept
    than `source.log_alarm_bytes` allows.
    """
    if status == "lost":
        return f"the slot {source.slot} has lost its log"
    kept = _keeps(source, retained or 0)
    if status == "unreserved" or (most is not None and left is not None and left < most / 2):
        room = f"it is lost when {shown_bytes(max(left or 0, 0))} more are written"
        return f"{kept}; {room}: start the consumer, or raise max_slot_wal_keep_size"
    if retained is not None and retained > source.log_alarm_bytes:
        return f"{kept}, more than source.log_alarm_bytes: start the consumer before the source's disk is full"
    return None


def replace_slot(connection: psycopg2.extensions.connection, slot: str) -> int:
    """Drops the slot, if it exists, and creates it again. Returns the position from which the new slot sends.

    The new slot is copied to standbys (`failover`, from version 17 on) if the old one was. The log tells so before:
    whoever is killed between the two leaves nothing else that tells. Raises SourceError while a process reads the slot.
    """
    connection.rollback()
    connection.autocommit = True
    before = rows(connection, _FAILOVER, (slot,))
    options = ", failover => true" if before == [(True,)] else ""
    if options:
        log.warning("the slot is dropped and created again with failover", slot=slot)
    try:
        if before:
            rows(connection, "SELECT pg_drop_replication_slot(%s)", (slot,))
    except psycopg2.errors.ObjectInUse as error:
        raise SourceError(
            f"the slot {slot} is being read: {str(error).strip()}",
            expected="nobody at work on the stream while it begins again",
            remedy="stop the consumer first",
        ) from error
    created = rows(connection, _CREATE.format(options), (slot, PLUGIN))
    write_first_message(connection)
    return int(created[0][0])


def warn_of_former_slot(connection: psycopg2.extensions.connection, former: str, slot: str) -> None:
    """Warns if the slot that the stream was read from before is another one, and still there."""
    if former != slot and rows(connection, "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (former,)):
        log.warning(
            FORMER_SLOT,
            slot=former,
            remedy=f"if nobody else reads it, run SELECT pg_drop_replication_slot('{former}') on the source",
        )


def write_first_message(connection: psycopg2.extensions.connection) -> None:
    """Writes a message to the log which the slot sends first, and which nobody reads. `connection` commits by itself.

    Before the first message the driver believes that everything is confirmed, and confirms what else is in the log.
    """
    rows(connection, _FIRST_MESSAGE, (MESSAGE_PREFIX,))
