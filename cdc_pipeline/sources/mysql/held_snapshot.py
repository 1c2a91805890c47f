"""Holds a consistent snapshot of the source at a known position, and lets other processes read it.

A server cannot give a transaction's snapshot to another connection. So the process that holds the snapshot runs the
queries of all readers. It listens on a port of `source.copy_address`. A reader proves that it knows the snapshot's
random key, sends a SELECT, and gets blocks of texts. A block is sent as soon as it is full, so memory does not grow
with the table.
"""

import errno
import json
import os
import secrets
import socket
import struct
from collections.abc import Collection, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from threading import Event, Lock, Thread
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection as Session
from pymysql.cursors import SSCursor

from cdc_pipeline.errors import SettingsError, SnapshotError, SourceAway, SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.copied_rows import HeldPosition
from cdc_pipeline.sources.mysql.catalogue import read_definitions
from cdc_pipeline.sources.mysql.dialect import dialect_at
from cdc_pipeline.sources.mysql.session import (
    MysqlAddress,
    answering,
    connect_for_texts,
    notice_dead_network,
    quoted,
    rows,
    session,
    text_of,
)
from cdc_pipeline.steps import OnStep, step

_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 50_000
_END = b""
_REFUSED = b"!"
_ONLY = "SELECT "
_PER_MACHINE = "set CDC_SOURCE__COPY_ADDRESS on each machine to its own address (docs/how-to/airflow.md)"
ACCEPT_PAUSE = 0.2
"""Seconds after a failure to accept a reader, such as that of too many open files."""


@contextmanager
def hold_snapshot(
    address: MysqlAddress, tables: Collection[TableName], *, lock: str, listen_on: str, on_step: OnStep
) -> Iterator[HeldPosition]:
    """Holds a snapshot under this lock's name. `snapshot_position` says how its exact position becomes known.

    It ends with the block. Its session keeps the definitions that the tables had right before it. Raises SnapshotError
    if the position does not become known, SettingsError if `listen_on` is no address of this machine, SourceAway if the
    machine cannot listen there now.
    """
    with _listening(listen_on) as listener, closing(connect_for_texts(address)) as connection:
        with answering():
            with step(on_step, "position.hold"):
                rows(connection, "SELECT GET_LOCK(%s, 0)", (lock,))
                with session(address) as other:
                    definitions = read_definitions(other, tables)
                place = dialect_at(connection).begin_snapshot(connection)
                for name, definition in definitions.items():
                    rows(connection, f"SET {_definition_of(name)} = %s", (definition,))
            taken = datetime.fromisoformat(text_of(connection, "SELECT UTC_TIMESTAMP(6)")).replace(tzinfo=UTC)
        key = secrets.token_bytes(32)
        with SnapshotServer(connection, address, listener, key).running():
            host, port = listener.address
            yield HeldPosition(
                position=1 if place is None else place.end,
                shown=str(place or "") or "the beginning of the log",
                time=taken,
                exported=json.dumps({"host": host, "port": port, "key": key.hex()}),
            )
        with suppress(SourceAway), answering():  # a session that is gone holds no lock; one that is closed still may
            rows(connection, "SELECT RELEASE_LOCK(%s)", (lock,))


def _listening(address: str) -> Listener:
    try:
        return Listener((address, 0), backlog=64)
    except OSError as error:
        is_unknown = isinstance(error, socket.gaierror) and error.errno in {socket.EAI_NONAME, socket.EAI_NODATA}
        if error.errno != errno.EADDRNOTAVAIL and not is_unknown:
            raise SourceAway(
                f"this machine cannot listen at {address}, which source.copy_address names: {error.strerror}",
                remedy="let it have free files and ports, and resolve the name: the next try may succeed",
            ) from error
        raise SettingsError(
            f"this machine has no address {address}, which source.copy_address names: {error.strerror}",
            expected="the address at which worker slots reach this machine",
            remedy=_PER_MACHINE,
        ) from error


@dataclass(frozen=True, slots=True)
class SnapshotServer:
    """Runs the queries of readers on the connection of the snapshot, one at a time.

    `key`: readers prove to have it. `key_seconds`: one that says nothing for so long is disconnected. `take_seconds`:
    so is one that takes none of its rows for so long, since the others wait meanwhile.
    """

    connection: "Session[Any]"
    address: MysqlAddress
    listener: Listener
    key: bytes
    key_seconds: float = 10
    take_seconds: float = 300

    @contextmanager
    def running(self) -> Iterator[None]:
        """Answers readers while the block runs. A query that still runs at its end is waited for."""
        lock, stop = Lock(), Event()
        accepting = Thread(target=self._accept, args=(lock, stop), name="snapshot-server", daemon=True)
        accepting.start()
        try:
            yield
        finally:
            stop.set()
            while accepting.is_alive():
                with suppress(OSError):  # a process with too many open files gets no connection yet
                    socket.create_connection(self.listener.address).close()  # ends the wait for the next reader
                accepting.join(ACCEPT_PAUSE)
            with lock:
                pass

    def _accept(self, lock: Lock, stop: Event) -> None:
        while not stop.is_set():
            try:
                reader = self.listener.accept()
            except OSError:
                stop.wait(ACCEPT_PAUSE)
                continue
            Thread(target=self._serve, args=(reader, lock, stop), name="snapshot-reader", daemon=True).start()

    def _serve(self, reader: "Connection[Any, Any]", lock: Lock, stop: Event) -> None:
        """Answers one query: blocks of rows, then an empty block, or an error's words. A reader may leave any time.

        A reader whose end is neither has to begin again: the source has lost the snapshot.
        """
        with reader, suppress(AuthenticationError, OSError, EOFError):
            _limit_silence(reader, socket.SO_RCVTIMEO, self.key_seconds)
            _limit_silence(reader, socket.SO_SNDTIMEO, self.take_seconds)
            deliver_challenge(reader, self.key)
            answer_challenge(reader, self.key)
            query = reader.recv_bytes().decode()
            with lock:
                if stop.is_set():
                    return
                try:
                    with answering():
                        self._answer(reader, query)
                    reader.send_bytes(_END)
                except SourceAway:
                    return
                except SourceError as error:
                    reader.send_bytes(_REFUSED + str(error).encode())

    def _answer(self, reader: "Connection[Any, Any]", query: str) -> None:
        if not query.startswith(_ONLY):
            raise SourceError("a reader of the snapshot sent another statement", expected="a SELECT")
        number = text_of(self.connection, "SELECT CONNECTION_ID()")
        with closing(self.connection.cursor(SSCursor)) as cursor:
            cursor.execute(query)
            try:
                for block in _blocks(cursor):
                    reader.send_bytes(block)
            except OSError:  # the reader left or takes nothing: the next one does not wait for the rest of its rows
                with session(self.address) as other:
                    rows(other, f"KILL QUERY {number}")
                raise


def _limit_silence(reader: "Connection[Any, Any]", option: int, seconds: float) -> None:
    """Lets a wait for what the reader sends or takes end with OSError. `Connection` has no time limit of its own."""
    limit = struct.pack("ll", int(seconds), round(seconds % 1 * 1e6))
    with _socket_of(reader) as same:
        same.setsockopt(socket.SOL_SOCKET, option, limit)


def _socket_of(connection: "Connection[Any, Any]") -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))


def _blocks(cursor: SSCursor) -> Generator[bytes, None, None]:
    """Yields the rows of a query as Arrow's IPC streams of bytes columns."""
    found: list[tuple[bytes | None, ...]] = []
    size = 0
    for row in cursor.fetchall_unbuffered():
        found.append(row)
        size += sum(len(value) for value in row if value is not None)
        if size >= _BLOCK_BYTES or len(found) >= _BLOCK_ROWS:
            yield _encoded(found)
            found, size = [], 0
    if found:
        yield _encoded(found)


def _encoded(found: list[tuple[bytes | None, ...]]) -> bytes:
    columns = [pa.array(values, pa.binary()) for values in zip(*found, strict=True)]
    batch = pa.record_batch(columns, names=[str(number) for number in range(len(columns))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def check_held(exported: str) -> None:
    """Raises SnapshotError if the process that holds the snapshot is gone."""
    for _ in query_snapshot(exported, "SELECT 1"):
        pass


def query_snapshot(exported: str, query: str) -> Generator[pa.RecordBatch, None, None]:
    """Yields the rows of a SELECT on a held snapshot, in blocks whose columns are the server's texts as bytes.

    Raises SnapshotError if the snapshot is no longer held, SourceError if the server refuses the query.
    """
    try:
        place = json.loads(exported)
        key = bytes.fromhex(place["key"])
        with Client((place["host"], place["port"])) as connection:
            with _socket_of(connection) as same:
                notice_dead_network(same)
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
            connection.send_bytes(query.encode())
            while (block := connection.recv_bytes()) != _END:
                if block.startswith(_REFUSED):
                    raise SourceError(
                        block.removeprefix(_REFUSED).decode(),
                        expected="the rows of the query",
                        remedy="check the table's columns and the right to read them, and run cdc snapshot again",
                    )
                with pa.ipc.open_stream(pa.py_buffer(block)) as reader:
                    yield from reader
    except (OSError, EOFError, AuthenticationError, ValueError, KeyError) as error:
        raise SnapshotError(
            "the held snapshot of the source is gone",
            expected="the process that holds it, at source.copy_address",
            remedy="run the same command again: it starts over at a new position. Where worker slots are on other"
            f" machines, {_PER_MACHINE}",
        ) from error


def lock_definition(exported: str, table: TableName) -> str | None:
    """Reads one row, which locks the definition of the table: nobody can alter it before the snapshot ends.

    Returns what `read_definitions` found right before the snapshot began, or None if its session keeps none. Raises
    SourceError if the table's rows were written anew behind the snapshot.
    """
    one_row = f"SELECT 1 FROM {quoted(table.schema, table.table)} LIMIT 1"
    (block,) = query_snapshot(exported, f"SELECT {_definition_of(table)}, ({one_row})")
    found = block.column(0)[0].as_py()
    return None if found is None else str(found.decode())


def _definition_of(table: TableName) -> str:
    """Returns the variable that keeps the definition of the table. Names of variables have a limit: 64 characters."""
    return f"@definition_{sha256(str(table).encode()).hexdigest()[:32]}"


def is_locked(connection: "Session[Any]", lock: str) -> bool:
    return rows(connection, "SELECT IS_USED_LOCK(%s)", (lock,))[0][0] is not None
