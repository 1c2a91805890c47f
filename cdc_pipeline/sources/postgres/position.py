"""Holds one exact position of the source, together with a snapshot of the database at that position."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from threading import Event

import psycopg2
import psycopg2.extensions
import structlog
from psycopg2 import sql

from cdc_pipeline.errors import SnapshotError, SourceError
from cdc_pipeline.record import parse_lsn
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.postgres.catalogue import rows
from cdc_pipeline.sources.postgres.session import answering, connect_for_replication, session
from cdc_pipeline.steps import OnStep, step

log = structlog.get_logger()

_POSITION_WAITS = "the snapshot's position waits for a transaction to end"
SET_UP_WAITS = "the source's set-up waits for a transaction to end"
_REPORT_AFTER = timedelta(seconds=3)
_REPORT_EVERY = timedelta(seconds=30)
_WAITED_FOR = """
-- a logical slot is created behind all transactions that run: its process waits for the lock on the id of each
WITH waited_for AS (SELECT transactionid FROM pg_locks WHERE pid = %(process)s AND NOT granted)
SELECT a.pid, NULL, a.usename::text, a.xact_start, a.state,
       CASE WHEN a.datname = current_database() THEN left(a.query, 500) END
FROM pg_stat_activity AS a WHERE a.pid = ANY (pg_blocking_pids(%(process)s))
UNION ALL
SELECT NULL, p.gid, p.owner::text, p.prepared, 'prepared', NULL
FROM pg_prepared_xacts AS p JOIN waited_for AS w ON w.transactionid = p.transaction
"""
_HOLD = """
-- shared: who holds a position never waits for another; the lock ends with the transaction, as the snapshot does
SELECT pg_export_snapshot(), clock_timestamp(), pg_advisory_xact_lock_shared(hashtext('cdc'), hashtext(%s))
"""
_IS_FREE = "SELECT pg_try_advisory_xact_lock(hashtext('cdc'), hashtext(%s))"


def lsn_text(position: int) -> str:
    """Returns a position as PostgreSQL writes it: the inverse of `parse_lsn`."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


@contextmanager
def hold_position(
    source_url: str, slot_name: str, on_step: OnStep, *, report_after: timedelta = _REPORT_AFTER
) -> Iterator[HeldPosition]:
    """Holds a position under this name. A temporary slot gives it, and ends before the block begins.

    It would keep back the source's log for as long as the block runs. The snapshot is exported again by a session
    without a slot, and ends with the block.

    Creating the slot waits until every running transaction has ended. After `report_after`, logs which ones it waits
    for.
    """
    with answering(), ExitStack() as holding:
        with closing(connect_for_replication(source_url)) as connection, connection.cursor() as cursor:
            create = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT")
            process = connection.info.backend_pid
            with (
                step(on_step, "position.hold"),
                reported_wait(source_url, process, _POSITION_WAITS, report_after),
            ):
                cursor.execute(create.format(sql.Identifier(slot_name)))
            ((_, lsn, of_slot, _),) = cursor.fetchall()
            holder = holding.enter_context(snapshot_connection(source_url, of_slot))
            ((exported, time, _),) = rows(holder, _HOLD, (slot_name,))
        yield HeldPosition(position=parse_lsn(lsn), shown=lsn, time=time, exported=exported)


@contextmanager
def reported_wait(source_url: str, process: int, event: str, report_after: timedelta = _REPORT_AFTER) -> Iterator[None]:
    """Logs `event` with each transaction that the server process waits for, as long as the block runs.

    A role without pg_read_all_stats sees only their process and user. Texts of queries are shown only from its own
    database: those of others may have another encoding. A failed report ends nothing.
    """
    stop = Event()
    with ThreadPoolExecutor(1, thread_name_prefix="position") as executor:
        reporting = executor.submit(_report_waits, source_url, process, event, report_after, stop)
        try:
            yield
        finally:
            stop.set()
    reporting.result()


def _report_waits(source_url: str, process: int, event: str, report_after: timedelta, stop: Event) -> None:
    pause = report_after
    while not stop.wait(pause.total_seconds()):
        pause = max(report_after, _REPORT_EVERY)
        with contextlib.suppress(SourceError, UnicodeError), session(source_url) as connection:
            for pid, prepared, user, since, state, query in rows(connection, _WAITED_FOR, {"process": process}):
                log.warning(
                    event,
                    pid=pid,
                    prepared=prepared,
                    user=user,
                    since=since and since.isoformat(),
                    state=state,
                    query=query,
                    remedy=f"COMMIT PREPARED or ROLLBACK PREPARED '{prepared}'"
                    if prepared
                    else f"end it, or run SELECT pg_terminate_backend({pid})",
                )


def is_held(source_url: str, slot_name: str) -> bool:
    """Returns whether a process holds a position under this name."""
    with session(source_url) as connection:
        ((is_free,),) = rows(connection, _IS_FREE, (slot_name,))
        connection.rollback()  # the server frees the lock of a connection that is only closed a moment later
        return not is_free


@contextmanager
def snapshot_connection(source_url: str, exported: str) -> Iterator[psycopg2.extensions.connection]:
    """Opens a read-only connection that sees the database exactly at the position.

    Raises SnapshotError if the exported snapshot is gone.
    """
    with session(source_url) as connection:
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        with connection.cursor() as cursor:
            try:
                cursor.execute("SET TRANSACTION SNAPSHOT %s", (exported,))
            except psycopg2.Error as error:
                raise SnapshotError(
                    f"the exported snapshot {exported} is gone",
                    expected="the process that holds it",
                    remedy="run the same command again: it starts over at a new position",
                ) from error
        yield connection
        with contextlib.suppress(psycopg2.Error):  # nothing is lost with a connection that was read from
            connection.rollback()
