"""Reads the server's binary log as a replica does, by mysql-replication. One event at a time; never reconnects."""

import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.constants import BINLOG
from pymysqlreplication.event import (
    ExecuteLoadQueryEvent,
    FormatDescriptionEvent,
    GtidEvent,
    HeartbeatLogEvent,
    MariadbGtidEvent,
    NotImplementedEvent,
    QueryEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.gtid import Gtid as LibraryGtid
from pymysqlreplication.packet import BinLogPacketWrapper
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    PartialUpdateRowsEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)
from pymysqlreplication.table import Table

from cdc_pipeline.errors import DecodeError, SourceAway, SourceError
from cdc_pipeline.sources.mysql.dialect import Dialect
from cdc_pipeline.sources.mysql.gtid_set import GtidSet, LogPlace
from cdc_pipeline.sources.mysql.log_connection import ANNOUNCING, SILENCE_SECONDS, LogConnections
from cdc_pipeline.sources.mysql.logged_statements import content_of
from cdc_pipeline.sources.mysql.session import MysqlAddress, answering
from cdc_pipeline.sources.mysql.tagged_gtids import TaggedGtid, tagged_gtid

HEARTBEAT = timedelta(milliseconds=50)
"""The server sends a heartbeat when the log has nothing new for this long."""
_SKIPPING_SECONDS = 2
"""So long are events of tables that are not read skipped; then their reader gets a heartbeat, too."""
_WITHOUT_ROWS = frozenset({0, 3, 5, 9, 11, 13, 14, 15, 17, 28, 29, 34, 35, 36, 37, 38, 160, 161, 163, 164, 27, 41})
"""Types of events that are not read and that carry no change of a row. 9, 11, 17: blocks of a file of LOAD DATA."""
_COMPRESSED = frozenset({40, 165, 166, 167, 168, 169, 170, 171})
_INCIDENT = 26
_TAGGED_GTID = 42
_SUPPORTED = "the events of MariaDB 10.5 or MySQL 8.0, or newer"
_COMPRESSION = {"MariaDB": "log_bin_compress", "MySQL": "binlog_transaction_compression"}
_NO_UUID = "00000000-0000-0000-0000-000000000000"
_EVENTS = (
    DeleteRowsEvent,
    ExecuteLoadQueryEvent,
    FormatDescriptionEvent,
    GtidEvent,
    HeartbeatLogEvent,
    MariadbGtidEvent,
    NotImplementedEvent,
    PartialUpdateRowsEvent,
    QueryEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
    XAPrepareEvent,
    XidEvent,
)


def _read_string(packet: Any) -> bytes:
    octets: bytes = packet.read(packet.read_length_coded_binary())
    return octets


_read_table_map = TableMapEvent.__init__


def _read_any_table_map(event: Any, *arguments: Any, **options: Any) -> None:
    """Reads the description of a table, without its columns if one has a type that the library does not know."""
    try:
        _read_table_map(event, *arguments, **options)
    except Exception:
        if not hasattr(event, "table"):
            raise
        event.columns = []
        event.table_obj = Table(event.table_id, event.schema, event.table, event.columns)


# The library takes the length of a column's name or of a label for seven bits per byte; servers write it like other
# numbers of the protocol. Both are equal below 128 bytes. Its reader makes the packets itself and takes no other class.
BinLogPacketWrapper.read_variable_length_string = _read_string
TableMapEvent.__init__ = _read_any_table_map
# The library leaves the last bytes of a description for its checksum. `Checksums` cuts that off before.
BINLOG.BINLOG_CHECKSUM_LEN = 0


class BinlogReader:
    """Reads the log behind the place `start`. `server_id` identifies this reader to the server, like a replica.

    Only rows of the databases `schemas` and the tables `tables` are read. Others are skipped without being decoded.
    """

    def __init__(
        self,
        address: MysqlAddress,
        *,
        dialect: Dialect,
        server_id: int,
        start: LogPlace,
        schemas: Collection[str],
        tables: Collection[str],
    ) -> None:
        self._connections = LogConnections(executed=start if isinstance(start, GtidSet) else None)
        self._dialect = dialect
        self._reader = BinLogStreamReader(
            connection_settings={
                **address.parameters(),
                "init_command": ANNOUNCING,
                "read_timeout": SILENCE_SECONDS,
            },
            server_id=server_id,
            blocking=True,
            is_mariadb=dialect.is_mariadb,
            auto_position=_auto_position(dialect, start),
            slave_heartbeat=HEARTBEAT.total_seconds(),
            only_events=_EVENTS,
            filter_non_implemented_events=False,
            only_schemas=sorted(set(schemas)),
            only_tables=sorted(set(tables)),
            enable_logging=False,
            pymysql_wrapper=self._connections,
        )

    def next_event(self) -> Any:
        """Returns the next event of the library, a HeartbeatLogEvent if none came for a moment.

        Raises SourceGap if the server no longer has the log, SourceAway if the connection broke or was silent,
        SourceError for an event that hides changes, DecodeError for bytes that are no event.
        """
        try:
            self._connections.answer_within(_SKIPPING_SECONDS)
            with answering():
                event = self._reader.fetchone()
        except (SourceError, DecodeError):
            raise
        except Exception as error:
            raise DecodeError(
                f"an event of the source's log cannot be read: {error!r}",
                expected=_SUPPORTED,
                remedy=f"check the binary log with {self._dialect.log_check}",
            ) from error
        if event is None:
            raise SourceAway("the source ended the stream of its log", remedy="start the server again")
        if isinstance(event, NotImplementedEvent):
            if event.event_type == _TAGGED_GTID:
                event = tagged_gtid(content_of(event), event.timestamp)
            else:
                _check_skipped(event.event_type, self._dialect)
        if isinstance(event, GtidEvent | MariadbGtidEvent | TaggedGtid):
            # After a restart the server gives the ids of tables to others, whose maps the library leaves out.
            self._reader.table_map.clear()
        return event

    def wait_ready(self, timeout: timedelta) -> Any:
        """Reads until the server has accepted the start: returns the first event that is not about the file itself."""
        end = time.monotonic() + timeout.total_seconds()
        while True:
            event = self.next_event()
            if not isinstance(event, NotImplementedEvent | FormatDescriptionEvent) or time.monotonic() > end:
                return event

    def close(self) -> None:
        self._connections.close()


def row_octets(event: Any) -> bytes:
    """Returns the images of an event of rows, undecoded. Call it once per event."""
    octets: bytes = event.packet.read(event.event_size - event.packet.read_bytes)
    return octets


def decoded_rows(event: Any) -> list[dict[str, Any]]:
    """Returns the rows of an event as the library reads them. Raises DecodeError if it cannot."""
    try:
        rows: list[dict[str, Any]] = event.rows
    except Exception as error:
        raise DecodeError(
            f"rows of {event.schema}.{event.table} in the source's log cannot be read: {error!r}",
            expected="the columns that cdc setup-source gave it",
            remedy="give it these columns again, then run cdc setup-source --begin-again and cdc snapshot",
        ) from error
    return rows


def _auto_position(dialect: Dialect, start: LogPlace) -> Any:
    """Returns how the library takes the place. For MySQL any set does: the connection has the true one."""
    return str(start) if dialect.is_mariadb else [LibraryGtid("", sid=_NO_UUID, intervals=[])]


def _check_skipped(event_type: int, dialect: Dialect) -> None:
    if event_type in _WITHOUT_ROWS:
        return
    if event_type in _COMPRESSED:
        raise SourceError(
            f"the source's log has compressed events (type {event_type})",
            expected=f"{_COMPRESSION[dialect.name]} = OFF",
            remedy=f"run SET GLOBAL {_COMPRESSION[dialect.name]} = OFF, and end the sessions that are open (in"
            " MySQL they keep the old value), then cdc setup-source --begin-again and cdc snapshot",
        )
    if event_type == _INCIDENT:
        raise SourceError(
            "the source's log says that changes are missing in it (an incident event)",
            expected="a log with every change",
            remedy="run cdc setup-source --begin-again, then cdc snapshot",
        )
    raise DecodeError(
        f"the source's log has an event of the type {event_type}",
        expected=_SUPPORTED,
        remedy="read a supported server",
    )
