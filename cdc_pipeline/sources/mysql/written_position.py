"""Reads a position of the binary log as people write it: GTIDs, or file and position of MariaDB's log."""

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cdc_pipeline.errors import SourceError, UsageError
from cdc_pipeline.sources.mysql.catalogue import BinlogServer, read_server
from cdc_pipeline.sources.mysql.gtid import last_gtid, parse_gtid
from cdc_pipeline.sources.mysql.gtid_set import GtidSet, parse_gtid_set
from cdc_pipeline.sources.mysql.session import rows

if TYPE_CHECKING:
    from pymysql.connections import Connection

_FILE_AND_POSITION = re.compile(r"([^\s:]+):([0-9]{1,19})")


def written_position(connection: "Connection[Any]", text: str) -> int:
    """Returns the position behind the transaction of MariaDB's GTID, or behind what its log has before `file:position`.

    For MySQL, returns the position behind a set of GTIDs. Raises UsageError for other text, and for a position that the
    server's log does not have.
    """
    server = read_server(connection)
    is_mariadb = server.dialect.is_mariadb
    found = _in_mariadb(connection, text) if is_mariadb else _in_mysql(server, text)
    if found is None or found > server.end:
        form = "a GTID up to {}, or file:position of a binary log that the server still has" if is_mariadb else "{}"
        raise UsageError(
            f"--as-of {text!r} is no position of the source",
            expected=form.format(server.place) if is_mariadb else f"all GTIDs up to the export, within {server.place}",
            remedy="give what SELECT @@gtid_binlog_pos or SHOW MASTER STATUS showed when the export was taken"
            if is_mariadb
            else "give what SELECT @@GLOBAL.gtid_executed showed when the export was taken",
        )
    return found


def _in_mariadb(connection: "Connection[Any]", text: str) -> int | None:
    with suppress(SourceError):
        return parse_gtid(text).end
    placed = _FILE_AND_POSITION.fullmatch(text)
    if placed is None:
        return None
    ((before,),) = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (placed[1], int(placed[2])))
    if before is None:
        return None
    last = last_gtid(before.decode() if isinstance(before, bytes) else before)
    return 1 if last is None else last.end


def _in_mysql(server: BinlogServer, text: str) -> int | None:
    """Returns None for a set that is not whole: every UUID of the server has to be in it, from its first number on."""
    with suppress(SourceError):
        found, executed = parse_gtid_set(text), server.place
        if isinstance(executed, GtidSet) and executed.contains(found) and found.begins_like(executed):
            return found.end
    return None
