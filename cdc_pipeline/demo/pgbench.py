"""pgbench as a second writer beside the shop: creates its tables and runs its clients."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from psycopg2.extensions import make_dsn, parse_dsn

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.launch import start
from cdc_pipeline.launcher.postgres import find_binaries
from cdc_pipeline.sources.postgres.session import connect

_LONGER_THAN_ANY_DEMO_SECONDS = 86_400
_IS_COMPLETE = "SELECT to_regclass('public.pgbench_accounts_pkey') IS NOT NULL"
"""pgbench creates this index last."""
_LOG_WHOLE_ROWS = "ALTER TABLE pgbench_history REPLICA IDENTITY FULL"
_FINISHED = "SELECT count(*) FROM pgbench_history"


def initialize_pgbench(source_url: str, *, scale: int, environment: Mapping[str, str]) -> None:
    """Creates and fills pgbench's tables unless they exist. REPLICA IDENTITY FULL is for its keyless history table."""
    if not _answer(source_url, _IS_COMPLETE):
        command, variables = _command(source_url, ["--initialize", "--quiet", f"--scale={scale}"], environment)
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SetupError(
                f"pgbench could not create its tables: {ended.stderr.strip()}", remedy="correct what it names"
            )
    with closing(connect(source_url)) as connection, connection.cursor() as cursor:
        cursor.execute(_LOG_WHOLE_ROWS)
        connection.commit()


@contextmanager
def running_pgbench(
    source_url: str, *, clients: int, transactions_per_second: float, environment: Mapping[str, str]
) -> Iterator[None]:
    """The clients of pgbench write until the block ends. Raises SetupError after the block if they ended earlier."""
    options = ["--no-vacuum", f"--client={clients}", f"--rate={transactions_per_second}"]
    options.append(f"--time={_LONGER_THAN_ANY_DEMO_SECONDS}")
    command, variables = _command(source_url, options, environment)
    with TemporaryFile() as output:
        process = start(command, environment=variables, folder=Path.cwd(), output=output, tied=True)
        try:
            yield
            if process.poll() is not None:
                output.seek(0)
                said = output.read().decode(errors="replace").strip()
                raise SetupError(f"pgbench ended by itself: {said}", remedy="correct what it names, and start again")
        finally:
            process.terminate()
            process.wait()


def finished_transactions(source_url: str) -> int:
    """The number of transactions that pgbench has committed in this database."""
    return _answer(source_url, _FINISHED)


def _command(source_url: str, options: list[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Returns the command and its environment. The password is in the environment: a process list shows commands."""
    parts = parse_dsn(source_url)
    password = {"PGPASSWORD": parts.pop("password")} if "password" in parts else {}
    program = find_binaries(environment) / "pgbench"
    if not program.exists():
        raise SetupError(f"there is no {program}", expected="pgbench beside initdb", remedy="unset CDC_POSTGRES_BIN")
    return [str(program), *options, make_dsn(**parts)], {**environment, **password}


def _answer(source_url: str, query: str) -> int:
    with closing(connect(source_url)) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        (answer,) = cursor.fetchone() or (0,)
        return int(answer)
