"""A real MySQL server for tests, unpacked from what set-up fetched."""

import fcntl
import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc_pipeline.launcher.jars import jars_of, read_lock
from cdc_pipeline.launcher.project import JARS_LOCK
from tests.support.mariadb import started_server
from tests.support.unpacked import unpacked_server

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
    "--innodb-log-file-size=4M",
    "--performance-schema=OFF",
)
_IDENTITY = "auto.cnf"
"""The file with the server's UUID, which each server has of its own."""


@contextmanager
def started_mysql(*options: str) -> Iterator[str]:
    """The URL of a started server, as source.url has it."""
    (jar,) = jars_of(read_lock(JARS_LOCK), ["mysql"])
    folder = unpacked_server(jar, "mysql-Linux-amd64.tar.gz")
    server = [f"{folder}/bin/mysqld", "--no-defaults", f"--basedir={folder}"]
    first = _first_data(folder.with_name(f"{folder.name}-data"), server)
    with started_server(lambda data: ["cp", "-r", f"{first}/.", str(data)], [*server, *OPTIONS, *options]) as url:
        yield url


def _first_data(folder: Path, server: list[str]) -> Path:
    """The data of a new server, which takes seconds to create: created once per machine, and copied for each server.

    The last act is a rename, so that a killed call is repaired.
    """
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            account = [f"--user={getpass.getuser()}"] if os.geteuid() == 0 else []
            create = ["--initialize-insecure", "--innodb-log-file-size=4M", "--skip-log-bin", f"--datadir={unfinished}"]
            subprocess.run([*server, *account, *create], check=True, capture_output=True)
            (unfinished / _IDENTITY).unlink()
            subprocess.run(["chmod", "-R", "a+rX", str(unfinished)], check=True)
            unfinished.rename(folder)
    return folder
