"""Receives a slot's messages in a thread of its own, so that they arrive while the consumer works on those before."""

import contextlib
import os
import select
import time
from concurrent.futures import Future, ThreadPoolExecutor
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
_ALIVE_SECONDS = 1.0
_NEVER_SECONDS = float(2**31 - 1)
"""The driver's own reports would repeat what the cursor that reads has confirmed."""
_LONGEST_SECONDS = 1.0
"""After it the thread looks whether it is still wanted. A process that ends waits for its threads."""


class SlotReceiver:
    """Streams a slot over `connection`, and closes it at the end.

    One batch of messages is received while the caller has the one before: up to 20,000 messages or 16 MB. What comes
    after it waits in the server. A second thread tells the server every second that the reader lives: otherwise it ends
    the connection after `wal_sender_timeout` while the caller works on a batch. `beside`: the caller's other
    connection, which shows a shutdown of the server: a server that shuts down waits until readers of its log leave, but
    ends all other connections at once. Only the caller uses it, never a thread: two statements of one connection would
    mix.
    """

    def __init__(self, connection: LogicalReplicationConnection, beside: Connection, *, slot: str, of: str) -> None:
        """Starts the stream of the publication `of`; nothing is received before the first `take`."""
        self._connection = connection
        self._beside = beside
        # The driver confirms more by itself if the cursor that reads has confirmed what it read last, as it believes.
        self._cursor, self._confirming = connection.cursor(), connection.cursor()
        command = sql.SQL(_START).format(sql.Identifier(slot), sql.Literal(f'"{of}"'))
        with answering():
            self._cursor.start_replication_expert(command, decode=False, status_interval=_NEVER_SECONDS)
        self._ended, self._has_batch = os.eventfd(0), os.eventfd(0)
        self._in_use = Lock()
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="slot-receiver")
        self._telling = self._threads.submit(self._tell)
        self._next: Future[list[bytes]] | None = None
        self._is_closed = False

    def take(self, wait: timedelta) -> list[bytes]:
        """Returns the next batch, without messages if none is complete in time. Raises what ended a connection."""
        receiving = self._next or self._receive()
        with answering():
            readable = select.select([self._has_batch, self._beside.fileno()], [], [], wait.total_seconds())[0]
            if self._beside.fileno() in readable:
                self._check_beside()
        if self._has_batch not in readable:
            return []
        os.eventfd_read(self._has_batch)
        batch = receiving.result()
        self._receive()
        return batch

    def confirm(self, position: int) -> None:
        with answering(), self._in_use:
            self._confirming.send_feedback(flush_lsn=position, write_lsn=position, force=True)

    def close(self) -> None:
        """Ends the threads, and closes the connection. Messages that were not taken come again with the next stream."""
        if self._is_closed:
            return
        self._is_closed = True
        os.eventfd_write(self._ended, 1)
        self._threads.shutdown(cancel_futures=True)
        with contextlib.suppress(psycopg2.Error):
            self._connection.close()
        os.close(self._ended)
        os.close(self._has_batch)

    def _receive(self) -> Future[list[bytes]]:
        self._next = self._threads.submit(self._batch)
        self._next.add_done_callback(lambda _: os.eventfd_write(self._has_batch, 1))
        return self._next

    def _tell(self) -> None:
        """Tells the server every second that the reader lives, and what was confirmed last.

        Tells nothing to a server that shuts down: it waits for readers that answer, and this one may wait for a cut.
        """
        while not select.select([self._ended], [], [], _ALIVE_SECONDS)[0]:
            if not select.select([self._beside], [], [], 0)[0]:
                with self._in_use:
                    self._confirming.send_feedback(force=True)

    def _check_beside(self) -> None:
        """Raises the driver's error if the other connection is broken, and closes both: the stream needs both."""
        try:
            with self._beside.cursor() as cursor:
                cursor.execute("SELECT 1")
        except psycopg2.Error:
            self.close()
            with contextlib.suppress(psycopg2.Error):
                self._beside.close()
            raise

    def _batch(self) -> list[bytes]:
        """Receives messages until the server pauses for some milliseconds, or until they are enough for one batch."""
        payloads: list[bytes] = []
        size, deadline = 0, time.monotonic() + _LONGEST_SECONDS
        with answering():
            if self._telling.done():
                self._telling.result()  # raises what ended the connection
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
        """
        pause = deadline - time.monotonic()
        if pause <= 0:
            return False
        readable = select.select([self._cursor.fileno(), self._ended], [], [], pause)[0]
        if not readable or self._ended in readable:
            return False
        return not select.select([self._ended], [], [], _PAUSE_SECONDS)[0]
