"""Every demo's pipeline.yml is one that the pipeline reads, made once."""

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
