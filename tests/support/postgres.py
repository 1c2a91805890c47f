"""A real PostgreSQL server for tests, and a fresh database for each test."""

import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg2
from psycopg2 import sql

from cdc_pipeline.launcher.account import Account, server_account
from cdc_pipeline.launcher.postgres import (
    PostgresServer,
    create_database,
    find_binaries,
    initialize,
    reachable_binaries,
    running_server,
)
from cdc_pipeline.metadata_store.upgrade import upgrade
from cdc_pipeline.settings.installation.ports import free_port

SLOTS = "SELECT slot_name, active_pid, temporary FROM pg_replication_slots WHERE database = %s"
TIMEOUT_MILLISECONDS = 10_000
EMPTY_STORE = "empty_store"
FIRST_WITH_ITERATIONS = 160_000
FIRST_WITH_STRATEGY = 150_000
"""Before it every copy was one of files, which takes a third of the time of one through the log."""


@contextmanager
def started_server(
    environment: dict[str, str], kind: type[PostgresServer] = PostgresServer
) -> Iterator[PostgresServer]:
    with stopped_server(environment, kind) as server:
        initialize(server)
        with (server.folder / "data" / "postgresql.conf").open("a") as options:
            options.write("max_prepared_transactions = 8\n")
        with running_server(server):
            _make_connecting_cheap(server)
            yield server


@contextmanager
def stopped_server(
    environment: dict[str, str], kind: type[PostgresServer] = PostgresServer
) -> Iterator[PostgresServer]:
    """For `running_server`, also again and again."""
    folder = Path(tempfile.mkdtemp(prefix="cdc-test-postgres-"))
    folder.chmod(0o711)
    try:
        account = server_account()
        (folder / "server").mkdir()
        yield kind(
            folder=folder / "server",
            binaries=reachable_binaries(find_binaries(environment), account, folder),
            port=free_port(),
            password=secrets.token_urlsafe(16),
            account=account,
            durable=False,
        )
    finally:
        shutil.rmtree(folder)


def _make_connecting_cheap(server: PostgresServer) -> None:
    """4,096 rounds of hashing, on both sides, are half of what a connection costs; PostgreSQL 16 and later."""
    with closing(psycopg2.connect(server.url("postgres"))) as connection, connection.cursor() as cursor:
        if connection.server_version < FIRST_WITH_ITERATIONS:
            return
        cursor.execute("SET scram_iterations = 1")
        cursor.execute("ALTER ROLE CURRENT_USER PASSWORD %s", (server.password,))
        connection.commit()


@contextmanager
def standby_of(server: PostgresServer) -> Iterator[PostgresServer]:
    """A base backup of a running server, as a standby that is not started yet and follows nobody."""
    with _second(server) as second:
        data = second.folder / "data"
        _run_as(
            server.account,
            [str(server.program("pg_basebackup")), "--checkpoint=fast", "-d", server.url("postgres"), "-D", str(data)],
        )
        _run_as(server.account, ["touch", str(data / "standby.signal")])
        yield second


@contextmanager
def copy_of(server: PostgresServer) -> Iterator[PostgresServer]:
    """The files of a server at which nobody writes now, slots and all, as of a snapshot of its disk; not started."""
    with _second(server) as second:
        subprocess.run(["cp", "-a", str(server.folder / "data"), str(second.folder)], check=True)
        (second.folder / "data" / "postmaster.pid").unlink()
        yield second


@contextmanager
def _second(server: PostgresServer) -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="cdc-test-postgres-"))
    folder.chmod(0o711)
    try:
        (folder / "server").mkdir(0o700)
        if server.account is not None:
            server.account.take(folder / "server")
        yield replace(server, folder=folder / "server", port=free_port())
    finally:
        shutil.rmtree(folder)


def _run_as(account: Account | None, command: list[str]) -> None:
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        cwd="/",
        user=None if account is None else account.user_id,
        group=None if account is None else account.group_id,
        extra_groups=None if account is None else [],
    )


@contextmanager
def fresh_database(server: PostgresServer, template: str = "template1") -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    with closing(psycopg2.connect(server.url("postgres"))) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        as_files = " STRATEGY file_copy" if connection.server_version >= FIRST_WITH_STRATEGY else ""
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}" + as_files)
        cursor.execute(copy.format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield server.url(name)
    finally:
        drop_database(server, name)


@contextmanager
def encoded_database(server: PostgresServer, encoding: str) -> Iterator[str]:
    """The URL of an empty database with this encoding."""
    name = f"test_{secrets.token_hex(6)}"
    with closing(psycopg2.connect(server.url("postgres"))) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C'")
        cursor.execute(create.format(sql.Identifier(name), sql.Literal(encoding)))
    try:
        yield server.url(name)
    finally:
        drop_database(server, name)


@contextmanager
def fresh_store(server: PostgresServer) -> Iterator[str]:
    """A metadata store that is at the newest revision and empty: a copy of one that was made once on the server."""
    with closing(psycopg2.connect(server.url("postgres"))) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (EMPTY_STORE,))
        is_there = cursor.fetchone() is not None
    if not is_there:
        create_database(server.url("postgres"), EMPTY_STORE)
        upgrade(server.url(EMPTY_STORE))
    with fresh_database(server, template=EMPTY_STORE) as url:
        yield url


def drop_database(server: PostgresServer, name: str) -> None:
    """Also ends whoever is still connected, and the replication slots of that database."""
    with closing(psycopg2.connect(server.url("postgres"))) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(SLOTS, (name,))
        for slot, process, ends_with_process in cursor.fetchall():
            if process is not None:
                cursor.execute("SELECT pg_terminate_backend(%s, %s)", (process, TIMEOUT_MILLISECONDS))
            if not ends_with_process:
                cursor.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        cursor.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
