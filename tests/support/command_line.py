"""`cdc` as people run it: a process of its own, over servers that are there already."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import psycopg2
import yaml
from psycopg2 import sql

from tests.support.command_server import CallOrder, CommandServer
from tests.support.streams import database_of

NOBODY_LISTENS = "sc://127.0.0.1:1"
TIMEOUT_SECONDS = 120
_STORE_TABLES = """
SELECT table_name FROM information_schema.tables WHERE table_schema = 'cdc' AND table_type = 'BASE TABLE' ORDER BY 1
"""
_PUBLISHED = "SELECT pubname, schemaname, tablename FROM pg_publication_tables ORDER BY 1, 2, 3"
_SLOTS = """
SELECT slot_name, plugin, restart_lsn::text, confirmed_flush_lsn::text FROM pg_replication_slots
WHERE database = current_database() ORDER BY 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a call of `cdc` ended."""

    exit_code: int
    output: str
    errors: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.output)
        return found

    @property
    def error(self) -> str:
        """The one line that says what went wrong."""
        assert "Traceback" not in self.errors, self.errors
        (line,) = [line for line in self.errors.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """`folder` holds pipeline.yml; source and metadata store are external, so `cdc` starts no server.

    `server`: what forks for the calls that are waited for; without it an interpreter is started for each.
    """

    folder: Path
    source_url: str
    store_url: str
    tables: tuple[str, ...] = ("public.orders",)
    server: CommandServer | None = None

    @property
    def name(self) -> str:
        """Of the source database, and of publication and slot."""
        return database_of(self.source_url)

    def with_source(self, url: str) -> "CommandLine":
        return replace(self, source_url=url)

    def write_settings(self, **changes: Any) -> Path:
        path = self.folder / "pipeline.yml"
        document = {
            "name": "shop",
            "lake": "lake",
            "metadata_store": self.store_url,
            "spark": NOBODY_LISTENS,
            "source": {"kind": "postgres", "url": self.source_url, "publication": self.name, "slot": self.name},
            "tables": [{"name": f"{self.name}.{table}"} for table in self.tables],
            **changes,
        }
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    def start(self, *words: str, log: int | IO[bytes] = subprocess.PIPE) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "cdc_pipeline", *words],
            cwd=self.folder,
            env=self._environment(),
            stdout=log,
            stderr=log,
            text=True,
        )

    def run(self, *words: str) -> Ended:
        """Fails where the call shows a password, whatever else a test wants to know of it."""
        if self.server is None:
            ended = end_of(self.start(*words))
        else:
            ended = end_by(self.server, words, folder=self.folder, environment=self._environment())
        self.check_shows_no_password(ended.output + ended.errors)
        return ended

    def check_shows_no_password(self, text: str) -> None:
        """Those of the test's servers are random, so none of them is a word of something else."""
        for url in (self.source_url, self.store_url):
            password = urlsplit(url).password
            assert not password or password not in text, "a password is shown"

    def _environment(self) -> dict[str, str]:
        """Without what pipeline.yml would be overridden by."""
        found = {name: value for name, value in os.environ.items() if not name.startswith("CDC_")}
        return found | {"CDC_HOME": str(self.folder / "home"), "PYTHONPATH": str(Path.cwd())}

    def state(self) -> dict[str, Any]:
        """Every row of the metadata store, and publication and slot of the source."""
        return {
            **rows_of_store(self.store_url),
            "published": query(self.source_url, _PUBLISHED),
            "slots": query(self.source_url, _SLOTS),
        }


def end_of(process: "subprocess.Popen[str]") -> Ended:
    try:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        process.kill()
    return Ended(exit_code=process.returncode, output=output, errors=errors)


def end_by(server: CommandServer, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> Ended:
    """As `cdc` with these words in that folder; what it writes lies there while it runs."""
    output, errors = folder / ".output", folder / ".errors"
    order = CallOrder(words=words, folder=str(folder), environment=environment, output=str(output), errors=str(errors))
    exit_code = server.call(order)
    ended = Ended(exit_code=exit_code, output=output.read_text(), errors=errors.read_text())
    output.unlink()
    errors.unlink()
    return ended


@contextmanager
def consuming(cdc: CommandLine, name: str) -> Iterator["subprocess.Popen[str]"]:
    """`cdc consume` until the block ends; it is killed then, if it was not before. Its log is `<name>.log`."""
    with (cdc.folder / f"{name}.log").open("wb") as log:
        process = cdc.start("consume", log=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def rows_of_store(url: str) -> dict[str, Sequence[Any]]:
    """Rows of every table that has some, except the store's own revision; alarms, and what was seen of the source's
    log, are words and no state.
    """
    names = [name for (name,) in query(url, _STORE_TABLES) if name not in {"alembic_version", "source_log"}]
    every = sql.SQL("SELECT to_jsonb(t) - 'alarm' FROM {} AS t")
    found = {name: query(url, every.format(sql.Identifier("cdc", name))) for name in names}
    return {name: rows for name, rows in found.items() if rows}


def query(url: str, statement: str | sql.Composed) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()
