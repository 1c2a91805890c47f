"""What differs between MariaDB and MySQL, in one record each."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from cdc_pipeline.errors import SourceGap
from cdc_pipeline.sources.mysql.gtid import Gtid, last_gtid
from cdc_pipeline.sources.mysql.gtid_set import GtidSet, LogPlace, parse_gtid_set
from cdc_pipeline.sources.mysql.session import text_of
from cdc_pipeline.sources.mysql.snapshot_position import begin_on_mariadb, begin_on_mysql

if TYPE_CHECKING:
    from pymysql.connections import Connection

_OWNER = re.compile(r"#\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of server. `is_mariadb`: as mysql-replication calls it.

    `end_sql`: an expression for the end of the log, whose text `place` reads; None for the beginning of a log without
    transactions. `end_of`: the end of the log by that text and the server's variables. `identity`: names the log that
    positions belong to. `begin_snapshot`: begins a consistent snapshot, and returns its place. `log_right`: the right
    to see the filters of the log. `log_check`: a program that checks the log. `how_to_pass`: what an administrator runs
    so that the end of the log, the second position, reaches the first one. `latest_end`: the position behind everything
    that a reader of the log may have got. `check_start`: raises SourceGap for a place that the log no longer has, where
    the server itself does not refuse such a reader. `has_lost`: whether the log lacks something after a place that was
    read. `shows_computed`: whether an update that lacks a computed column has not changed it.
    """

    name: str
    is_mariadb: bool
    oldest: tuple[int, int]
    shows_computed: bool
    end_sql: str
    place: Callable[[str], LogPlace | None]
    end_of: Callable[[str, Mapping[str, str]], LogPlace]
    identity: Callable[[Mapping[str, str]], str]
    begin_snapshot: "Callable[[Connection[Any]], LogPlace | None]"
    log_right: str
    log_check: str
    how_to_pass: Callable[[int, int], str]
    latest_end: "Callable[[Connection[Any]], int]"
    check_start: "Callable[[Connection[Any], LogPlace], None]"
    has_lost: "Callable[[Connection[Any], LogPlace], bool]"


def _mariadb_end(written: str, variables: Mapping[str, str]) -> LogPlace:
    beginning = Gtid(domain=int(variables["gtid_domain_id"] or 0), server=int(variables["server_id"] or 0), sequence=0)
    return last_gtid(written) or beginning


def _latest_end(connection: "Connection[Any]") -> int:
    """Returns the position behind everything that a reader of the log may have got by now."""
    return _with_owned(connection).end


def _check_start(connection: "Connection[Any]", start: LogPlace) -> None:
    """Raises SourceGap if the server lacks transactions that were read from it."""
    if isinstance(start, GtidSet) and not _with_owned(connection).contains(start):
        raise SourceGap(
            "the source lacks transactions that were read from it",
            expected=f"a server that has executed {start}",
            remedy="it was set back, or it is another server: run cdc setup-source --begin-again, then cdc snapshot",
        )


def _has_lost(connection: "Connection[Any]", read: LogPlace) -> bool:
    """Returns whether the server has deleted, or never had in its log, a transaction that was not read."""
    purged = parse_gtid_set(text_of(connection, "SELECT @@GLOBAL.gtid_purged"))
    return isinstance(read, GtidSet) and not read.contains(purged)


def _with_owned(connection: "Connection[Any]") -> GtidSet:
    """Returns what is executed or commits now: the log has a transaction before `gtid_executed` has it.

    What commits is asked for first. So a transaction that ends meanwhile is in the second answer.
    """
    owned = parse_gtid_set(_OWNER.sub("", text_of(connection, "SELECT @@GLOBAL.gtid_owned")))
    return parse_gtid_set(text_of(connection, "SELECT @@GLOBAL.gtid_executed")).joined(owned)


MARIADB = Dialect(
    name="MariaDB",
    is_mariadb=True,
    oldest=(10, 5),
    shows_computed=False,
    end_sql="@@GLOBAL.gtid_binlog_pos",
    place=last_gtid,
    end_of=_mariadb_end,
    identity=lambda variables: f"mariadb domain {variables['gtid_domain_id']} server {variables['server_id']}",
    begin_snapshot=begin_on_mariadb,
    log_right="BINLOG MONITOR",
    log_check="mariadb-binlog --verify-binlog-checksum",
    how_to_pass=lambda position, _: (
        f"run SET SESSION gtid_seq_no = {position} before a write on the source, then try again"
    ),
    latest_end=lambda _: 0,
    check_start=lambda _, __: None,
    has_lost=lambda _, __: False,
)
MYSQL = Dialect(
    name="MySQL",
    is_mariadb=False,
    oldest=(8, 0),
    shows_computed=True,
    end_sql="@@GLOBAL.gtid_executed",
    place=parse_gtid_set,
    end_of=lambda written, _: parse_gtid_set(written),
    identity=lambda variables: f"mysql server {variables['server_uuid']}",
    begin_snapshot=begin_on_mysql,
    log_right="REPLICATION CLIENT",
    log_check="mysqlbinlog --verify-binlog-checksum",
    how_to_pass=lambda position, end: (
        f"run SET GLOBAL gtid_purged = '+{uuid4()}:1-{position - end}' on the source and its replicas, then try again"
    ),
    latest_end=_latest_end,
    check_start=_check_start,
    has_lost=_has_lost,
)


def dialect_of(version: str) -> Dialect:
    """Returns the dialect of a server with this `VERSION()`."""
    return MARIADB if "mariadb" in version.lower() else MYSQL


def dialect_at(connection: "Connection[Any]") -> Dialect:
    return dialect_of(text_of(connection, "SELECT VERSION()"))
