"""Checks before the first run: that the server writes a log from which no change is missing, and keeps it."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import structlog
from pymysql.connections import Connection
from pymysql.err import MySQLError

from cdc_pipeline.errors import SourceError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.mysql.catalogue import BinlogServer
from cdc_pipeline.sources.mysql.dialect import Dialect
from cdc_pipeline.sources.mysql.gtid import Gtid
from cdc_pipeline.sources.mysql.session import rows
from cdc_pipeline.sources.mysql.shape import TableShape
from cdc_pipeline.sources.table_checks import check_as_text, check_excluded

log = structlog.get_logger()

_SHORTEST_SECONDS = 3600
_SYNTAX_ERROR, _NO_RIGHT = 1064, 1227
_NEEDED = ("REPLICATION SLAVE",)


def check_server(connection: "Connection[Any]", server: BinlogServer) -> None:
    """Raises SourceError for a server whose log would lack changes. Changes nothing."""
    if server.version < server.dialect.oldest:
        raise SourceError(
            f"the source is {server.version_text}",
            expected="MariaDB 10.5 or newer, or MySQL 8.0 or newer",
            remedy="point source.url at a supported server",
        )
    variables = server.variables
    for name, is_right, value, why in (*_SETTINGS, *_MORE_SETTINGS[server.dialect.name]):
        if not is_right(variables[name]):
            raise SourceError(
                f"the source has {name} = {variables[name] or 'nothing'}",
                expected=f"{name} = {value}: {why}",
                remedy=f"set it in the server's configuration{_HOW.get(name, '')}",
            )
    if 0 < server.retention_seconds < _SHORTEST_SECONDS:
        raise SourceError(
            f"the source keeps its log for {server.retention_seconds:.0f} s",
            expected="at least an hour: what is deleted before it was read is lost to the lake",
            remedy="run SET GLOBAL binlog_expire_logs_seconds = 604800",
        )
    if server.dialect.is_mariadb:
        _check_replica(connection, server)
    _check_rights(connection, server.dialect)
    _check_filters(connection)


def has_whole_images(server: BinlogServer) -> bool:
    """Returns whether updates are logged with every column of the row. A session may have another setting."""
    return server.variables["binlog_row_image"].upper() in ("FULL", "FULL_NODUP")


def check_images(
    settings: TableSettings, key: Collection[str], primary_key: Collection[str], server: BinlogServer
) -> None:
    """Raises SourceError if the log leaves out values of old rows by which the table's rows are found."""
    if has_whole_images(server):
        return
    outside = [name for name in key if name not in primary_key]
    if key and not outside:
        return
    identity = f"is identified by {', '.join(key)}" if key else "has no key"
    raise SourceError(
        f"the log shows only the primary key of old rows, and {settings.name} {identity}",
        expected="binlog_row_image = FULL, or an id within the primary key",
        remedy="run SET GLOBAL binlog_row_image = 'FULL', and have older sessions end",
    )


def check_cascade(settings: TableSettings, cascade: str | None) -> None:
    """Raises SourceError for a table with a foreign key by which InnoDB changes rows without events."""
    if cascade is not None:
        raise SourceError(
            f"{settings.name} has the foreign key {cascade} with CASCADE or SET NULL",
            expected="foreign keys with RESTRICT: InnoDB changes rows by the others without writing them to the log",
            remedy="make it RESTRICT and change the rows by statements, or leave the table out of pipeline.yml",
        )


def check_array_index(settings: TableSettings, array_index: str | None) -> None:
    """Raises SourceError for a table with a multi-valued index (MySQL 8.0.17 or newer)."""
    if array_index is not None:
        raise SourceError(
            f"{settings.name} has the multi-valued index {array_index}",
            expected="no such index: the log has its arrays in a hidden column of a type that is not decoded",
            remedy=f"run DROP INDEX {array_index} ON {settings.table.schema}.{settings.table.table}, or leave the table"
            " out of pipeline.yml",
        )


def check_new_columns(settings: TableSettings, key: Collection[str], shape: TableShape) -> None:
    """Raises SourceError as `check_as_text` and `check_excluded` do.

    A computed column that is not read may be excluded, too.
    """
    check_as_text(settings, shape.names)
    check_excluded(settings, key, (*shape.names, *shape.left_out))


def warn_of_partial_images(server: BinlogServer) -> None:
    """Warns if updates leave columns out: they are absent in the slices, and stay as they are in the lake."""
    if not has_whole_images(server):
        log.warning(
            "updates leave columns out",
            found=f"binlog_row_image = {server.variables['binlog_row_image']}",
            expected="FULL: otherwise an update does not correct a column that differs in the lake",
            remedy="run SET GLOBAL binlog_row_image = 'FULL', and have older sessions end",
        )


def warn_of_lost_end(server: BinlogServer) -> None:
    """Warns if a crash of the machine may take transactions from the log that were read from it."""
    if server.variables["sync_binlog"] != "1":
        log.warning(
            "a crash of the source's machine may shorten its log",
            found=f"sync_binlog = {server.variables['sync_binlog'] or 'nothing'}",
            expected="1: otherwise the lake may have changes that the source has lost",
            remedy="set it in the server's configuration, and run SET GLOBAL sync_binlog = 1",
        )


def warn_of_left_out(table: TableName, columns: Collection[str]) -> None:
    """Warns of computed columns that the lake does not get."""
    log.warning(
        "computed columns are not read",
        table=str(table),
        found=f"MariaDB 11 or newer leaves {', '.join(columns)} out of the updates in its log",
        remedy="compute them where the lake is read",
    )


def _is_on(value: str) -> bool:
    return value.upper() in ("ON", "1")


def _is_off(value: str) -> bool:
    """Returns True for a setting that the server does not know, too."""
    return not _is_on(value)


Wanted = tuple[str, Callable[[str], bool], str, str]
"""A setting's name, whether a value is right, the right value, and why."""
_COMPRESSED = "compressed events are not decoded"
_SETTINGS: tuple[Wanted, ...] = (
    ("log_bin", _is_on, "ON", "the binary log is what is read"),
    ("binlog_format", lambda value: value.upper() == "ROW", "ROW", "statements do not show which rows they change"),
    (
        "binlog_row_metadata",
        lambda value: value.upper() == "FULL",
        "FULL",
        "without the names of columns, values would be taken for those of other columns after ALTER TABLE",
    ),
)
_MORE_SETTINGS: Mapping[str, tuple[Wanted, ...]] = {
    "MariaDB": (("log_bin_compress", _is_off, "OFF", _COMPRESSED),),
    "MySQL": (
        ("gtid_mode", _is_on, "ON", "a place in the log is the set of the transactions before it"),
        ("enforce_gtid_consistency", _is_on, "ON", "each transaction has one id then"),
        ("log_replica_updates", _is_on, "ON", "what the server replicates would not be in its log"),
        ("binlog_transaction_compression", _is_off, "OFF", _COMPRESSED),
        (
            "binlog_row_value_options",
            lambda value: not value,
            "''",
            "updates that log parts of JSON values do not show the value",
        ),
    ),
}
_HOW = {
    "binlog_format": ", and run SET GLOBAL binlog_format = 'ROW'; sessions that are open keep the old value",
    "binlog_row_metadata": ", and run SET GLOBAL binlog_row_metadata = 'FULL'",
    "log_bin_compress": ", and run SET GLOBAL log_bin_compress = OFF",
    "log_bin": ", with a server_id, and restart it",
    "gtid_mode": ", with enforce_gtid_consistency = ON, and run SET GLOBAL gtid_mode in its four steps, up to ON",
    "log_replica_updates": " (before 8.0.26: log_slave_updates), and restart it",
    "binlog_transaction_compression": ", and run SET GLOBAL binlog_transaction_compression = OFF, and end the sessions"
    " that are open: they keep the old value",
    "binlog_row_value_options": ", and run SET GLOBAL binlog_row_value_options = ''; sessions keep the old value",
}


def _check_rights(connection: "Connection[Any]", dialect: Dialect) -> None:
    grants = " ".join(str(row[0]) for row in rows(connection, "SHOW GRANTS")).upper()
    missing = [right for right in _NEEDED if right not in grants and "ALL PRIVILEGES ON *.*" not in grants]
    if missing:
        raise SourceError(
            f"the user lacks {', '.join(missing)}",
            expected="a user that may read the log",
            remedy=f"run GRANT {', '.join(missing)}, {dialect.log_right} ON *.* TO the pipeline's user, as an"
            " administrator",
        )


def _check_replica(connection: "Connection[Any]", server: BinlogServer) -> None:
    """Raises SourceError for a MariaDB replica, and for a node of a cluster whose log lacks what the others write.

    What the pipeline writes on a replica gets a number that the primary gives, too, and replication stops. A server
    whose log ends with what it wrote itself is a primary, also one that could replicate from another.
    """
    is_logged, place = _is_on(server.variables["log_replica_updates"]), server.place
    if _is_on(server.variables["wsrep_on"]):
        if not is_logged:
            raise SourceError(
                "the source replicates from another server (wsrep_on = ON), and log_slave_updates = OFF",
                expected="log_slave_updates = ON: what the server replicates would not be in its log",
                remedy="set it in the server's configuration, and restart it; a stream that has begun lacks what was"
                " replicated meanwhile: run cdc setup-source --begin-again, then cdc snapshot",
            )
        return
    writes_itself = isinstance(place, Gtid) and str(place.server) == server.variables["server_id"]
    sign = "" if is_logged and writes_itself else _sign_of_replica(connection, server)
    if sign:
        raise SourceError(
            f"the source replicates from another server ({sign})",
            expected="the primary: marker messages written on a replica would get numbers that the primary gives, too",
            remedy="point source.url at the primary. A server that no longer replicates: run RESET SLAVE ALL, and GRANT"
            " SLAVE MONITOR ON *.* TO the pipeline's user; or, with gtid_strict_mode = OFF meanwhile, SET GLOBAL"
            " gtid_slave_pos = ''",
        )


def _sign_of_replica(connection: "Connection[Any]", server: BinlogServer) -> str:
    """Returns what shows that the server is a replica, "" for nothing.

    Without the right to see that, what it has ever replicated from a MariaDB counts.
    """
    try:
        return "SHOW ALL SLAVES STATUS" if rows(connection, "SHOW ALL SLAVES STATUS") else ""
    except MySQLError as error:
        if error.args[0] != _NO_RIGHT:
            raise
    applied = server.variables["gtid_slave_pos"]
    return applied and f"gtid_slave_pos = {applied}"


def _check_filters(connection: "Connection[Any]") -> None:
    """Raises SourceError if the server leaves databases out of its log. Not checked without the right to see it."""
    try:
        found = _log_status(connection)
    except MySQLError as error:
        log.warning("filters of the source's log are not checked", found=str(error))
        return
    filters = [str(value) for row in found for value in row[2:4] if value]
    if filters:
        raise SourceError(
            f"the source leaves databases out of its log (binlog_do_db or binlog_ignore_db: {', '.join(filters)})",
            expected="a log with every database",
            remedy="remove binlog_do_db and binlog_ignore_db from the server's configuration, and restart it",
        )


def _log_status(connection: "Connection[Any]") -> list[tuple[Any, ...]]:
    """Asks under the name that MariaDB and MySQL up to 8.3 have, then under that of newer ones."""
    try:
        return rows(connection, "SHOW MASTER STATUS")
    except MySQLError as error:
        if error.args[0] != _SYNTAX_ERROR:
            raise
        return rows(connection, "SHOW BINARY LOG STATUS")
