"""The connection to the metadata store: one engine per process, one named step per transaction, rows as records."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import psycopg2
from sqlalchemy import URL, Connection, Engine, Row, Select, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InvalidatePoolError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from cdc_pipeline.errors import RegistryError, SettingsError, SetupError, StoreAway
from cdc_pipeline.settings.libpq import KEEPALIVES_OF_THE_SERVER, URL_FORM, is_plain, missing_defaults, remedy_for
from cdc_pipeline.steps import OnStep, no_step, step

_SESSION = (
    "-c search_path=pg_catalog -c timezone=UTC -c synchronous_commit=on -c idle_in_transaction_session_timeout=8s "
    + KEEPALIVES_OF_THE_SERVER
)
"""A process that is stopped within a transaction holds its locks no longer than others wait for a heartbeat."""
_TIMEOUT_SECONDS = 10
_PINGED_AFTER_SECONDS = 1.0
_UNUSED_SINCE = "unused since"
_SETTING = "metadata_store"
_READ_ONLY, _IDLE_FOR_TOO_LONG, _TOO_LONG, _DEADLOCK = "25006", "25P03", "57014", "40P01"
_CLOSED = "server closed the connection"
_AWAY = frozenset({_READ_ONLY, _IDLE_FOR_TOO_LONG})
"""Of errors that the driver counts among its internal ones: a standby before its promotion, and an ended session."""
_OF_TLS = {"sslmode", "sslnegotiation", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl"}
_OF_TLS_VERSIONS = {"ssl_min_protocol_version", "ssl_max_protocol_version"}
_OF_SERVERS = {"host", "port", "user", "password", "dbname", "passfile", "service", "target_session_attrs"}
_OF_ASYNCPG = _OF_SERVERS | _OF_TLS | _OF_TLS_VERSIONS | {"krbsrvname", "gsslib"}
"""The connection parameters of a URL that asyncpg knows. It sends each other one to the server as a setting."""

BATCH_ROWS = 1_000

Item = TypeVar("Item")
Record = TypeVar("Record")


def create_store_engine(url: str, *, clock: Callable[[], float] = time.monotonic) -> Engine:
    """Returns an engine for `postgresql://…` that has not connected yet. The caller disposes of it.

    `clock`: in seconds, for how long a connection was unused. Raises SettingsError for text that is no URL of a
    PostgreSQL server.
    """
    parsed = _parsed(url)
    session = {"options": _SESSION, "application_name": "cdc"}
    engine = create_engine(
        parsed.set(drivername="postgresql+psycopg2"),
        isolation_level="READ COMMITTED",
        executemany_mode="values_plus_batch",  # many updates of one statement go in one message
        pool_timeout=_TIMEOUT_SECONDS,
        connect_args=session | missing_defaults(_given(parsed), os.environ),
    )
    _ping_unused_connections(engine, clock)
    _leave_read_only_servers(engine)
    _refuse_other_texts(engine)
    return engine


def asyncpg_arguments(url: str, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns the arguments for `asyncpg.connect`, for a connection by the rules of `create_store_engine`.

    asyncpg has no keepalives; its callers limit the time of each statement. Raises SettingsError like
    `create_store_engine`.
    """
    parsed = _parsed(url)
    given = {name: value if isinstance(value, str) else ",".join(value) for name, value in parsed.query.items()}
    defaults = missing_defaults(_given(parsed), environment)
    if not parsed.host and "host" not in given and "hostaddr" in given:
        given["host"] = given["hostaddr"]
    if "sslmode" in defaults:
        given["sslmode"] = str(defaults["sslmode"])
    known = {name: value for name, value in given.items() if name in _OF_ASYNCPG}
    seconds = given.get("connect_timeout", "")
    # asyncpg takes `system` for the name of a file; its own name for these certificates is True.
    system = {"ssl": True} if known.get("sslrootcert") == "system" else {}
    return {
        "dsn": parsed.set(drivername="postgresql", query=known).render_as_string(hide_password=False),
        "timeout": int(seconds) if seconds.isdecimal() and int(seconds) else _TIMEOUT_SECONDS,
        **system,
    }


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the messages of these errors may repeat a part of the password
        raise _no_url() from None
    address = {"port": parsed.port or "", "host": parsed.host or "", "dbname": parsed.database or ""}
    if parsed.get_backend_name() not in ("postgresql", "postgres") or not is_plain(address):
        raise _no_url()
    return parsed


def _given(parsed: URL) -> dict[str, object]:
    return {"host": parsed.host or "", **parsed.query}


def _ping_unused_connections(engine: Engine, clock: Callable[[], float]) -> None:
    """Replaces connections that the server has closed before somebody uses them.

    SQLAlchemy's own `pool_pre_ping` asks the server before each transaction, which is one of about four round trips.
    This asks only if nobody used the connection for a second. If the server closes it within that second, the
    transaction fails, as it does when the server closes it after a ping.
    """

    @event.listens_for(engine, "checkin")
    def note(_: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        entry.info[_UNUSED_SINCE] = clock()

    @event.listens_for(engine, "checkout")
    def ping(connection: DBAPIConnection, entry: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
        unused_since = entry.info.get(_UNUSED_SINCE)
        if unused_since is None or clock() - unused_since < _PINGED_AFTER_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except psycopg2.Error as error:
            raise InvalidatePoolError from error


def _leave_read_only_servers(engine: Engine) -> None:
    """Replaces the connections to a server that has become a standby: the next ones may reach the primary."""

    @event.listens_for(engine, "handle_error")
    def leave(context: ExceptionContext) -> None:
        if _sqlstate(context.original_exception) in _AWAY:
            context.is_disconnect = True


def _refuse_other_texts(engine: Engine) -> None:
    """Raises our error for a parameter with NUL or a lone surrogate. The driver's is a ValueError, not one of its own.

    Such texts are not escaped here: those that name something would then name something else.
    """

    @event.listens_for(engine, "handle_error")
    def refuse(context: ExceptionContext) -> None:
        error = context.original_exception
        if isinstance(error, UnicodeError) or (isinstance(error, ValueError) and "NUL" in str(error)):
            raise RegistryError(
                f"a text that the metadata store cannot hold: {error}",
                expected="UTF-8 without NUL",
                remedy="correct the text; nothing of its transaction was written",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """Opens transactions. With `joined`, an open transaction, every operation becomes a part of it."""

    engine: Engine
    on_step: OnStep = no_step
    joined: Connection | None = None

    @contextmanager
    def transaction(self, name: str) -> Iterator[Connection]:
        """Commits when the block ends, and rolls back when it raises. `name` is the step's name.

        Raises StoreAway when the server went away. It is unknown then whether the transaction was committed. Repeating
        the operation is safe: it succeeds, or its error says what is registered already.
        """
        if self.joined is not None:
            yield self.joined
            return
        with step(self.on_step, name), translated_errors(), self.engine.begin() as connection:
            yield connection


@dataclass(frozen=True, slots=True, kw_only=True)
class OfStore:
    """A part of the metadata store's operations. Each of its methods is one transaction of `database`."""

    database: Database


@dataclass(frozen=True, slots=True, kw_only=True)
class OfStream(OfStore):
    """The same, for what belongs to one stream only."""

    stream: str


def batches(rows: Iterable[Item], most: int = BATCH_ROWS) -> Iterator[list[Item]]:
    """Yields the rows in lists of at most `most`, for statements of a transaction.

    While more rows become one statement, the server may end the session as idle.
    """
    left = iter(rows)
    while batch := list(islice(left, most)):
        yield batch


def streamed(connection: Connection, query: Select[*tuple[Any, ...]]) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yields the rows in batches. The server ends a session that is idle in a transaction for long."""
    return iter(connection.execute(query.execution_options(yield_per=BATCH_ROWS)))


def as_record(kind: Callable[..., Record], row: Row[*tuple[Any, ...]]) -> Record:
    """The row as a record whose fields have the names of the row's columns."""
    return kind(**row._asdict())


def as_optional_record(kind: Callable[..., Record], row: Row[*tuple[Any, ...]] | None) -> Record | None:
    """Like `as_record`; None for no row."""
    return None if row is None else as_record(kind, row)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turns the driver's errors into ours. The message quotes the server, but neither statement nor parameters."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise _away(_words(error), _sqlstate(error.orig) if isinstance(error, DBAPIError) else None) from error
    except (IntegrityError, DataError) as error:
        raise RegistryError(
            f"the metadata store refused a row: {_words(error)}",
            remedy="nothing of its transaction was written; look at the row that the message names",
        ) from error
    except DBAPIError as error:
        words, sqlstate = _words(error), _sqlstate(error.orig)
        if sqlstate == _IDLE_FOR_TOO_LONG:
            raise _away(words, sqlstate) from error
        if sqlstate in _AWAY:
            raise StoreAway(
                f"the metadata store accepts no changes: {words}",
                expected="the primary server",
                remedy=f"wait until it is promoted, or correct {_SETTING}; the same call is safe to repeat then",
            ) from error
        raise SetupError(
            f"the metadata store refuses: {words}",
            expected="a database of its own, and a role that owns what is in it",
            remedy=f"correct {_SETTING} or the role's rights, and run the command again",
        ) from error


def _away(words: str, sqlstate: str | None) -> StoreAway:
    if sqlstate == _TOO_LONG:
        return StoreAway(
            f"the metadata store ended a statement: {words}",
            expected="statements that end within the time limit",
            remedy="ask for fewer rows, or repeat the same call when the server has less to do",
        )
    if sqlstate == _DEADLOCK:
        return StoreAway(
            f"the metadata store ended a transaction that waited for another one, which waited for it: {words}",
            expected="transactions that wait for each other in one order",
            remedy="nothing of this transaction was written, and the same call is safe to repeat",
        )
    remedy = remedy_for(words, None, setting=_SETTING)
    if sqlstate == _IDLE_FOR_TOO_LONG or _CLOSED in words:
        remedy = f"if it runs, it ended a session that paused in a transaction for eight seconds; else {remedy}"
    return StoreAway(
        f"the metadata store did not answer: {words}", remedy=f"{remedy}; the same call is safe to repeat then"
    )


def _sqlstate(error: BaseException | None) -> str | None:
    return error.pgcode if isinstance(error, psycopg2.Error) else None


def _no_url() -> SettingsError:
    return SettingsError(
        "metadata_store is no URL of a PostgreSQL server",
        expected=URL_FORM,
        remedy="correct it in pipeline.yml or CDC_METADATA_STORE",
    )


def _words(error: DBAPIError | PoolTimeout) -> str:
    """The server's message without its detail: the detail quotes values, which belong to the source's users."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    primary = origin.diag.message_primary if isinstance(origin, psycopg2.Error) else None
    return " ".join((primary or str(origin)).split())
