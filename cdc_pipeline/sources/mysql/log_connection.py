"""The connections of a reader of the log. What the server sends gets the form in which the library reads it."""

import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection
from pymysql.protocol import MysqlPacket

from cdc_pipeline.errors import DecodeError, SourceAway
from cdc_pipeline.sources.mysql.gtid_set import GtidSet
from cdc_pipeline.sources.mysql.logged_statements import (
    StatementPacket,
    of_its_size,
    type_of_event,
    without_status_variables,
)
from cdc_pipeline.sources.mysql.session import FORMATS, logging_in
from cdc_pipeline.sources.mysql.tagged_gtids import asking_for

if TYPE_CHECKING:

    class _Connection(Connection[Any]):
        def _write_bytes(self, data: bytes) -> None: ...

else:
    _Connection = Connection

SILENCE_SECONDS = 20
_ALGORITHM = "'CRC32'"
ANNOUNCING = f"{FORMATS} , @master_binlog_checksum = {_ALGORITHM}, @source_binlog_checksum = {_ALGORITHM}"
"""Says that the reader knows checksums. Without that, the server refuses to send a file of its log that has them."""
_ASKED_BY_LIBRARY, _NO_CHECKSUM = "LIKE 'BINLOG_CHECKSUM'", "SELECT 'binlog_checksum', 'NONE'"
_DUMP, _DUMP_GTID = b"\x12", b"\x1e"
_FORMAT = 15
_NOTHING_YET = b"\0" + struct.pack("<IBIIIH", 0, 27, 0, 19, 0, 0)
"""What a server sends as a heartbeat."""
_CHECKSUM_SIZE = 4
_VERSION_START, _VERSION_SIZE = 1 + 19 + 2, 50
"""Of the server's version in the event that begins a file, behind the byte of the packet and the event's header."""
_VERSION_NUMBERS = re.compile(rb"[0-9]+(?:\.[0-9]+)*")
_NONE, _CRC32, _UNDEFINED = 0, 1, 255


class Checksums:
    """Cuts the checksums off the events of a log, of which each file has them or not.

    A file begins with the event that says so. Before the first one, events have what the reader announced.
    """

    def __init__(self) -> None:
        self._are_there = True

    def cut(self, packet: bytes) -> bytes:
        """Returns the packet of an event without its checksum; other packets as they are, and the first of a file."""
        kind = type_of_event(packet)
        if kind == _FORMAT:
            self._read_algorithm(packet[-_CHECKSUM_SIZE - 1])
        elif kind is not None and self._are_there:
            return of_its_size(memoryview(packet)[:-_CHECKSUM_SIZE])
        return packet

    def _read_algorithm(self, algorithm: int) -> None:
        if algorithm not in (_NONE, _CRC32, _UNDEFINED):
            raise DecodeError(
                f"a file of the source's log has checksums of the unknown kind {algorithm}",
                expected="binlog_checksum = CRC32 or NONE",
                remedy="read a supported server",
            )
        self._are_there = algorithm == _CRC32


def _with_plain_version(packet: bytes) -> bytes:
    """Keeps the numbers alone of the server's version, with which a file begins; returns other packets as they are.

    The library reads no other version, such as `10.11_patched`.
    """
    if type_of_event(packet) != _FORMAT:
        return packet
    version = packet[_VERSION_START : _VERSION_START + _VERSION_SIZE]
    numbers = _VERSION_NUMBERS.match(version)
    plain = (numbers[0] if numbers else b"10").ljust(_VERSION_SIZE, b"\0")
    return packet[:_VERSION_START] + plain + packet[_VERSION_START + _VERSION_SIZE :]


class _LogConnection(_Connection):
    """A connection that asks for the log behind `executed`, and cuts off events what the library does not read well.

    The library decides once whether events have checksums, and files of the log differ: for it none has. It parses the
    status variables of statements, and fails at those of a newer server. Of sets, it knows only those without tags.
    """

    executed: GtidSet | None = None
    checksums: Checksums | None = None
    answer_by: float | None = None

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:  # noqa: FBT001, FBT002 - the driver's signature
        if isinstance(sql, str) and sql.endswith(_ASKED_BY_LIBRARY):
            sql = _NO_CHECKSUM
        return super().query(sql, unbuffered)

    def _write_bytes(self, data: bytes) -> None:
        if data[4:5] in (_DUMP, _DUMP_GTID):
            self.checksums = Checksums()
        if self.executed is not None and data[4:5] == _DUMP_GTID:
            data = asking_for(data, self.executed)
        super()._write_bytes(data)

    def _read_packet(self, packet_type: type[MysqlPacket] = MysqlPacket) -> Any:
        if self.answer_by is not None and time.monotonic() > self.answer_by:
            return packet_type(_NOTHING_YET, self.encoding)
        read: Callable[[type[MysqlPacket]], Any] = super()._read_packet
        packet = read(packet_type)
        if self.checksums is None:
            return packet
        octets, variables = without_status_variables(_with_plain_version(self.checksums.cut(packet.get_all_data())))
        if variables is None:
            return packet_type(octets, self.encoding)
        return StatementPacket(octets, self.encoding, variables)


@dataclass(slots=True, kw_only=True)
class LogConnections:
    """Opens the two connections that one reader needs, and refuses a third one.

    When a connection breaks, the library would connect again without limit, and read again from where the reader began.
    Here a broken connection ends the reader. The next reader begins at the registered offset.
    """

    executed: GtidSet | None
    opened: list[Any] = field(default_factory=list)

    def __call__(self, **parameters: Any) -> Any:
        if len(self.opened) > 1:
            raise SourceAway(
                f"the source's log was silent for {SILENCE_SECONDS} s, or its connection broke",
                expected="events, or the server's heartbeats",
                remedy="start the server, or repair the network between",
            )
        if "db" in parameters:  # the library's old name, of which the driver warns
            parameters["database"] = parameters.pop("db")
        with logging_in():
            self.opened.append(_LogConnection(**parameters))
        self.opened[-1].executed = self.executed
        return self.opened[-1]

    def answer_within(self, seconds: float) -> None:
        """Lets the log show a heartbeat then also if it has only events that the library skips."""
        for connection in self.opened:
            if connection.checksums is not None:
                connection.answer_by = time.monotonic() + seconds

    def close(self) -> None:
        for connection in self.opened:
            if connection.open:
                connection._force_close()  # noqa: SLF001 - QUIT would wait behind what the server still sends
