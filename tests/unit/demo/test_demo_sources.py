"""Every demo's pipeline.yml is one that the pipeline reads, made once, and its settings are its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_pipeline.demo.sources import DEMO_SOURCES
from cdc_pipeline.settings.file import load_settings


@pytest.mark.parametrize("name", DEMO_SOURCES)
def test_a_demos_settings_name_its_tables_and_stay_as_they_are(name: str, tmp_path: Path) -> None:
    config = DEMO_SOURCES[name].prepare(tmp_path / "demo")
    settings = load_settings(config, {})
    assert {table.table.table for table in settings.tables} >= {"customers", "orders"}
    first = config.read_text()
    DEMO_SOURCES[name].prepare(config.parent)
    assert config.read_text() == first, "a second demo goes on with the same servers"


def test_a_demo_refuses_the_variables_of_another_pipeline_before_it_makes_anything(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    ended = subprocess.run(
        [sys.executable, "-m", "cdc_pipeline", "demo", "--folder", str(folder)],
        env={**os.environ, "CDC_SOURCE__URL": "postgresql://127.0.0.1:1/shop", "CDC_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "overridden by CDC_HOME, CDC_SOURCE__URL" in " ".join(ended.stderr.split())
    assert not folder.exists()
