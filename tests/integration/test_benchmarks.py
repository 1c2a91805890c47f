"""docs/reports/performance.md: each row runs, and gives figures only if its arms did the same work."""

from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.__main__ import ROWS, run
from benchmarks.bench import Bench
from benchmarks.goals import GOALS, TITLES
from benchmarks.page import block
from benchmarks.results import PAGE, RowFigures, is_whole, merged, row_entry, run_facts
from benchmarks.sizes import parse_setting
from tests.support.doc_pages import text_of

WITH_STACK = {"B7", "B9", "B10", "rest"}
WITHOUT_SPARK = {"B1", "decoder", "files", "lake-log", "large-transaction", "streams", "year"} | WITH_STACK
MEASURED = [row for row in ROWS if row not in WITH_STACK]
MARKS: dict[str, Any] = {"B1": (), "streams": pytest.mark.kafka}
"""All rows are run by the same few functions, so that B1 holds them. `make nightly` takes the others without Spark."""
IN_NIGHTLY = {"B6"}
"""Of the rows with Spark. The others take minutes, and are run by `make bench-quick`."""


def measured(row: str, spark_url: str, *overrides: str) -> RowFigures:
    """At the sizes of tests; the driver is the one of all tests, and is not measured."""
    with ExitStack() as opened:
        settings = [parse_setting("B6.claims=3")]
        bench = Bench(scale="tiny", opened=opened, given_spark=spark_url, overrides=overrides, settings=settings)
        found = run(bench, [row])[row]
    assert isinstance(found, RowFigures), found
    return found


def check(row: str, found: RowFigures) -> None:
    facts = run_facts(at=datetime.now(UTC), scale="tiny", seed=1, rounds=1, overrides=(), postgres="", load_before=0.0)
    content = merged({}, [row_entry(row, found, facts)], facts)
    assert is_whole(content, [row]), found.refused
    assert {goal.value for goal in GOALS if goal.row == row} <= {*found.values}
    assert all(f"### {row}: {contest.name}" in block(content) for contest in found.contests)


def test_every_row_of_the_table_has_arms() -> None:
    assert {*TITLES} <= {*ROWS}


def test_the_page_names_every_row() -> None:
    page = text_of(f"docs/reports/{PAGE.name}")
    assert [row for row in {*TITLES, *ROWS} if f"| {row} |" not in page and f"`{row}`" not in page] == []


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=MARKS.get(row, pytest.mark.nightly)) for row in MEASURED if row in WITHOUT_SPARK],
)
def test_a_row_runs_and_its_arms_did_the_same(row: str) -> None:
    check(row, measured(row, ""))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=pytest.mark.nightly if row in IN_NIGHTLY else pytest.mark.bench)
        for row in MEASURED
        if row not in WITHOUT_SPARK
    ],
)
def test_a_row_with_spark_runs_and_its_arms_did_the_same(row: str, spark_url: str) -> None:
    check(row, measured(row, spark_url))


@pytest.mark.nightly
def test_a_setting_of_the_pipeline_is_a_further_arm(spark_url: str) -> None:
    found = measured("B8", spark_url, "worker.claim_slices=2")
    assert "this project, worker.claim_slices=2" in found.contests[1].arms


@pytest.mark.nightly
@pytest.mark.stack
@pytest.mark.parametrize("row", sorted(WITH_STACK))
def test_a_row_of_the_whole_stack_runs(row: str) -> None:
    check(row, measured(row, ""))
