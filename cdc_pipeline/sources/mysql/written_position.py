"""Reads a position of the binary log as people write it: a GTID, or file and position."""

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cdc_pipeline.errors import SourceError, UsageError
from cdc_pipeline.sources.mysql.catalogue import read_server
from cdc_pipeline.sources.mysql.gtid import parse_gtid, position_behind
from cdc_pipeline.sources.mysql.session import rows

if TYPE_CHECKING:
    from pymysql.connections import Connection

_FILE_AND_POSITION = re.compile(r"([^\s:]+):([0-9]{1,19})")


def written_position(connection: "Connection[Any]", text: str) -> int:
    """Returns the position behind the transaction of a GTID, or behind what the log has before `file:position`.

    Raises UsageError for other text, and for a position that the server's log does not have.
    """
    server = read_server(connection)
    found = _position(connection, text)
    if found is None or found > server.end:
        raise UsageError(
            f"--as-of {text!r} is no position of the source",
            expected=f"a GTID up to {server.last}, or file:position of a binary log that the server still has",
            remedy="give what SELECT @@gtid_binlog_pos or SHOW MASTER STATUS showed when the export was taken",
        )
    return found


def _position(connection: "Connection[Any]", text: str) -> int | None:
    with suppress(SourceError):
        return parse_gtid(text).end
    placed = _FILE_AND_POSITION.fullmatch(text)
    if placed is None:
        return None
    ((before,),) = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (placed[1], int(placed[2])))
    return None if before is None else position_behind(before.decode() if isinstance(before, bytes) else before)
