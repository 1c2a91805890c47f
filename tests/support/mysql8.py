"""A real MySQL server for tests, unpacked from what set-up fetched.

The environment variable CDC_MYSQLD names the `mysqld` of another release, to run the same tests over it.
"""

import getpass
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc_pipeline.launcher.jars import jars_of, read_lock
from cdc_pipeline.launcher.project import JARS_LOCK
from tests.support.mariadb import ServerProcess, first_data, started_server
from tests.support.unpacked import unpacked_server

LOG_FILE_SIZE = "--loose-innodb-log-file-size=4M"
"""Newer servers do not have this option."""
OPTIONS = (
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--mysqlx=OFF",
    "--local-infile=ON",
    "--pid-file=pid",
    "--log-bin=binlog",
    "--server-id=1",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--binlog-row-metadata=FULL",
    "--sync-binlog=0",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=32M",
    LOG_FILE_SIZE,
    "--performance-schema=OFF",
)
OTHER_SERVER = "CDC_MYSQLD"
_IDENTITY = "auto.cnf"
"""The file with the server's UUID, which each server has of its own."""


@contextmanager
def started_mysql(*options: str) -> Iterator[str]:
    """The URL of a started server, as source.url has it."""
    with mysql_process(*options) as server:
        yield server.url


@contextmanager
def mysql_process(*options: str) -> Iterator[ServerProcess]:
    """A started server, which can be stopped and started again."""
    server, data = _another_server() or _fetched_server()
    account = [f"--user={getpass.getuser()}"] if os.geteuid() == 0 else []
    create = [*server, *account, "--initialize-insecure", LOG_FILE_SIZE, "--skip-log-bin"]
    with started_server(first_data(data, create, without=_IDENTITY), [*server, *OPTIONS, *options]) as process:
        yield process


def _fetched_server() -> tuple[list[str], Path]:
    """The command of the server, and where the data of a new one lie."""
    (jar,) = jars_of(read_lock(JARS_LOCK), ["mysql"])
    folder = unpacked_server(jar, "mysql-Linux-amd64.tar.gz")
    return [f"{folder}/bin/mysqld", "--no-defaults", f"--basedir={folder}"], folder.with_name(f"{folder.name}-data")


def _another_server() -> tuple[list[str], Path] | None:
    """The same of the server that CDC_MYSQLD names, None without it."""
    program = os.environ.get(OTHER_SERVER)
    if not program:
        return None
    name = hashlib.sha256(program.encode()).hexdigest()[:16]
    return [program, "--no-defaults"], Path(tempfile.gettempdir()) / f"cdc-mysql-{name}"
