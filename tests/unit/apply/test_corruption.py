"""Ten thousand damaged slice files: none passes, none hangs, none needs memory, and what the hash does not decide."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from cdc_pipeline.launcher.project import PROJECT

pytestmark = pytest.mark.xdist_group("mutants")

SEED, COUNT = "slices", 10_000
MOST_SECONDS_EACH = 2
FOUND_WITHOUT_THE_HASH = ("packed_content", "truncated", "extended", "older", "foreign", "no_content", "bomb")


@pytest.fixture(scope="module")
def report() -> Any:
    """A process that outgrows its memory or its time dies and reports nothing."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.unit.apply.check_mutants", SEED, str(COUNT)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(child.stdout)


def test_no_mutant_passes_as_the_slice_that_was_registered(report: Any) -> None:
    assert report["accepted"] == []
    assert sum(sum(outcomes.values()) for outcomes in report["forged"].values()) == COUNT
    assert report["slowest"] < MOST_SECONDS_EACH


@pytest.mark.parametrize("mutation", FOUND_WITHOUT_THE_HASH)
def test_damage_is_found_even_where_the_registry_has_the_hash_of_the_mutant(report: Any, mutation: str) -> None:
    assert set(report["forged"][mutation]) == {"refused"}


def test_where_the_hash_is_forged_only_a_whole_other_slice_of_as_many_rows_gives_other_rows(report: Any) -> None:
    misled = {name for name, outcomes in report["forged"].items() if "other rows" in outcomes}
    assert misled == {"swapped"}
