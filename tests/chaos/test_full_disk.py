"""A consumer whose disk is full says so, registers nothing that it could not write, and goes on when there is room."""

import hashlib
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.chaos.report import Report
from tests.support.command_line import CommandLine, query
from tests.support.postgres import fresh_store
from tests.support.streams import run_sql

pytestmark = pytest.mark.chaos

ROWS = 1000
SCRIPT = """
mount -t tmpfs -o size=2m none "$1"
head -c 4m /dev/zero > "$1/filler"
"$3" -m cdc_pipeline consume --until-idle
echo "full $?"
rm "$1/filler"
"$3" -m cdc_pipeline consume --until-idle
echo "room $?"
cp -r "$1/." "$2"
"""
FILES = "SELECT path, sha256, rows FROM cdc.slice WHERE path IS NOT NULL"


def test_nothing_is_registered_without_its_file_and_nothing_is_lost(
    postgres: PostgresServer, database: str, tmp_path: Path, report: Report
) -> None:
    lake, kept = tmp_path / "lake", tmp_path / "kept"
    lake.mkdir()
    kept.mkdir()
    run_sql(database, "CREATE TABLE orders (id integer PRIMARY KEY, note text)")
    with fresh_store(postgres) as store_url, report.red_unless_done("servers: disk of the consumer", "full"):
        cdc = CommandLine(folder=tmp_path, source_url=database, store_url=store_url)
        cdc.write_settings()
        assert cdc.run("setup-source").exit_code == 0
        run_sql(database, f"INSERT INTO orders SELECT n, repeat(md5(n::text), 9) FROM generate_series(1, {ROWS}) n")
        began = time.monotonic()
        ended = subprocess.run(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", SCRIPT, "sh", lake, kept, sys.executable],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        took = timedelta(seconds=time.monotonic() - began)
        assert ended.stdout.split("\n")[:2] == ["full 1", "room 0"], ended.stdout + ended.stderr
        assert "No space left on device" in ended.stderr
        assert "Traceback" not in ended.stderr
        files = query(store_url, FILES)
        assert sum(rows for _, _, rows in files) == ROWS
        found = {path.relative_to(kept): path.read_bytes() for path in kept.rglob("*") if path.is_file()}
        assert not [path for path in found if path.name.startswith(".")]
        assert all(hashlib.sha256(found[Path(path)]).hexdigest() == sha256 for path, sha256, _ in files)
    report.record("servers: disk of the consumer", "full", "an error in one line, then equal", took)
