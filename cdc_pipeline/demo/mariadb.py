"""MariaDB as the demo's source: its server, the shop in it, and sessions that write to the shop."""

import getpass
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pymysql.err import OperationalError

from cdc_pipeline.demo.mariadb_transactions import MARIADB_KINDS, MARIADB_LONG
from cdc_pipeline.demo.seed import DEMO_SCALE, Scale
from cdc_pipeline.demo.servers import ensure_server
from cdc_pipeline.demo.workload import Shop
from cdc_pipeline.errors import SetupError, SourceAway
from cdc_pipeline.settings.installation.ports import LOOPBACK
from cdc_pipeline.settings.installation.state import Installation, write_private_text
from cdc_pipeline.sources.mysql.session import MysqlAddress, answering, connect

DATABASE = "shop"
TABLES = ("customers", "products", "orders", "order_items", "visits")
PROGRAMS = "/usr/sbin:/usr/bin"
_WRITER = "writer"
_DEADLOCK, _LOCK_WAIT, _RECORD_CHANGED = 1213, 1205, 1020
_ISOLATION = ("READ COMMITTED", "REPEATABLE READ")
_OPTIONS = (
    f"--bind-address={LOOPBACK}",
    "--skip-name-resolve",
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-metadata=FULL",
    "--gtid-strict-mode=ON",
    "--binlog-expire-logs-seconds=604800",
    "--innodb-log-file-size=64M",
    "--performance-schema=OFF",
)
_USERS = """\
CREATE DATABASE IF NOT EXISTS {database} CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS cdc_source_reader@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT REPLICATION SLAVE, BINLOG MONITOR{more} ON *.* TO cdc_source_reader@'127.0.0.1';
GRANT SELECT ON {database}.* TO cdc_source_reader@'127.0.0.1';
GRANT ALL ON cdc_pipeline.* TO cdc_source_reader@'127.0.0.1';
CREATE USER IF NOT EXISTS {writer}@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON {database}.* TO {writer}@'127.0.0.1';
"""
"""The pipeline's user has the rights of docs/how-to/mysql.md; the shop's sessions are another user."""


def start_mariadb(installation: Installation, folder: Path, port: int, *, more_rights: str = "") -> str:
    """Starts the server of `folder` unless it runs, and returns the URL for the shop's sessions when it answers.

    It creates the data folder, the users and their password, in `folder`/password, if they are missing. `more_rights`:
    of the pipeline's user, such as ", RELOAD". Raises SetupError if MariaDB is not installed or does not start.
    """
    server, install = (_program(name) for name in ("mariadbd", "mariadb-install-db"))
    folder.mkdir(mode=0o700, exist_ok=True)
    # A server that starts deletes temporary tables from its folder, in /tmp also those of other servers.
    (folder / "temporary").mkdir(mode=0o700, exist_ok=True)
    password = _password(folder / "password")
    _create_data(folder, install)
    write_private_text(
        folder / "users.sql",
        _USERS.format(database=DATABASE, password=password, writer=_WRITER, more=more_rights),
    )
    url = f"mysql://{_WRITER}:{quote(password)}@{LOOPBACK}:{port}/{DATABASE}"
    where = (f"--datadir={folder}/data", f"--tmpdir={folder}/temporary", f"--socket={folder}/data/s")
    more = (f"--port={port}", f"--pid-file={folder}/data/pid", f"--init-file={folder}/users.sql")
    command = (server, "--no-defaults", *_OPTIONS, *where, *more, *_as_this_user())
    ensure_server(installation, name="mariadb", command=command, folder=folder, answers=lambda: _answers(url))
    return url


def seed_mariadb(url: str, scale: Scale = DEMO_SCALE) -> None:
    """Creates the shop's tables and their first rows. Existing tables and rows stay as they are."""
    with answering(), closing(_connect(url)) as connection, connection.cursor() as cursor:
        for statement in _statements("shop_mariadb.sql"):
            cursor.execute(statement)
        cursor.execute("SELECT EXISTS (SELECT 1 FROM customers)")
        if cursor.fetchone() == (0,):
            for statement in _statements("shop_mariadb_rows.sql"):
                cursor.execute(statement, asdict(scale))
        connection.commit()


def _statements(name: str) -> list[str]:
    """The statements of a file. The server's protocol takes one at a time."""
    text = (files("cdc_pipeline.demo") / name).read_text(encoding="utf-8")
    return [statement for statement in text.split(";\n") if statement.strip()]


@contextmanager
def _session(url: str, number: int) -> Iterator[Any]:
    with answering(), closing(_connect(url)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {_ISOLATION[number % 2]}")
        yield connection


def _is_conflict(error: Exception) -> bool:
    return error.args[:1] in ((_DEADLOCK,), (_LOCK_WAIT,), (_RECORD_CHANGED,))


MARIADB_SHOP = Shop(
    session=_session,
    conflicts=OperationalError,
    is_conflict=_is_conflict,
    kinds=MARIADB_KINDS,
    long=MARIADB_LONG,
)


def _connect(url: str) -> Any:
    parts = urlsplit(url)
    address = MysqlAddress(
        host=parts.hostname or LOOPBACK,
        port=parts.port or 0,
        user=parts.username or "",
        password=unquote(parts.password or ""),
    )
    connection = connect(address, database=parts.path.removeprefix("/"))
    with connection.cursor() as cursor:
        cursor.execute("SET autocommit = 0")
    return connection


def _answers(url: str) -> bool:
    try:
        _connect(url).close()
    except SourceAway:
        return False
    return True


def _program(name: str) -> str:
    found = shutil.which(name, path=PROGRAMS)
    if found is None:
        raise SetupError(
            f"there is no {name} on this machine",
            expected="MariaDB 10.6 or newer",
            remedy="run `make demo SOURCE=mysql` as root, or `apt-get install mariadb-server-core mariadb-client-core`",
        )
    return found


def _as_this_user() -> tuple[str, ...]:
    """MariaDB runs as root only if an option says so."""
    return (f"--user={getpass.getuser()}",) if os.geteuid() == 0 else ()


def _create_data(folder: Path, install: str) -> None:
    """The last act is a rename, so the next call repairs a killed one."""
    if (folder / "data").exists():
        return
    unfinished = folder / "data.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    where = ("--no-defaults", f"--datadir={unfinished}", "--skip-test-db", "--auth-root-authentication-method=normal")
    outcome = subprocess.run(
        [install, *where, *_as_this_user()],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "temporary")},  # it starts a server too
    )
    if outcome.returncode:
        raise SetupError(
            f"mariadb-install-db failed: {outcome.stderr.strip() or outcome.stdout.strip()}",
            remedy=f"correct what it names, remove {folder} and try again",
        )
    unfinished.rename(folder / "data")


def _password(path: Path) -> str:
    if not path.exists():
        write_private_text(path, secrets.token_urlsafe(24))
    return path.read_text(encoding="utf-8")
