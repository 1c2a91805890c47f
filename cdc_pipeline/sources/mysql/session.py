"""Opens connections to the source and translates its driver's errors."""

import re
import socket
import ssl
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.connections import Connection
from pymysql.converters import conversions
from pymysql.err import InterfaceError, MySQLError

from cdc_pipeline.errors import SettingsError, SourceAway, SourceError, SourceGap
from cdc_pipeline.settings.libpq import CONNECTION_DEFAULTS, is_this_machine
from cdc_pipeline.settings.mysql import MysqlSource

URL_FORM = "mysql://user@host:port, with special characters of a password encoded: %40 for @, %2F for /"
_SCHEMES = ("mysql", "mariadb")
_PORT = 3306
_CONNECT_SECONDS, _READ_SECONDS = 10, 600
_DEAD_NETWORK = {
    socket.TCP_KEEPIDLE: CONNECTION_DEFAULTS["keepalives_idle"],
    socket.TCP_KEEPINTVL: CONNECTION_DEFAULTS["keepalives_interval"],
    socket.TCP_KEEPCNT: CONNECTION_DEFAULTS["keepalives_count"],
    socket.TCP_USER_TIMEOUT: CONNECTION_DEFAULTS["tcp_user_timeout"],
}
"""A dead network ends a connection, however long its statements may take."""
FORMATS = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', wait_timeout = 86400, net_write_timeout = 3600,"
    " sql_select_limit = 18446744073709551615"
    " /*!80000 , information_schema_stats_expiry = 0, max_execution_time = 0 */"
    " /*!80030 , show_gipk_in_create_table_and_information_schema = ON */"
    " /*M! , max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0 */"
)
"""No setting of the server ends or shortens what a session reads. MySQL alone reads the first comments, MariaDB alone
the last one."""
_WITHOUT_CONVERSION = {key: value for key, value in conversions.items() if not isinstance(key, int)}
_NOT_SENT, _ACCESS_DENIED, _TOO_MANY, _NO_DATABASE = 1236, 1045, 1040, 1049
_NO_TABLE, _NO_PLUGIN = 1146, 2059
_GONE = re.compile(r"purged|could not find|is not in the \w+'s binlog|missing the GTID|more GTIDs than", re.IGNORECASE)
"""What servers say, under the number of each refusal to send the log, if the log no longer has the place."""
_USER_LIMITS = frozenset({1203, 1226})
_UNKNOWN_COMMAND, _OFFLINE = 1047, 3032
_OF_CLUSTER = "WSREP"
"""Is in what a node of a Galera cluster says, under the number of an unknown command, while it has no quorum."""
_BROKEN = _USER_LIMITS.union(
    {_OFFLINE},
    {1040, 1053, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2005, 2006, 2013, 2014, 2026, 2055, 4031},
)
_LOCKED = frozenset({1820, 1862, 3118, 3955, 4151})
_NOT_LET_IN = _LOCKED | {_ACCESS_DENIED, 1129, 1130, 1698}
"""Refusals of a connection, which end when somebody corrects a password, or lets this user or host in."""
_OTHER_LOGIN = "give the user one of the authentication plug-ins that docs/how-to/mysql.md names"
READ_ONLY = frozenset({1290, 1836})
"""Refusals of a write, which end with a failover or with what the server is closed for."""
HELD_UP = frozenset({1205, 1213})
"""Refusals of a write, which end with the transaction that has the lock."""
_REFUSED_RIGHTS = frozenset({1044, 1142, 1143, 1227, 1370})
_REMEDIES = {
    _ACCESS_DENIED: "correct user and password in source.url, or in the file that source.password_file names",
    _TOO_MANY: "raise max_connections on the server, or end other sessions",
    _NO_DATABASE: "create it on the server, or correct the tables of pipeline.yml",
    _NO_TABLE: "run the same command again; if the table is still missing, run cdc setup-source",
    _NO_PLUGIN: _OTHER_LOGIN,
    **dict.fromkeys(_USER_LIMITS, "raise the limits of this user on the server, or end its other sessions"),
    **dict.fromkeys(_LOCKED, "have an administrator unlock the account, or give it a new password"),
    **dict.fromkeys(READ_ONLY, "wait until the server takes writes, or name the one that does in source.url"),
    **dict.fromkeys(HELD_UP, "end the transaction that holds the lock, if the next try fails, too"),
    _UNKNOWN_COMMAND: "name the server itself in source.url, not a proxy that does not pass on its log",
    _OFFLINE: "turn offline_mode off on the server, or name another one in source.url",
    2026: "correct source.tls and source.tls_ca; tls: off allows plain text to another machine",
    **dict.fromkeys(_REFUSED_RIGHTS, "have an administrator grant the rights that docs/how-to/mysql.md lists"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlAddress:
    """Where the server is and who connects. The password is not shown."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    context: ssl.SSLContext | None = field(default=None, repr=False)

    def parameters(self) -> dict[str, Any]:
        """The driver's parameters of every connection."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password.encode(),  # the driver would encode a text as Latin-1
            "ssl": self.context,
            "ssl_disabled": self.context is None,
            "charset": "utf8mb4",
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": _READ_SECONDS,
            "autocommit": True,
        }


def address_of(settings: MysqlSource, folder: Path) -> MysqlAddress:
    """Reads URL, password file and certificates. Raises SettingsError that shows no part of the URL."""
    try:
        parts = urlsplit(settings.url)
        port = parts.port or _PORT
    except ValueError:
        raise _invalid_url() from None
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.username is None:
        raise _invalid_url()
    password = unquote(parts.password or "")
    if settings.password_file is not None:
        password = _file_text(folder / settings.password_file, "source.password_file").rstrip("\r\n")
    return MysqlAddress(
        host=parts.hostname,
        port=port,
        user=unquote(parts.username),
        password=password,
        context=_context(settings, parts.hostname, folder),
    )


def _invalid_url() -> SettingsError:
    return SettingsError(
        "source.url is no URL of a MariaDB or MySQL server",
        expected=URL_FORM,
        remedy="correct it in pipeline.yml or CDC_SOURCE__URL",
    )


def _context(settings: MysqlSource, host: str, folder: Path) -> ssl.SSLContext | None:
    """Returns how connections are encrypted, None for plain text, which is the default on this machine alone."""
    tls = settings.tls or ("off" if is_this_machine(host) else "require")
    if tls == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=None if settings.tls_ca is None else str(folder / settings.tls_ca))
    except OSError as error:
        raise SettingsError(
            f"source.tls_ca cannot be read: {error.strerror}", expected="a file with certificates", remedy="correct it"
        ) from error
    if tls == "require":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _file_text(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"the file that {setting} names cannot be read: {path}",
            expected="a file with the password, which the pipeline's user may read",
            remedy="create it, or correct its rights",
        ) from error


def connect(address: MysqlAddress, **more: Any) -> "Connection[Any]":
    """Opens a connection with the text formats that the pipeline parses. Raises SourceAway if no server lets it in.

    Opening the driver's socket and its first statement change nothing on the server.
    """
    with logging_in():
        connection = pymysql.connect(**{**address.parameters(), **more}, init_command=FORMATS)
        opened: Any = connection
        notice_dead_network(opened._sock)  # noqa: SLF001 - the driver has no such options
        return connection


def notice_dead_network(connected: socket.socket) -> None:
    """Lets every wait on the socket end with OSError soon after the other machine, or the way to it, is gone."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _DEAD_NETWORK.items():
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


def connect_for_texts(address: MysqlAddress) -> "Connection[Any]":
    """Opens a connection whose results are the server's texts, as bytes."""
    return connect(address, use_unicode=False, conv=_WITHOUT_CONVERSION)


@contextmanager
def session(address: MysqlAddress) -> Iterator["Connection[Any]"]:
    """Opens a connection and closes it after the block. Translates errors of the driver inside, as `answering` does."""
    with answering(), closing(connect(address)) as connection:
        yield connection


def rows(connection: "Connection[Any]", statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement that only reads."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return list(cursor.fetchall())


def text_of(connection: "Connection[Any]", query: str) -> str:
    """Returns the one text that a query selects, which `connect_for_texts` leaves as bytes."""
    found = rows(connection, query)[0][0]
    return found.decode() if isinstance(found, bytes) else str(found)


@contextmanager
def answering(passing: Collection[int] = ()) -> Iterator[None]:
    """Raises errors of the driver inside the block as SourceAway, SourceGap or SourceError, in one line.

    `passing`: codes of errors that are SourceAway in this block, too.
    """
    try:
        yield
    except MySQLError as error:
        raise _translated(error, passing) from error
    except (OSError, EOFError) as error:
        raise SourceAway(f"the source does not answer: {error}", remedy="start it, or correct source.url") from error


@contextmanager
def logging_in() -> Iterator[None]:
    """Does what `answering` does where a connection is opened: if no server lets it in, that is SourceAway, too."""
    try:
        with answering(_NOT_LET_IN):
            yield
    except RuntimeError as error:  # the driver's, if a login needs a package that is not installed
        raise SourceError(
            f"the source wants a login that the driver does not have: {error}", remedy=_OTHER_LOGIN
        ) from error


def _translated(error: MySQLError, passing: Collection[int]) -> SourceError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    words = " ".join(str(error.args[1] if len(error.args) > 1 else error).split())
    if code == _NOT_SENT and _GONE.search(words):
        return SourceGap(
            f"the source no longer has the log from the registered position on: {words}",
            expected="a log that is kept until it is read: binlog_expire_logs_seconds (MariaDB 10.5: expire_logs_days)"
            " longer than any pause",
            remedy="run cdc setup-source --begin-again, then cdc snapshot",
        )
    if code == _NOT_SENT:
        return SourceError(
            f"the source does not send its log: {words}",
            expected="a log that the server can read, and a reader with an id that no other replica has",
            remedy="correct what it names (source.server_id is the reader's id), then start the consumer again",
        )
    if code == _UNKNOWN_COMMAND and _OF_CLUSTER in words:
        remedy = "let the node join its cluster again, or name another one in source.url"
        return SourceAway(f"the source does not answer: {words}", remedy=remedy)
    remedy = _REMEDIES.get(code, "start it, or correct source.url")
    if code in _BROKEN or code in passing or isinstance(error, InterfaceError):
        return SourceAway(f"the source does not answer: {words}", remedy=remedy)
    expected = "a user that may do this" if code in _REFUSED_RIGHTS else ""
    return SourceError(
        f"the source refuses: {words}", expected=expected, remedy=_REMEDIES.get(code, "correct what it names")
    )


def refuses_reader(error: SourceError) -> bool:
    """Returns whether the server refused a reader of its log as such, whatever place it asked for."""
    cause = error.__cause__
    return isinstance(cause, MySQLError | RuntimeError) and cause.args[:1] != (_NOT_SENT,)


def quoted(*names: str) -> str:
    """Returns a name as the server's SQL writes it: `schema`.`table`."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
