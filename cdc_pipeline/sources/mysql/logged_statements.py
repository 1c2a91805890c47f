"""Reads statements of the log: their texts, in the character set of the client, and what was set in its session.

Events of statements have status variables, which are settings of the session. The library fails at those of a newer
server, so they are taken out of the packet before the library reads it, and the two that matter are read here.
"""

import struct
from dataclasses import dataclass, replace
from typing import Any

from pymysql.charset import charset_by_id
from pymysql.protocol import MysqlPacket
from pymysqlreplication.event import ExecuteLoadQueryEvent, QueryEvent

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.types.mysql_charsets import KNOWN, codec_of, decoded

_STATEMENT = 2
_EVENT_TYPE, _EVENT_SIZE, _FLAGS, _CONTENT, _VARIABLES_SIZE, _VARIABLES = 5, 10, 18, 20, 31, 33
"""Where an event has these in its packet: one byte of the protocol, 19 of the header, 13 of numbers of a statement."""
_NUMBERS = 13
_OF_SESSION = 4
"""Among the flags of an event."""
_SQL_MODE, _CATALOGUE, _CHARSETS = 1, 6, 4
_SIZES = {0: 4, _SQL_MODE: 8, 3: 4, _CHARSETS: 6}
"""Sizes of the variables that servers write up to the character sets; the catalogue has its size before it."""
_NO_PAD, _FIRST_OF_LONG_NAMES = 1 << 10, 1 << 11
"""Of the number of a collation in MariaDB."""
_UTF8_NUMBER = 45


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStatement:
    """A statement of the log. `database`: the one in which it ran. `sql_mode`: None if the log does not show it.

    `text` has U+FFFD for bytes that cannot be decoded. `is_of_session`: it, or another statement of the same call of a
    procedure, names a temporary table, or depends on its session in another way.
    """

    text: str
    database: str
    sql_mode: int | None
    is_of_session: bool = False


class StatementPacket(MysqlPacket):
    """The packet of a statement, without the status variables that it had."""

    __slots__ = ("variables",)

    def __init__(self, octets: bytes, encoding: str, variables: bytes) -> None:
        super().__init__(octets, encoding)
        self.variables = variables


def type_of_event(packet: bytes) -> int | None:
    """Returns the type of the event that a packet holds; None for another packet."""
    is_event = len(packet) >= _CONTENT and struct.unpack_from("<I", packet, _EVENT_SIZE) == (len(packet) - 1,)
    return packet[_EVENT_TYPE] if is_event else None


def of_its_size(event: bytes | memoryview) -> bytes:
    """Returns the packet of an event that became shorter, with its size now."""
    return b"".join((event[:_EVENT_SIZE], struct.pack("<I", len(event) - 1), event[_EVENT_SIZE + 4 :]))


def without_status_variables(packet: bytes) -> tuple[bytes, bytes | None]:
    """Returns the packet of a statement of the log without its status variables, and these.

    Returns other packets as they are, and None.
    """
    if type_of_event(packet) != _STATEMENT or len(packet) < _VARIABLES:
        return packet, None
    end = _VARIABLES + int.from_bytes(packet[_VARIABLES_SIZE:_VARIABLES], "little")
    return of_its_size(packet[:_VARIABLES_SIZE] + b"\0\0" + packet[end:]), packet[_VARIABLES:end]


def content_of(event: Any) -> bytes:
    """Returns what an event has behind its header."""
    octets: bytes = event.packet.packet.get_all_data()
    return octets[_CONTENT : _CONTENT + event.event_size]


def statement_of(event: QueryEvent | ExecuteLoadQueryEvent) -> LoggedStatement:
    """Returns the statement of an event. Call it once per event.

    Of a LOAD DATA the library reads only the numbers before its text. Raises DecodeError if they do not fit the event.
    """
    if isinstance(event, QueryEvent):
        begin = _NUMBERS + event.schema_length + 1
        variables = getattr(event.packet.packet, "variables", b"")
        found = _statement(content_of(event)[begin:], event.schema, variables)
        return replace(found, is_of_session=bool(_flags(event) & _OF_SESSION))
    rest = event.packet.read(event.event_size - event.packet.read_bytes)
    begin = event.status_vars_length + event.schema_length + 1
    if len(rest) <= begin:
        raise DecodeError(
            f"an event of LOAD DATA has {len(rest)} bytes behind its numbers",
            expected=f"{begin} bytes of settings and the database, then the statement",
            remedy="read a supported server",
        )
    return _statement(rest[begin:], rest[event.status_vars_length : begin - 1], rest[: event.status_vars_length])


def _flags(event: Any) -> int:
    octets: bytes = event.packet.packet.get_all_data()
    return int.from_bytes(octets[_FLAGS:_CONTENT], "little")


def _statement(text: bytes, database: bytes, variables: bytes) -> LoggedStatement:
    sql_mode, collation = _settings(variables)
    return LoggedStatement(text=_text(text, collation), database=database.decode(errors="replace"), sql_mode=sql_mode)


def _settings(variables: bytes) -> tuple[int | None, int]:
    """Returns the SQL mode, and the number of the client's character set, which is that of its default collation."""
    sql_mode, place = None, 0
    while place < len(variables):
        key, place = variables[place], place + 1
        size = variables[place] + 1 if key == _CATALOGUE and place < len(variables) else _SIZES.get(key)
        if size is None or place + size > len(variables):
            break
        if key == _SQL_MODE:
            (sql_mode,) = struct.unpack_from("<Q", variables, place)
        if key == _CHARSETS:
            return sql_mode, int.from_bytes(variables[place : place + 2], "little")
        place += size
    return sql_mode, _UTF8_NUMBER


def _text(octets: bytes, collation: int) -> str:
    """Returns the text of a statement. The servers read one of an unknown or binary character set as UTF-8."""
    if octets.isascii():
        return octets.decode("ascii")
    charset = _charset(collation)
    codec = codec_of(charset) if charset in KNOWN else None
    try:
        if codec is not None:
            return decoded(octets, codec)
        return octets.decode("utf-8" if charset in (*KNOWN, "binary") else charset, errors="replace")
    except (UnicodeDecodeError, LookupError):
        return octets.decode("ascii", errors="replace")


def _charset(collation: int) -> str:
    if collation >= _FIRST_OF_LONG_NAMES:
        return "utf8mb4"
    try:
        found: Any = charset_by_id(collation & ~_NO_PAD)
    except KeyError:
        return "utf8mb4"
    return str(found.name)
