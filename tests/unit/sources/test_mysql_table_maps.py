"""What the log says of a table before its rows is read for every table, and stops at most the table itself."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from pymysql.protocol import MysqlPacket
from pymysqlreplication.event import MariadbGtidEvent, XidEvent
from pymysqlreplication.packet import BinLogPacketWrapper
from pymysqlreplication.row_event import TableMapEvent, WriteRowsEvent

from cdc_pipeline.errors import TableStale
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.mysql.gtid import parse_gtid
from cdc_pipeline.sources.mysql.prepared import PreparedTransactions
from cdc_pipeline.sources.mysql.shape import MysqlColumn, TableShape
from cdc_pipeline.sources.mysql.streamed_table import BinlogTable
from cdc_pipeline.sources.mysql.table_map import log_columns
from cdc_pipeline.sources.mysql.transactions import TransactionReader

ID = MysqlColumn(name="id", written="int(11)", type="int4", nullable=False)
INT, ENUM, STRING = 3, 247, 254
LATER_TYPES = {
    "array": ((INT, 20), b"\x08", b"\1\1\0"),
    "compressed blob": ((INT, 140), b"\x02", b"\1\1\0\2\1\x3f"),
    "compressed varchar": ((INT, 141), b"\x65\x00", b"\1\1\0\2\1\x2d"),
    "vector": ((INT, 242), b"\x04", b"\1\1\0"),
    "unknown": ((INT, 99), b"\xfb" * 8, b"\1\1\0"),
}


def sized(octets: bytes) -> bytes:
    return bytes([len(octets)]) + octets


def names(*given: bytes) -> bytes:
    return b"\4" + sized(b"".join(map(sized, given)))


def table_map(types: tuple[int, ...], lengths: bytes, described: bytes, table: str = "shop.orders") -> bytes:
    content = struct.pack("<IHH", 7, 0, 1) + b"".join(sized(name) + b"\0" for name in table.encode().split(b"."))
    return content + sized(bytes(types)) + sized(lengths) + b"\3" + described


def read(kind: int, content: bytes, known: dict[int, Any]) -> Any:
    """The event that the stream gets for what the server sends, without its checksum."""
    header = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, 19 + len(content), 4_000, 0)
    read_by = SimpleNamespace(charset="utf8mb4", _get_dbms=lambda: "mysql")
    switches = ("ignored_tables", "ignored_schemas", "freeze_schema", "ignore_decode_errors", "verify_checksum")
    event = BinLogPacketWrapper(
        MysqlPacket(b"\0" + header + content, "utf8mb4"),
        known,
        read_by,
        mysql_version=(10, 11, 0),
        use_checksum=False,
        allowed_events=[MariadbGtidEvent, TableMapEvent, WriteRowsEvent, XidEvent],
        only_tables=["orders", "cdc_marker"],
        only_schemas=["shop", "cdc"],
        optional_meta_data=True,
        enable_logging=False,
        **dict.fromkeys(switches),
    ).event
    if isinstance(event, TableMapEvent):
        known[event.table_id] = event.get_table()
    return event


def reader_of(*, start: int) -> TransactionReader:
    table = BinlogTable(
        name=TableName(database="shop", schema="shop", table="orders"),
        key=("id",),
        shapes=[TableShape(columns=(ID,))],
        start=start,
        looked_at=0,
        noted="",
        shows_computed=True,
        makes_column_keys=True,
    )
    return TransactionReader(
        {("shop", "orders"): table},
        marker_table=("cdc", "cdc_marker"),
        pipeline="shop",
        start=parse_gtid("0-1-5"),
        prepared=PreparedTransactions(""),
        look_back=lambda _, __: None,
        takes_any_case=False,
    )


@pytest.mark.parametrize(("described", "name"), [(b"", "a"), (b"\1\1\0", "a"), (b"\1\1\0", "ab")])
def test_a_keyless_table_with_one_column_has_the_name_of_its_column(described: bytes, name: str) -> None:
    event = read(19, table_map((INT,), b"", described + names(name.encode())), {})
    assert [column.name for column in log_columns(event.columns)] == [name]


def test_a_keyless_table_with_one_empty_label_has_it() -> None:
    event = read(19, table_map((STRING,), bytes([ENUM, 1]), names(b"e") + b"\x0a\1\x08" + b"\6\2\1\0"), {})
    assert [(column.name, column.type, column.labels) for column in log_columns(event.columns)] == [("e", ENUM, ("",))]


@pytest.mark.parametrize("later", LATER_TYPES)
def test_a_table_whose_columns_cannot_be_read_is_stale_alone_and_only_where_its_rows_are_read(later: str) -> None:
    types, lengths, described = LATER_TYPES[later]
    known: dict[int, Any] = {}
    events = [read(19, table_map(types, lengths, described + names(b"id", b"more") + b"\x08\1\0"), known)]
    events.append(read(30, struct.pack("<IHHH", 7, 0, 1, 2) + b"\2\3" + b"\0" + struct.pack("<I", 9), known))
    passing = reader_of(start=1_000)
    for event in events:
        passing.add(event)
    assert passing.is_empty
    reader = reader_of(start=0)
    reader.add(events[0])
    with pytest.raises(TableStale, match="orders has") as stale:
        reader.add(events[1])
    assert stale.value.table == TableName(database="shop", schema="shop", table="orders")


def test_rows_that_cannot_be_decoded_make_their_table_stale() -> None:
    known: dict[int, Any] = {}
    reader = reader_of(start=0)
    reader.add(read(19, table_map((INT,), b"", b"\1\1\0" + names(b"id")), known))
    with pytest.raises(TableStale, match="orders has rows in the log that cannot be read"):
        reader.add(read(30, struct.pack("<IHHH", 7, 0, 1, 2) + b"\1\1" + b"\0\0", known))
