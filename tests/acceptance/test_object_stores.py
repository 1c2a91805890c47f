"""docs/how-to/lake-on-s3.md: its pipeline.yml and its commands make a lake on an S3 server."""

import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.settings import ObjectStoreSettings
from tests.support.delta_rows import delta_rows, delta_url, seen, storage_options
from tests.support.doc_pages import blocks, commands
from tests.support.s3 import BUCKET, REGION, s3_objects
from tests.support.spark import ONE_COMPILER

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

COMMAND_SECONDS = 300
PAGE = "docs/how-to/lake-on-s3.md"
ADA = {"id": 1, "customer": "Ada", "amount": Decimal("9.50"), "created": datetime(2026, 1, 1, 10, tzinfo=UTC)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "events" / "0").mkdir(parents=True)
    events = blocks("docs/how-to/debezium-files.md", "json")[0]
    (tmp_path / "events" / "0" / "000001.jsonl").write_text(events, encoding="utf-8")
    (tmp_path / "pipeline.yml").write_text(blocks(PAGE, "yaml")[0], encoding="utf-8")
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
    for command in commands(PAGE):
        ended = run(command, folder, **place)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    orders = delta_url(s3_objects(s3_endpoint, s3_prefix), "datalake/shop/public/orders")
    options = storage_options(ObjectStoreSettings(endpoint=s3_endpoint, region=REGION))
    assert seen(delta_rows(orders, options)) == [ADA]
    assert [path.name for path in folder.iterdir() if path.name not in {".cdc", "events", "pipeline.yml"}] == []
