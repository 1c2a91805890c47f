"""What MySQL has executed, what commits now, and what it has deleted from its log, as sets of GTIDs."""

import re
from typing import TYPE_CHECKING, Any

from cdc_pipeline.errors import SourceGap
from cdc_pipeline.sources.mysql.gtid_set import GtidSet, parse_gtid_set
from cdc_pipeline.sources.mysql.log_place import LogPlace
from cdc_pipeline.sources.mysql.session import rows

if TYPE_CHECKING:
    from pymysql.connections import Connection

_OWNER = re.compile(r"#\d+")


def latest_end(connection: "Connection[Any]") -> int:
    """Returns the position behind everything that a reader of the log may have got by now."""
    return _with_owned(connection).end


def check_start(connection: "Connection[Any]", start: LogPlace) -> None:
    """Raises SourceGap if the server lacks transactions that were read from it."""
    if isinstance(start, GtidSet) and not _with_owned(connection).contains(start):
        raise SourceGap(
            "the source lacks transactions that were read from it",
            expected=f"a server that has executed {start}",
            remedy="it was set back, or it is another server: run cdc setup-source --begin-again, then cdc snapshot",
        )


def has_lost(connection: "Connection[Any]", read: LogPlace) -> bool:
    """Returns whether the server has deleted, or never had in its log, a transaction that was not read."""
    purged = parse_gtid_set(_text(connection, "SELECT @@GLOBAL.gtid_purged"))
    return isinstance(read, GtidSet) and not read.contains(purged)


def _with_owned(connection: "Connection[Any]") -> GtidSet:
    """Returns what is executed or commits now: the log has a transaction before `gtid_executed` has it.

    What commits is asked for first. So a transaction that ends meanwhile is in the second answer.
    """
    owned = parse_gtid_set(_OWNER.sub("", _text(connection, "SELECT @@GLOBAL.gtid_owned")))
    return parse_gtid_set(_text(connection, "SELECT @@GLOBAL.gtid_executed")).joined(owned)


def _text(connection: "Connection[Any]", query: str) -> str:
    return str(rows(connection, query)[0][0])
