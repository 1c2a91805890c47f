"""Prepares Airflow's tables and its key: an empty database gets a copy of what Airflow's migration made at set-up.

    python -m cdc_pipeline.launcher.airflow_tables              in AIRFLOW_HOME and the database of Airflow's settings
    python -m cdc_pipeline.launcher.airflow_tables --template   makes the copy, if it is missing

The migration takes Airflow about nine seconds of processor time, the copy less than one. Without a copy of these
versions, or for a database of another version, Airflow migrates.
"""

import base64
import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg2
from psycopg2 import extensions

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.account import server_account
from cdc_pipeline.launcher.postgres import (
    SUPERUSER,
    PostgresServer,
    create_database,
    find_binaries,
    reachable_binaries,
    running_server,
)
from cdc_pipeline.launcher.project import CACHE
from cdc_pipeline.settings.installation.endpoints import AIRFLOW_DATABASE
from cdc_pipeline.settings.installation.ports import LOOPBACK, free_port
from cdc_pipeline.settings.installation.state import write_private_text

DATABASE_VARIABLE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_MIGRATE = (sys.executable, "-m", "airflow", "db", "migrate")
_DUMP = (
    *("--no-owner", "--no-privileges", "--no-comments", "--inserts"),
    *(f"--host={LOOPBACK}", f"--username={SUPERUSER}", f"--dbname={AIRFLOW_DATABASE}"),
)
_REVISION = re.compile(r"^INSERT INTO public\.alembic_version VALUES \('(\w+)'\);$", re.MULTILINE)
_HAS_TABLES = "SELECT to_regclass('public.alembic_version') IS NOT NULL"
_IS_EMPTY = "SELECT NOT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'public')"
_RELEASE = "SELECT version_num FROM public.alembic_version"
_IN_PSQL = "\\"
"""A line that begins with it is a command for psql."""


def template_path() -> Path:
    """Returns the path of the copy for the installed packages, whether it exists or not."""
    found = ((each.name.lower(), each.version) for each in distributions())
    versions = sorted(f"{name}=={version}" for name, version in found if name.startswith("apache-airflow"))
    return CACHE / f"airflow-tables-{hashlib.sha256(' '.join(versions).encode()).hexdigest()[:16]}.sql"


def prepare(url: str, template: Path) -> bool:
    """Returns whether the database has the tables of the template now. Otherwise it is as it was, for Airflow.

    `url`: of Airflow's settings, as SQLAlchemy writes it.
    """
    if not template.exists():
        return False
    statements = template.read_text(encoding="utf-8")
    revision = _REVISION.search(statements)
    with closing(psycopg2.connect(libpq_url(url))) as connection, connection.cursor() as cursor:
        if _answer(cursor, _HAS_TABLES):
            return revision is not None and _answer(cursor, _RELEASE) == revision[1]
        if not _answer(cursor, _IS_EMPTY):
            return False
        try:
            cursor.execute(statements)
        except psycopg2.Error as error:
            sys.stderr.write(f"{template} does not fit this server, so Airflow migrates: {error}\n")
            return False
        connection.commit()
        return True


def keep_key(home: Path) -> None:
    """Writes `airflow.cfg` with a key for what Airflow encrypts, unless the file exists.

    Airflow's processes would each make one when they start: one that reads the file before another has written it
    stays without a key, and the API then fails on every run that waits for a trigger.
    """
    config = home / "airflow.cfg"
    if not config.exists():
        home.mkdir(parents=True, exist_ok=True)
        key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
        write_private_text(config, f"[core]\nfernet_key = {key}\n")


def libpq_url(url: str) -> str:
    """Returns SQLAlchemy's URL for libpq, which refuses an unencoded `=` in the value of a parameter."""
    parts = urlsplit(url)
    query = urlencode(parse_qsl(parts.query), quote_via=quote)
    return urlunsplit(parts._replace(scheme=parts.scheme.partition("+")[0], query=query))


def make_template(template: Path, environment: Mapping[str, str]) -> None:
    """Migrates an empty database of a server of its own and writes what is in it.

    An existing template only becomes younger than the packages, so that set-up does not ask again.
    """
    if template.exists():
        template.touch()
        return
    folder = Path(tempfile.mkdtemp(prefix="cdc-airflow-"))
    folder.chmod(0o711)
    try:
        account = server_account()
        (folder / "server").mkdir()
        server = PostgresServer(
            folder=folder / "server",
            binaries=reachable_binaries(find_binaries(environment), account, folder),
            port=free_port(),
            password=secrets.token_urlsafe(16),
            account=account,
            durable=False,
        )
        with running_server(server):
            create_database(server.url("postgres"), AIRFLOW_DATABASE)
            url = server.url(AIRFLOW_DATABASE)
            own = {"AIRFLOW_HOME": str(folder), DATABASE_VARIABLE: url.replace("postgresql:", "postgresql+psycopg2:")}
            own["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
            plainly = {**environment, "PGSSLMODE": "disable", "PGCHANNELBINDING": "disable"}
            _run([*_MIGRATE], {**plainly, **own})
            words = [*_DUMP, f"--port={server.port}"]
            dump = _run([str(server.program("pg_dump")), *words], {**plainly, "PGPASSWORD": server.password})
        lines = (line for line in dump.splitlines() if not line.startswith(_IN_PSQL))
        unfinished = template.with_suffix(f".{os.getpid()}.unfinished")
        unfinished.write_text("\n".join(lines), encoding="utf-8")
        unfinished.replace(template)
    finally:
        shutil.rmtree(folder)


def _answer(cursor: extensions.cursor, query: str) -> object:
    cursor.execute(query)
    row = cursor.fetchone()
    return None if row is None else row[0]


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if outcome.returncode:
        tail = "\n".join(outcome.stderr.splitlines()[-15:])
        raise SetupError(f"{Path(command[0]).name} ended with {outcome.returncode}:\n{tail}", remedy="run `make setup`")
    return outcome.stdout


def main() -> None:
    if sys.argv[1:] == ["--template"]:
        make_template(template_path(), os.environ)
        return
    keep_key(Path(os.environ["AIRFLOW_HOME"]))
    if not prepare(os.environ[DATABASE_VARIABLE], template_path()):
        sys.exit(subprocess.run(_MIGRATE, check=False).returncode)


if __name__ == "__main__":
    main()
