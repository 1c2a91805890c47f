"""Events of the log are read with checksums or without, and statements with any settings of their session."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from pymysqlreplication.event import HeartbeatLogEvent, QueryEvent
from pymysqlreplication.packet import BinLogPacketWrapper

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.sources.mysql.log_connection import Checksums, LogConnections
from cdc_pipeline.sources.mysql.logged_statements import (
    StatementPacket,
    statement_of,
    without_status_variables,
)

STATEMENT = b"UPDATE shop.orders SET amount = 9"
OF_MYSQL_9_7 = bytes.fromhex(
    "00 00000000 01 2000a04500000000 06 03 737464 04 ff00ff00ff00 09 0100000000000000 0c 01 73686f7000 12 ff00 15 00"
)
"""Status variables that MySQL 9.7 wrote beside it. mysql-replication 1.0 does not know the last one, 0x15."""


def packet_of(variables: bytes, statement: bytes = STATEMENT) -> bytes:
    numbers = struct.pack("<IIBHH", 7, 0, len(b"shop"), 0, len(variables))
    content = numbers + variables + b"shop\0" + statement + b"\0\0\0\0"
    header = struct.pack("<IBIIIH", 1_700_000_000, 2, 1, 19 + len(content), 4_000, 0)
    return b"\0" + header + content


def read(packet: bytes, variables: bytes = b"", event_class: type = QueryEvent) -> Any:
    """The event that mysql-replication makes of a packet, which had these variables."""
    connection = SimpleNamespace(charset="utf8mb4", _get_dbms=lambda: "mysql")
    filters = dict.fromkeys(("only_tables", "ignored_tables", "only_schemas", "ignored_schemas"))
    switches = ("freeze_schema", "ignore_decode_errors", "verify_checksum", "optional_meta_data", "enable_logging")
    return BinLogPacketWrapper(
        StatementPacket(packet, "utf8mb4", variables),
        {},
        connection,
        mysql_version=(9, 7, 4),
        use_checksum=event_class is QueryEvent,
        allowed_events=[event_class],
        **filters,
        **dict.fromkeys(switches, False),
    ).event


def test_a_statement_is_the_same_without_its_variables() -> None:
    for variables in (b"", OF_MYSQL_9_7, b"\xfe" * 40):
        packet, found = without_status_variables(packet_of(variables))
        event = read(packet)
        assert found == variables
        assert (event.query.encode(), event.schema, event.timestamp) == (STATEMENT, b"shop", 1_700_000_000)


def test_a_row_of_a_result_that_looks_like_a_statement_stays_as_it_is() -> None:
    row = b"\0\0\0\0\0\x02" + b"some values of a query that the reader asks before it reads the log"
    assert without_status_variables(row) == (row, None)


@pytest.mark.parametrize(
    ("client", "octets", "text"),
    [
        (8, "bücher".encode("cp1252"), "bücher"),
        (47, "€".encode("cp1252"), "€"),
        (1024 + 8, "bücher".encode("cp1252"), "bücher"),
        (28, "表`".encode("gbk"), "表`"),
        (13, "表`".encode("shift_jis"), "表`"),
        (45, "bücher".encode(), "bücher"),
        (309, "bücher".encode(), "bücher"),
        (2304, "bücher".encode(), "bücher"),
        (63, "bücher".encode(), "bücher"),
        (45, "bücher".encode("cp1252"), "b\ufffdcher"),
        (10, b"b\xfccher", "b\ufffdcher"),
    ],
)
def test_a_statement_is_read_in_the_character_set_of_its_client(client: int, octets: bytes, text: str) -> None:
    charsets = struct.pack("<HHH", client, 45, 45)
    for before in ("", "00 00000000 01 2000a04500000000 06 03 737464 03 01000100"):
        packet = packet_of(bytes.fromhex(before) + b"\x04" + charsets, octets)
        shorter, variables = without_status_variables(packet)
        found = statement_of(read(shorter, variables or b""))
        assert (found.text, found.database) == (text, "shop")


def test_the_sql_mode_of_a_statement_is_read_and_missing_where_no_variable_has_it() -> None:
    assert statement_of(read(packet_of(b""), OF_MYSQL_9_7)).sql_mode == 0x45A00020
    for variables in (b"", b"\x01\x00", b"\xfe" * 40):
        assert statement_of(read(packet_of(b""), variables)).sql_mode is None


def event(kind: int, content: bytes) -> bytes:
    return b"\0" + struct.pack("<IBIIIH", 1_700_000_000, kind, 1, 19 + len(content), 4_000, 0) + content


FORMAT, HEARTBEAT, CHECKSUM = 15, 27, b"\x01\x02\x03\x04"


def test_each_file_of_a_log_says_whether_its_events_have_checksums() -> None:
    checksums = Checksums()
    long, short = event(HEARTBEAT, b"content" + CHECKSUM), event(HEARTBEAT, b"content")
    assert checksums.cut(long) == short
    for algorithm, sent in ((b"\0", short), (b"\1", long), (b"\xff", short)):
        begins = event(FORMAT, b"description" + algorithm + CHECKSUM)
        assert checksums.cut(begins) == begins
        assert checksums.cut(sent) == short
    for other in (b"\xfe\0\0\2\0", b"\xff\xd4\x04#HY000purged", b"\0" + b"no event at all, though it is long"):
        assert checksums.cut(other) == other
    with pytest.raises(DecodeError, match="checksums of the unknown kind 2"):
        checksums.cut(event(FORMAT, b"description" + b"\2" + CHECKSUM))


def test_a_log_of_events_that_are_all_skipped_shows_a_heartbeat_in_time() -> None:
    connections = LogConnections(executed=None)
    connection = connections(defer_connect=True)
    connection.checksums = Checksums()
    connections.answer_within(-1)
    shown = read(connection._read_packet().get_all_data(), event_class=HeartbeatLogEvent)
    assert isinstance(shown, HeartbeatLogEvent)
