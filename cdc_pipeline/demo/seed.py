"""The demo's source: the shop's tables with their first rows, and those of pgbench."""

import os
import subprocess
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import psycopg2

from cdc_pipeline.errors import SetupError
from cdc_pipeline.stack.postgres import find_binaries

_PGBENCH_IS_THERE = "SELECT to_regclass('public.pgbench_tellers') IS NOT NULL"


def seed(source_url: str) -> None:
    """What is already there is left as it is."""
    with closing(psycopg2.connect(source_url)) as connection, connection.cursor() as cursor:
        cursor.execute((files("cdc_pipeline.demo") / "shop.sql").read_text(encoding="utf-8"))
        connection.commit()
        cursor.execute(_PGBENCH_IS_THERE)
        (there,) = cursor.fetchone() or (False,)
    if not there:
        _initialize_pgbench(source_url)


def pgbench() -> Path:
    """The program that lies beside the embedded server."""
    return find_binaries(dict(os.environ)) / "pgbench"


def _initialize_pgbench(source_url: str) -> None:
    ended = subprocess.run(
        [pgbench(), "--initialize", "--scale=1", "--quiet", source_url], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SetupError(f"pgbench could not make its tables: {ended.stderr[-500:]}", remedy="run the demo again")
