"""docs/how-to/debezium-files.md: its pipeline.yml, its events and its commands make a lake."""

import json
import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from cdc_pipeline.launcher.marked import STACK_VARIABLE
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.settings.installation.state import open_installation
from tests.support.delta_rows import delta_rows, seen
from tests.support.doc_pages import blocks, commands
from tests.support.spark import ONE_COMPILER

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

COMMAND_SECONDS = 300
PAGE = "docs/how-to/debezium-files.md"
ADA = {"id": 1, "customer": "Ada", "amount": Decimal("9.50"), "created": datetime(2026, 1, 1, 10, tzinfo=UTC)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "events" / "0").mkdir(parents=True)
    (tmp_path / "pipeline.yml").write_text(blocks(PAGE, "yaml")[0], encoding="utf-8")
    return tmp_path


def run_the_commands(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CDC_")}
    for command in commands(PAGE):
        program, *words = shlex.split(command)
        assert program == "cdc"
        ended = subprocess.run(
            [sys.executable, "-m", "cdc_pipeline", *words],
            env={**environment, "PYTHONPATH": str(PROJECT), "CDC_DRIVER__JAVA_OPTIONS": ONE_COMPILER},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"


def left_behind(folder: Path) -> list[int]:
    identity = open_installation(folder / ".cdc").identity
    return [process.pid for process in psutil.process_iter() if _belongs_to(process, identity)]


def _belongs_to(process: psutil.Process, identity: str) -> bool:
    try:
        return process.environ().get(STACK_VARIABLE, "").startswith(identity)
    except psutil.Error:
        return False


def test_a_folder_of_events_becomes_a_lake_by_two_commands_and_grows_by_the_same(folder: Path) -> None:
    first, second = (folder / "events" / "0" / f"00000{number}.jsonl" for number in (1, 2))
    first.write_text(blocks(PAGE, "json")[0], encoding="utf-8")
    run_the_commands(folder)
    orders = str(folder / "lake" / "datalake" / "shop" / "public" / "orders")
    assert seen(delta_rows(orders)) == [ADA]
    deleted = json.loads(first.read_text(encoding="utf-8").splitlines()[-1])
    source = deleted["source"] | {"lsn": 40, "txId": 4}
    image = {"id": 3, "customer": "Grace", "amount": "7", "created": "2026-01-01T10:00:00Z"}
    lines = [{"op": "c", "before": None, "after": image, "source": source}]
    lines.append({"op": "u", "before": None, "after": image | {"id": 1, "amount": None}, "source": source})
    second.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    run_the_commands(folder)
    grace = ADA | {"customer": "Grace"}
    rows = sorted(seen(delta_rows(orders)), key=lambda row: int(row["id"]))
    assert rows == [grace | {"amount": None}, grace | {"id": 3, "amount": Decimal("7.00")}]
    assert left_behind(folder) == []
