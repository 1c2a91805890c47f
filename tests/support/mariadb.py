"""A real MariaDB server for tests, and a fresh database for each test, on MariaDB or MySQL."""

import fcntl
import getpass
import hashlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.account import server_account
from cdc_pipeline.launcher.project import CACHE
from cdc_pipeline.settings.installation.ports import free_port
from tests.support.eventually import eventually

PASSWORD = "of this test run"
USER = "cdc"
LOG_FILE_SIZE = "--innodb-log-file-size=16M"
OPTIONS = (
    "--no-defaults",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--log-bin=binlog",
    "--server-id=1",
    "--binlog-format=ROW",
    "--binlog-row-metadata=FULL",
    "--gtid-strict-mode=ON",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=32M",
    LOG_FILE_SIZE,
    "--performance-schema=OFF",
)
_ROLE = f"""
CREATE USER IF NOT EXISTS {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO {USER}@'127.0.0.1' WITH GRANT OPTION;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogServerOfTests:
    """The URL of a started server, and a database on it."""

    url: str
    database: str


@dataclass(slots=True, kw_only=True)
class ServerProcess:
    """A server over a folder of data. `command`: starts it; `run_as`: its account, as Popen takes it."""

    url: str
    data: Path
    command: list[str]
    run_as: dict[str, Any]
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        log = self.data.with_name("log")
        with log.open("a") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output, cwd=self.data, **self.run_as)
        assert eventually(lambda: is_up(self.url)), log.read_text()[-2000:]

    def stop(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()


@contextmanager
def started_mariadb(*options: str) -> Iterator[str]:
    """The URL of a started server, as source.url has it."""
    with mariadb_process(*options) as server:
        yield server.url


@contextmanager
def mariadb_process(*options: str) -> Iterator[ServerProcess]:
    """A started server, which can be stopped and started again."""
    server, install = shutil.which("mariadbd", path="/usr/sbin:/usr/bin"), shutil.which("mariadb-install-db")
    if server is None or install is None:
        raise SetupError("there is no MariaDB on this machine", remedy="run make setup-dev as root")
    account = [f"--user={getpass.getuser()}"] if os.geteuid() == 0 else []
    create = [install, "--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal", LOG_FILE_SIZE]
    installed = hashlib.sha256(f"{server} {Path(server).stat().st_mtime_ns}".encode()).hexdigest()[:16]
    data = CACHE / f"mariadb-{installed}-data"
    with started_server(first_data(data, [*create, *account]), [server, *OPTIONS, *options]) as process:
        yield process


def first_data(folder: Path, create: list[str], *, without: str | None = None) -> Path:
    """The data of a new server, which takes seconds to create: created once per machine, and copied for each server.

    `create`: the command, without the folder. `without`: a file that each server has of its own.
    The last act is a rename, so that a killed call is repaired.
    """
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            subprocess.run([*create, f"--datadir={unfinished}"], check=True, capture_output=True)
            if without is not None:
                (unfinished / without).unlink()
            subprocess.run(["chmod", "-R", "a+rX", str(unfinished)], check=True)
            unfinished.rename(folder)
    return folder


@contextmanager
def started_server(first: Path, serve: list[str]) -> Iterator[ServerProcess]:
    """A server in a new folder.

    `first`: the data of a new server. `serve`: the command without folder, port and socket.
    """
    folder = Path(tempfile.mkdtemp(prefix="cdc-test-mysql-"))
    folder.chmod(0o711)
    try:
        data, account, port = folder / "data", server_account(), free_port()
        temporary = folder / "temporary"  # a server that starts clears its folder, which by default all share
        data.mkdir()
        temporary.mkdir()
        (folder / "role.sql").write_text(_ROLE)
        (folder / "role.sql").chmod(0o644)
        if account is not None:
            account.take(data)
            account.take(temporary)
        run_as: dict[str, Any] = {} if account is None else {"user": account.user_id, "group": account.group_id}
        subprocess.run(["cp", "-r", f"{first}/.", str(data)], check=True, extra_groups=[], **run_as)
        where = [f"--datadir={data}", f"--tmpdir={temporary}", f"--port={port}", f"--socket={data}/s"]
        where.append(f"--init-file={folder}/role.sql")
        url = f"mysql://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}"
        server = ServerProcess(url=url, data=data, command=[*serve, *where], run_as=run_as)
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGKILL)  # nobody needs the folder any more
    finally:
        shutil.rmtree(folder)


def is_up(url: str) -> bool:
    try:
        run_mysql(url, "SELECT 1")
    except pymysql.err.OperationalError:
        return False
    return True


def connected(url: str, database: str | None = None) -> Any:
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname or "",
        port=parts.port or 0,
        user=USER,
        password=PASSWORD,
        database=database,
        autocommit=False,
        local_infile=True,
        ssl_disabled=True,
    )


def run_mysql(url: str, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
    """Runs the statements in one transaction; returns the rows of the last one."""
    with closing(connected(url, database)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        found = list(cursor.fetchall())
        connection.commit()
        return found


def reset_log(url: str) -> None:
    """Begins the log again, under the name that MariaDB and MySQL up to 8.3 have, or under that of newer ones."""
    try:
        run_mysql(url, "RESET MASTER")
    except pymysql.err.ProgrammingError:
        run_mysql(url, "RESET BINARY LOGS AND GTIDS")


def is_mariadb(url: str) -> bool:
    return "MariaDB" in str(run_mysql(url, "SELECT VERSION()"))


def is_older(url: str, *, mysql: tuple[int, ...] = (), mariadb: tuple[int, ...] = ()) -> bool:
    """Returns whether the server is older than the version that is given for its kind."""
    ((version,),) = run_mysql(url, "SELECT VERSION()")
    return tuple(map(int, re.findall(r"\d+", version)[:3])) < (mariadb if "MariaDB" in version else mysql)


def numbers(first: int, last: int) -> str:
    """A WITH clause for at most a thousand numbers, which both kinds of servers have."""
    return (
        f"WITH RECURSIVE numbers AS (SELECT {first} AS number UNION ALL SELECT number + 1 FROM numbers"
        f" WHERE number < {last})"
    )


@contextmanager
def fresh_mysql_database(url: str) -> Iterator[str]:
    """The name of an empty database of this test."""
    name = f"shop_{secrets.token_hex(4)}"
    run_mysql(url, f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield name
    run_mysql(url, f"DROP DATABASE {name}")
