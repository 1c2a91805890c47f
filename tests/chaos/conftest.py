"""One report and one seed for all faults of a run."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.report import Report


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
