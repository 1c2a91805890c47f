"""A statement of the log is read whatever settings of its session the server writes beside it."""

import struct
from types import SimpleNamespace
from typing import Any

from pymysql.protocol import MysqlPacket
from pymysqlreplication.event import QueryEvent
from pymysqlreplication.packet import BinLogPacketWrapper

from cdc_pipeline.sources.mysql.binlog import without_status_variables

STATEMENT = b"UPDATE shop.orders SET amount = 9"
OF_MYSQL_9_7 = bytes.fromhex(
    "00 00000000 01 2000a04500000000 06 03 737464 04 ff00ff00ff00 09 0100000000000000 0c 01 73686f7000 12 ff00 15 00"
)
"""Status variables that MySQL 9.7 wrote beside it. mysql-replication 1.0 does not know the last one, 0x15."""


def packet_of(variables: bytes) -> bytes:
    numbers = struct.pack("<IIBHH", 7, 0, len(b"shop"), 0, len(variables))
    content = numbers + variables + b"shop\0" + STATEMENT + b"\0\0\0\0"
    header = struct.pack("<IBIIIH", 1_700_000_000, 2, 1, 19 + len(content), 4_000, 0)
    return b"\0" + header + content


def read(packet: bytes) -> Any:
    """The event that mysql-replication makes of a packet."""
    connection = SimpleNamespace(charset="utf8mb4", _get_dbms=lambda: "mysql")
    filters = dict.fromkeys(("only_tables", "ignored_tables", "only_schemas", "ignored_schemas"))
    switches = ("freeze_schema", "ignore_decode_errors", "verify_checksum", "optional_meta_data", "enable_logging")
    return BinLogPacketWrapper(
        MysqlPacket(packet, "utf8mb4"),
        {},
        connection,
        mysql_version=(9, 7, 4),
        use_checksum=True,
        allowed_events=[QueryEvent],
        **filters,
        **dict.fromkeys(switches, False),
    ).event


def test_a_statement_is_the_same_without_its_variables() -> None:
    for variables in (b"", OF_MYSQL_9_7, b"\xfe" * 40):
        event = read(without_status_variables(packet_of(variables)))
        assert (event.query.encode(), event.schema, event.timestamp) == (STATEMENT, b"shop", 1_700_000_000)


def test_a_row_of_a_result_that_looks_like_a_statement_stays_as_it_is() -> None:
    row = b"\0\0\0\0\0\x02" + b"some values of a query that the reader asks before it reads the log"
    assert without_status_variables(row) == row
