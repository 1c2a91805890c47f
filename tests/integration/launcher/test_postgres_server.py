"""The embedded PostgreSQL server."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import psycopg2
import pytest

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.account import server_account
from cdc_pipeline.launcher.health import is_healthy
from cdc_pipeline.launcher.planning import embedded_server
from cdc_pipeline.launcher.postgres import PostgresServer, find_binaries, initialize
from cdc_pipeline.settings.installation.state import open_installation
from tests.support.eventually import eventually
from tests.support.postgres import started_server

HOLD = """
import os, sys
from tests.support.postgres import started_server
with started_server(dict(os.environ)) as server:
    print(server.url("postgres"), flush=True)
    sys.stdin.read()
"""


def query(url: str, statement: str) -> str:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
        assert row is not None
        return str(row[0])


def test_it_is_ready_for_logical_replication_in_utc(database: str) -> None:
    assert query(database, "SHOW wal_level") == "logical"
    assert query(database, "SHOW timezone") == "UTC"
    assert query(database, "SHOW server_encoding") == "UTF8"


def test_it_never_runs_as_root_and_listens_on_loopback_only(postgres: PostgresServer) -> None:
    process = psutil.Process(int((postgres.folder / "data" / "postmaster.pid").read_text().split()[0]))
    assert process.uids().effective != 0
    assert query(postgres.url("postgres"), "SHOW listen_addresses") == "127.0.0.1"
    assert query(postgres.url("postgres"), "SHOW unix_socket_directories") == ""


def test_nobody_enters_without_the_password(postgres: PostgresServer) -> None:
    assert is_healthy(postgres.url("postgres"))
    assert not is_healthy(postgres.url("postgres").replace(postgres.password, "guessed"))
    assert (postgres.folder / "data").stat().st_mode & 0o077 == 0


def test_programs_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=rf"no postgres and no initdb in {tmp_path}.*CDC_POSTGRES_BIN"):
        find_binaries({"CDC_POSTGRES_BIN": str(tmp_path)})


def test_a_killed_initialisation_is_repaired_by_the_next(postgres: PostgresServer) -> None:
    with started_server(dict(os.environ)) as other:
        leftover = other.folder / "other"
        (leftover / "data.unfinished" / "base").mkdir(parents=True)
        server = PostgresServer(
            folder=leftover,
            binaries=postgres.binaries,
            port=postgres.port,
            password="secret",
            account=server_account(),
            durable=False,
        )
        initialize(server)
        assert (leftover / "data" / "PG_VERSION").exists()
        assert not (leftover / "data.unfinished").exists()
        assert not (leftover / "password").exists()


def test_a_data_folder_that_is_elsewhere_and_not_mounted_is_named_and_no_new_one_takes_its_place(
    tmp_path: Path,
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "not-mounted" / "postgres-x"
    installation = open_installation(home)
    (home / "postgres").symlink_to(elsewhere)
    with pytest.raises(SetupError, match=rf"{home}/postgres is a link to {elsewhere}, which is not there; .*mount"):
        embedded_server(installation)
    assert (home / "postgres").readlink() == elsewhere


def test_a_server_ends_with_the_process_that_started_it_even_when_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        url = holder.stdout.readline().strip()
        assert is_healthy(url)
        holder.send_signal(signal.SIGKILL)
    assert eventually(lambda: not is_healthy(url))
