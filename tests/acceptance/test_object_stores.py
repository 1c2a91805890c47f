"""As a user would: the pipeline.yml and the commands of docs/object-stores.md, on a server of the test's own."""

import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.settings import ObjectStoreSettings
from tests.support.delta_rows import delta_rows, seen, storage_options
from tests.support.s3 import BUCKET, REGION, s3_objects
from tests.support.spark import ONE_COMPILER

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

COMMAND_SECONDS = 300
ADA = {"id": 1, "customer": "Ada", "amount": Decimal("9.50"), "created": datetime(2026, 1, 1, 10, tzinfo=UTC)}


def block(document: str, language: str, begin: str) -> str:
    text = (PROJECT / "docs" / document).read_text(encoding="utf-8")
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text[text.index(begin) :], re.DOTALL)
    return found[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "events" / "0").mkdir(parents=True)
    events = block("sources.md", "json", "## Debezium's events from files")
    (tmp_path / "events" / "0" / "000001.jsonl").write_text(events, encoding="utf-8")
    (tmp_path / "pipeline.yml").write_text(block("object-stores.md", "yaml", "## A lake on S3"), encoding="utf-8")
    return tmp_path


def run(command: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    program, *words = shlex.split(command)
    assert program == "cdc"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CDC_")}
    return subprocess.run(
        [sys.executable, "-m", "cdc_pipeline", *words],
        env={**environment, "PYTHONPATH": str(PROJECT), "CDC_DRIVER__JAVA_OPTIONS": ONE_COMPILER, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def test_a_lake_on_s3_is_checked_and_filled_by_the_commands_of_the_page(
    folder: Path, s3_endpoint: str, s3_prefix: str
) -> None:
    place = {"CDC_LAKE": f"s3://{BUCKET}/{s3_prefix}", "CDC_OBJECT_STORE__ENDPOINT": s3_endpoint}
    for command in block("object-stores.md", "sh", "## A lake on S3").splitlines():
        ended = run(command, folder, **place)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    orders = s3_objects(s3_endpoint, s3_prefix).delta_url("datalake/shop/public/orders")
    options = storage_options(ObjectStoreSettings(endpoint=s3_endpoint, region=REGION))
    assert seen(delta_rows(orders, options)) == [ADA]
    assert [path.name for path in folder.iterdir() if path.name not in {".cdc", "events", "pipeline.yml"}] == []
