"""One report and one seed for all faults of a run."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.chaos.report import Report
from tests.chaos.world import ChaosWorld, chaos_world


@pytest.fixture(scope="session")
def chaos_seed() -> int:
    """What every test that chooses at random begins with: `random.Random(f"{chaos_seed} my test")`."""
    return int(os.environ.get("CDC_CHAOS_SEED", "11"))


@pytest.fixture(scope="session")
def report(chaos_seed: int) -> Iterator[Report]:
    """Written at the end to the page that CDC_CHAOS_REPORT names, if it names one. A red cell fails the run."""
    began, report = datetime.now(UTC), Report()
    yield report
    page = os.environ.get("CDC_CHAOS_REPORT")
    if page:
        words = report.page(seed=chaos_seed, began=began, ended=datetime.now(UTC), cores=os.cpu_count() or 1)
        Path(page).write_text(words, encoding="utf-8")
    assert report.red == []


@pytest.fixture(scope="session")
def world(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory, spark_url: str, s3_endpoint: str
) -> Iterator[ChaosWorld]:
    """One for all deaths: each test leaves it as it found it, with more rows."""
    with chaos_world(postgres, tmp_path_factory.mktemp("chaos"), spark_url, s3_endpoint) as made:
        yield made
