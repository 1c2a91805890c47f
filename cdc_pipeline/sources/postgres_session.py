"""Connections to the source, with the output formats that `cdc_pipeline.types` reads."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from cdc_pipeline.errors import SourceAway

MESSAGE_PREFIX = "cdc_pipeline"
"""Under which our own messages travel through the source's log."""
_FORMATS = (
    "-c client_encoding=UTF8 -c datestyle=ISO -c intervalstyle=postgres -c bytea_output=hex "
    "-c extra_float_digits=1 -c timezone=UTC"
)
_BROKEN = (psycopg2.OperationalError, psycopg2.InterfaceError)


def connect(url: str) -> psycopg2.extensions.connection:
    """Raises SourceAway when there is no server."""
    with answering():
        return psycopg2.connect(url, options=_FORMATS)


def connect_for_replication(url: str) -> psycopg2.extras.LogicalReplicationConnection:
    """The same, in replication mode."""
    with answering():
        return psycopg2.connect(url, options=_FORMATS, connection_factory=psycopg2.extras.LogicalReplicationConnection)


@contextmanager
def answering() -> Iterator[None]:
    """A broken connection inside the block is raised as SourceAway.

    A replication connection that ends without a word is no OperationalError but a plain DatabaseError.
    """
    try:
        yield
    except psycopg2.Error as error:
        if not isinstance(error, _BROKEN) and type(error) is not psycopg2.DatabaseError:
            raise
        raise SourceAway(
            f"the source does not answer: {str(error).strip()}", remedy="start it, or mend source.url"
        ) from error
