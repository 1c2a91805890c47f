"""Connections to the source, with the output formats that `cdc_pipeline.types` reads; its errors become ours here."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from cdc_pipeline.errors import SettingsError, SourceAway, SourceBusy, SourceError
from cdc_pipeline.libpq import INSUFFICIENT_PRIVILEGE, URL_FORM, is_plain, missing_defaults, one_line, remedy_for

MESSAGE_PREFIX = "cdc_pipeline"
"""Under which our own messages travel through the source's log."""
_FORMATS = (
    "-c client_encoding=UTF8 -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex "
    "-c extra_float_digits=1 -c timezone=UTC"
)
_BROKEN = (psycopg2.OperationalError, psycopg2.InterfaceError)
_OBJECT_IN_USE = "55006"
_SETTING = "source.url"


def connect(url: str) -> psycopg2.extensions.connection:
    """Raises SourceAway when there is no server, SettingsError for what is no URL."""
    with answering():
        return psycopg2.connect(_completed(url), options=_FORMATS)


def connect_for_replication(url: str) -> psycopg2.extras.LogicalReplicationConnection:
    """The same, in replication mode."""
    factory = psycopg2.extras.LogicalReplicationConnection
    with answering():
        return psycopg2.connect(_completed(url), options=_FORMATS, connection_factory=factory)


@contextmanager
def session(url: str) -> Iterator[psycopg2.extensions.connection]:
    """A connection for the block, closed behind it. What the driver raises inside leaves it as an error of ours."""
    with answering(), closing(connect(url)) as connection:
        yield connection


@contextmanager
def answering() -> Iterator[None]:
    """Errors of the driver inside the block are raised as SourceAway, SourceBusy or SourceError, in one line.

    A replication connection that ends without a word is no OperationalError but a plain DatabaseError.
    """
    try:
        yield
    except psycopg2.Error as error:
        words = one_line(error)
        remedy = remedy_for(words, error.pgcode, setting=_SETTING)
        if error.pgcode == _OBJECT_IN_USE:
            raise SourceBusy(f"the source is in use: {words}", remedy=remedy) from error
        if isinstance(error, _BROKEN) or type(error) is psycopg2.DatabaseError:
            raise SourceAway(f"the source does not answer: {words}", remedy=remedy) from error
        expected = "a role that may do this" if error.pgcode == INSUFFICIENT_PRIVILEGE else ""
        raise SourceError(f"the source refuses: {words}", expected=expected, remedy=remedy) from error


def _completed(url: str) -> str:
    """Raises SettingsError, which repeats nothing of the URL: it may hold a password, wherever that was misread."""
    try:
        given = psycopg2.extensions.parse_dsn(url)
    except psycopg2.ProgrammingError:
        given = None
    if given is None or not is_plain(given):
        raise SettingsError(
            f"{_SETTING} is no URL of a PostgreSQL server",
            expected=URL_FORM,
            remedy="mend it in pipeline.yml or CDC_SOURCE__URL",
        )
    return psycopg2.extensions.make_dsn(url, **missing_defaults(given, os.environ))
