"""Knows the XA transactions that are prepared at a place of the log, and the tables that they changed.

docs/reference/sources/mysql.md (XA transactions) says why their commits make these tables stale.
"""

import json
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pymysqlreplication.event import GtidEvent, MariadbGtidEvent, XAPrepareEvent
from pymysqlreplication.row_event import TableMapEvent

from cdc_pipeline.sources.mysql.log_runs import LogTransaction
from cdc_pipeline.sources.mysql.tagged_gtids import TaggedGtid

Tables = Collection[tuple[str, str]]
"""Tables by database and name."""
LookBack = Callable[[str, LogTransaction], Tables | None]
"""Reads in the log which tables the transaction changed that was prepared there. None: the log does not have it now."""
_COMPLETED = re.compile(r"\s*XA\s+(?P<how>COMMIT|ROLLBACK)\s+(?P<xid>.*)", re.IGNORECASE | re.DOTALL)
_XID = re.compile(r"X'(?P<global>[0-9a-f]*)'\s*,\s*X'(?P<branch>[0-9a-f]*)'\s*,\s*(?P<format>-?\d+)", re.IGNORECASE)
_FORMATS = 1 << 32
_MOST_SECONDS = 60
"""How long a transaction is waited for. MySQL sends a heartbeat for each event that it passes over, without a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The end of a prepared transaction. `xid`: as `xid_of` returns it, "" for one that cannot be read."""

    xid: str
    is_commit: bool


@dataclass(slots=True, kw_only=True)
class _Prepared:
    """`tables`: the listed ones that it changed, None if this reader began behind it. `ended`: where it was ended."""

    xid: str
    transaction: LogTransaction
    tables: Tables | None
    ended: int | None = None


class PreparedTransactions:
    """Follows XA PREPARE, XA COMMIT and XA ROLLBACK along the log. `noted`: a text of `text_at`, "" for none."""

    def __init__(self, noted: str = "") -> None:
        found = json.loads(noted or "{}")
        self._known = [
            _Prepared(
                xid=xid,
                transaction=LogTransaction(origin=origin, number=number, position=position),
                tables=None,
            )
            for xid, (origin, number, position) in found.items()
        ]
        self._open = {prepared.xid: prepared for prepared in self._known}

    def prepare(self, xid: str, transaction: LogTransaction, tables: Tables) -> None:
        """Notes a transaction. Another one of this xid is over: the server has only one of them at a time."""
        self._end(xid, transaction.position)
        prepared = _Prepared(xid=xid, transaction=transaction, tables=frozenset(tables))
        self._known.append(prepared)
        self._open[xid] = prepared

    def complete(self, completed: Completed, position: int, look_back: LookBack) -> Tables | None:
        """Returns the tables that this end of a transaction changes. None: it may be every table."""
        prepared = self._end(completed.xid, position)
        if not completed.is_commit:
            return ()
        if prepared is None:
            return None
        return look_back(prepared.xid, prepared.transaction) if prepared.tables is None else prepared.tables

    def text_at(self, position: int) -> str:
        """Returns the transactions that are prepared there as a text, "" for none. Positions must not fall."""
        self._known = [prepared for prepared in self._known if prepared.ended is None or prepared.ended >= position]
        open_then = {
            prepared.xid: (prepared.transaction.origin, prepared.transaction.number, prepared.transaction.position)
            for prepared in self._known
            if prepared.transaction.position < position
        }
        return json.dumps(open_then, sort_keys=True) if open_then else ""

    def _end(self, xid: str, position: int) -> _Prepared | None:
        prepared = self._open.pop(xid, None)
        if prepared is not None:
            prepared.ended = position
        return prepared


def xid_of(event: XAPrepareEvent) -> str:
    return f"{event.xid_gtrid.hex()},{event.xid_bqual.hex()},{event.xid_format_id % _FORMATS}"


def completed_by(statement: str) -> Completed | None:
    """Returns which prepared transaction the statement ends, None for another statement."""
    found = _COMPLETED.match(statement)
    if found is None:
        return None
    xid = _XID.match(found["xid"])
    text = "" if xid is None else f"{xid['global'].lower()},{xid['branch'].lower()},{int(xid['format']) % _FORMATS}"
    return Completed(xid=text, is_commit=found["how"].upper() == "COMMIT")


def prepared_tables(xid: str, next_event: Callable[[], Any]) -> Tables | None:
    """Returns the tables that the next transaction of a log changes. None if it is not the prepared one of this xid."""
    tables: set[tuple[str, str]] = set()
    begun, deadline = 0, time.monotonic() + _MOST_SECONDS
    while begun <= 1 and time.monotonic() < deadline:
        match event := next_event():
            case MariadbGtidEvent() | GtidEvent() | TaggedGtid():
                begun += 1
            case TableMapEvent():
                tables.add((event.schema, event.table))
            case XAPrepareEvent():
                return tables if xid_of(event) == xid else None
    return None
