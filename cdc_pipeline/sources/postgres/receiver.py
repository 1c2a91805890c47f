"""Receives a slot's messages in a thread of its own, so that they arrive while the consumer works on those before."""

import contextlib
import os
import select
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from datetime import timedelta
from threading import Lock

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import connection as Connection  # noqa: N812 - a class, whatever the driver calls it
from psycopg2.extras import LogicalReplicationConnection

from cdc_pipeline.sources.postgres.session import answering

_START = "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {}, messages 'true')"
_MOST_MESSAGES = 20_000
_MOST_BYTES = 16 << 20
_PAUSE_SECONDS = 0.01
_LONGEST_SECONDS = 1.0
"""After it the thread looks whether it is still wanted. A process that ends waits for its threads."""


class SlotReceiver:
    """Streams a slot over `connection`, and closes it at the end.

    One batch of messages is received while the caller has the one before: up to 20,000 messages or 16 MB. What comes
    after it waits in the server. `beside`: the stream's other connection, which shows a shutdown of the server.
    """

    def __init__(self, connection: LogicalReplicationConnection, beside: Connection, *, slot: str, of: str) -> None:
        """Starts the stream of the publication `of`; nothing is received before the first `take`."""
        self._connection = connection
        self._beside = beside
        self._cursor = connection.cursor()
        command = sql.SQL(_START).format(sql.Identifier(slot), sql.Literal(f'"{of}"'))
        with answering():
            self._cursor.start_replication_expert(command, decode=False)
        self._wanted = os.eventfd(0)
        self._in_use = Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slot-receiver")
        self._next: Future[list[bytes]] | None = None

    def take(self, wait: timedelta) -> list[bytes]:
        """Returns the next batch, without messages if none is complete in time. Raises what ended the connection."""
        if self._next is None:
            self._next = self._thread.submit(self._batch)
        try:
            batch = self._next.result(wait.total_seconds())
        except NotYet:
            return []
        self._next = self._thread.submit(self._batch)
        return batch

    def confirm(self, position: int) -> None:
        with answering(), self._in_use:
            self._cursor.send_feedback(flush_lsn=position, write_lsn=position, force=True)

    def close(self) -> None:
        """Ends the thread, and closes the connection. Messages that were not taken come again with the next stream."""
        os.eventfd_write(self._wanted, 1)
        self._thread.shutdown(cancel_futures=True)
        with contextlib.suppress(psycopg2.Error):
            self._connection.close()
        os.close(self._wanted)

    def _batch(self) -> list[bytes]:
        """Receives messages until the server pauses for some milliseconds, or until they are enough for one batch."""
        payloads: list[bytes] = []
        size, deadline = 0, time.monotonic() + _LONGEST_SECONDS
        with answering():
            while True:
                before = len(payloads)
                with self._in_use:
                    # Only what each message needs: a look at the clock here would double the cost of reading.
                    for message in iter(self._cursor.read_message, None):
                        payload = message.payload
                        payloads.append(payload)
                        size += len(payload)
                        if size >= _MOST_BYTES or len(payloads) == _MOST_MESSAGES:
                            return payloads
                if len(payloads) > before:
                    deadline = time.monotonic() + _PAUSE_SECONDS
                if not self._comes_until(deadline):
                    return payloads

    def _comes_until(self, deadline: float) -> bool:
        """Returns whether the stream's socket has something to read before the deadline.

        If the reader wakes at the first byte, the server sends message by message, with a system call for each. So this
        returns some milliseconds after the first byte, when the server has filled the socket.

        A server that shuts down keeps asking its reader for answers, and waits until the reader leaves. The other
        connection shows the shutdown: the server ends that one at once.
        """
        pause = deadline - time.monotonic()
        if pause <= 0:
            return False
        beside = self._beside.fileno()
        readable = select.select([self._cursor.fileno(), beside, self._wanted], [], [], pause)[0]
        if self._wanted in readable:
            return False
        if readable == [self._cursor.fileno()]:
            readable += select.select([beside], [], [], _PAUSE_SECONDS)[0]
        if beside in readable:
            self._check_beside()
        return bool(readable)

    def _check_beside(self) -> None:
        """Raises the driver's error if the other connection is broken, and closes both: the stream needs both.

        Waits for a query that the caller runs on the other connection.
        """
        try:
            with self._beside.cursor() as cursor:
                cursor.execute("SELECT 1")
        except psycopg2.Error:
            for connection in (self._connection, self._beside):
                with contextlib.suppress(psycopg2.Error):
                    connection.close()
            raise
