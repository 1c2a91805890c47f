"""Opens connections to the source with the text formats that `cdc_pipeline.types` reads, and translates its errors."""

import codecs
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import psycopg2
import psycopg2.extensions
import psycopg2.extras
import structlog

from cdc_pipeline.errors import SettingsError, SourceAway, SourceBusy, SourceError
from cdc_pipeline.settings.libpq import (
    INSUFFICIENT_PRIVILEGE,
    KEEPALIVES_OF_THE_SERVER,
    URL_FORM,
    is_plain,
    missing_defaults,
    one_line,
    remedy_for,
)
from cdc_pipeline.sources.pgoutput.messages import decode_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

log = structlog.get_logger()

MESSAGE_PREFIX = "cdc_pipeline"
"""Prefix of the pipeline's own logical messages in the source's log."""
_OPTIONS = (
    "-c client_encoding=UTF8 -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex "
    "-c extra_float_digits=1 -c timezone=UTC "
    # A query from which row-level security would hide rows is an error.
    "-c row_security=off "
    # A pipeline's sessions may be idle for a slice's length and read for as long as a table takes.
    "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0 " + KEEPALIVES_OF_THE_SERVER
)
_LATER_TIMEOUTS = {"idle_session_timeout": 140_000, "transaction_timeout": 170_000}
"""Timeouts, and the first version that has them: an option that a server does not know ends a connection."""
_BROKEN = (psycopg2.OperationalError, psycopg2.InterfaceError)
_IN_USE = frozenset({"55006", "55P03"})
"""SQLSTATE of an object that is in use, and of a lock that was not given in time."""
_LOCK_TIMEOUT = "SET lock_timeout = '10s'"
_SETTING = "source.url"
_RAW = "SQL_ASCII"
"""A database with this encoding checks and converts nothing. It refuses to send UTF-8 that is not valid."""
_WITHOUT_LOSS = frozenset({"UTF8", "LATIN1"})
_BYTES_SHOWN = "cdc_utf_8"


def _decode(text: "ReadableBuffer", _errors: str = "") -> tuple[str, int]:
    octets = bytes(text)
    return decode_name(octets), len(octets)


def _codec(name: str) -> codecs.CodecInfo | None:
    return codecs.CodecInfo(codecs.utf_8_encode, _decode, name=name) if name == _BYTES_SHOWN else None


# Names of other tables may have any bytes. Without a codec of its own, the driver reads such a database as ASCII.
codecs.register(_codec)
psycopg2.extensions.encodings["SQLASCII"] = _BYTES_SHOWN


def connect(url: str) -> psycopg2.extensions.connection:
    """Opens a connection. Raises SourceAway if no server answers, SettingsError if `url` is not a URL."""
    with answering():
        connection = psycopg2.connect(_completed(url))
        _prepare(connection)
        connection.commit()
        return connection


def connect_for_replication(url: str) -> psycopg2.extras.LogicalReplicationConnection:
    """Opens a connection in replication mode. Raises the errors of `connect`."""
    factory = psycopg2.extras.LogicalReplicationConnection
    with answering():
        connection = psycopg2.connect(_completed(url), connection_factory=factory)
        _prepare(connection)
        return connection


def warn_of_encoding(connection: psycopg2.extensions.connection) -> None:
    """Warns of a database whose encoding has texts that cannot be read as UTF-8."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding == _RAW:
        log.warning("values that are not UTF-8 will be quarantined", server_encoding=encoding)
    elif encoding not in _WITHOUT_LOSS:
        log.warning("a character that UTF-8 lacks would stop the stream", server_encoding=encoding)


def _prepare(connection: psycopg2.extensions.connection) -> None:
    """Ends the session's timeouts, and lets a database that converts nothing send its bytes as they are."""
    if connection.info.parameter_status("server_encoding") == _RAW:
        connection.set_client_encoding(_RAW)
    with connection.cursor() as cursor:
        for name, version in _LATER_TIMEOUTS.items():
            if connection.server_version >= version:
                cursor.execute(f"SET {name} = 0")


@contextmanager
def session(url: str) -> Iterator[psycopg2.extensions.connection]:
    """Opens a connection and closes it after the block. Translates errors of the driver inside, as `answering` does."""
    with answering(), closing(connect(url)) as connection:
        yield connection


def bound_waits(connection: psycopg2.extensions.connection) -> None:
    """Lets statements that wait for a lock for 10 seconds fail, so that a locked table stops nothing for longer.

    The catalogue is read without locks on tables, except that the server takes one to show an expression, which is
    asked for only when it is new.
    """
    with answering(), connection.cursor() as cursor:
        cursor.execute(_LOCK_TIMEOUT)


@contextmanager
def answering() -> Iterator[None]:
    """Raises errors of the driver inside the block as SourceAway, SourceBusy or SourceError, in one line.

    If a replication connection ends without a message, the driver raises a plain DatabaseError. That is SourceAway too.
    """
    try:
        yield
    except psycopg2.Error as error:
        words = one_line(error)
        away = isinstance(error, _BROKEN) or type(error) is psycopg2.DatabaseError
        remedy = remedy_for(words, error.pgcode, setting=_SETTING, answered=not away)
        if error.pgcode in _IN_USE:
            raise SourceBusy(f"the source is in use: {words}", remedy=remedy) from error
        if away:
            raise SourceAway(f"the source does not answer: {words}", remedy=remedy) from error
        expected = "a role that may do this" if error.pgcode == INSUFFICIENT_PRIVILEGE else ""
        raise SourceError(f"the source refuses: {words}", expected=expected, remedy=remedy) from error


def _completed(url: str) -> str:
    """Returns the URL with the defaults of `libpq`, and the pipeline's options after those of the URL.

    Raises SettingsError if it is not a URL of a PostgreSQL server.

    The error contains no part of the URL: a URL that cannot be parsed may have a password in any part.
    """
    try:
        given = psycopg2.extensions.parse_dsn(url)
    except psycopg2.ProgrammingError:
        given = None
    if given is None or not is_plain(given):
        raise SettingsError(
            f"{_SETTING} is no URL of a PostgreSQL server",
            expected=URL_FORM,
            remedy="correct it in pipeline.yml or CDC_SOURCE__URL",
        )
    options = " ".join(filter(None, (str(given.get("options", "")), _OPTIONS)))
    return psycopg2.extensions.make_dsn(url, **missing_defaults(given, os.environ), options=options)
