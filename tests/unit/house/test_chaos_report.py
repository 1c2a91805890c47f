"""The page that a run under faults leaves behind."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.chaos.report import Report

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def test_the_page_shows_each_site_with_its_faults_and_the_slowest_recovery() -> None:
    report = Report()
    report.record("slice_to_lake: claim.record", "killed before", "equal", timedelta(seconds=2))
    report.record("slice_to_lake: claim.record", "killed before", "equal", timedelta(seconds=3))
    report.record("slice_to_lake: lease.acquire", "killed after", "equal")
    page = report.page(seed=7, began=NOON, ended=NOON + timedelta(minutes=4), cores=2)
    assert "4 minutes on 2 cores" in page
    assert "2 cells, 3 faults, 0 of the cells red. Slowest recovery: 3.0 s." in page
    assert page.rstrip().splitlines()[-6:] == [
        "## slice_to_lake",
        "",
        "| site | killed before | killed after |",
        "|---|---|---|",
        "| `claim.record` | equal (2 times), 3.0 s |  |",
        "| `lease.acquire` |  | equal |",
    ]


def test_what_ends_a_fault_early_is_a_red_cell() -> None:
    report = Report()
    with pytest.raises(ValueError, match="away"), report.red_unless_done("a: b", "c"):
        raise ValueError("away")
    with report.red_unless_done("a: b", "d"):
        report.record("a: b", "d", "equal")
    assert [(cell.site, cell.fault) for cell in report.red] == [("a: b", "c")]
