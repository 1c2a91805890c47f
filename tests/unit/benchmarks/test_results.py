"""The verdict on each row, and the files that a run leaves behind."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.arms import Arm, Clockwork, Contest
from benchmarks.bench import sections_of
from benchmarks.curves import Curve, svg
from benchmarks.goals import GOALS, NOT_MEASURED, TITLES, verdict_of
from benchmarks.page import BEGIN, END, with_block
from benchmarks.results import RowFigures, RunFacts, is_whole, write_results
from benchmarks.sizes import SIZES, Setting, parse_setting, sizes_of
from benchmarks.usage import Meter

FACTS = RunFacts(
    at=datetime(2026, 1, 1, 12, tzinfo=UTC),
    scale="tiny",
    seed=1,
    rounds=2,
    overrides=(),
    versions={"python": "3.11"},
    cores=2,
    memory_bytes=1,
    load_before=0.5,
)
REACHED = {
    "rows/s over COPY to null": 0.9,
    "rows/s over cursor loop": 6.0,
    "peak of the worker in MB, largest table": 300.0,
}
LARGE = {"rows": 300_000, "memory_rows": 3_000_000}


def figures(values: dict[str, float], *, rows: int = 5) -> RowFigures:
    contest = Contest(name="some work", rows=5, arms=(Arm(name="this project", run=lambda: rows),), parameters={"n": 5})
    found = Clockwork(rounds=2, budget_seconds=60.0, meter=Meter()).measure(contest)
    curve = Curve(title="t", across="x", upwards="y", lines={"a": [(1.0, 2.0), (2.0, 3.0)]})
    return RowFigures(values=values, sizes=LARGE, contests=(found,), curves={"some-curve": curve})


def test_a_row_is_reached_when_all_its_goals_are() -> None:
    assert verdict_of("B2", REACHED, LARGE).reached is True


def test_one_missed_goal_misses_the_row_whatever_was_not_measured() -> None:
    assert verdict_of("B2", {"rows/s over COPY to null": 0.5}, LARGE).reached is False


def test_a_goal_without_a_value_is_not_measured_and_says_why() -> None:
    values = {name: value for name, value in REACHED.items() if "cursor" not in name}
    found = verdict_of("B2", values, LARGE, {"rows/s over cursor loop": "it was killed"})
    assert (found.reached, found.reason) == (NOT_MEASURED, "it was killed")


def test_a_size_below_that_of_the_goal_is_no_verdict() -> None:
    found = verdict_of("B2", REACHED, {**LARGE, "memory_rows": 5})
    assert found.reached == NOT_MEASURED
    assert found.reason == "memory_rows was 5, the goal is for 3,000,000"


def test_every_row_of_the_table_has_goals_or_says_why_it_has_no_arm() -> None:
    assert {goal.row for goal in GOALS} == {*TITLES}
    assert {*TITLES} <= {*SIZES}
    assert all(goal.needs.keys() <= SIZES[goal.row].keys() for goal in GOALS if goal.needs)


def test_a_run_writes_verdicts_a_line_of_history_the_page_and_its_curves(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"# Performance\n\n{BEGIN}\nold\n{END}\n\nfacts\n", encoding="utf-8")
    content = write_results(tmp_path / "results", {"B2": figures(REACHED)}, FACTS, page=page)
    assert json.loads((tmp_path / "results" / "latest.json").read_text(encoding="utf-8")) == content
    by_id = {entry["id"]: entry for entry in content["rows"]}
    assert [entry["id"] for entry in content["rows"]] == list(TITLES)
    assert by_id["B2"]["reached"] is True
    assert by_id["B2"]["ratios"] == REACHED
    assert by_id["B2"]["run"]["versions"] == {"python": "3.11"}
    assert by_id["B9"]["reached"] == NOT_MEASURED
    assert by_id["B9"]["reason"] == "not chosen in any run"
    (line,) = (tmp_path / "results" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["reached"] == {"B2": True}
    written = page.read_text(encoding="utf-8")
    assert "| B2 | rows/s over COPY to null | 0.9 | ≥ 0.8 | yes |" in written
    assert "old" not in written
    assert written.endswith("facts\n")
    assert "![B2: some-curve](some-curve.svg)" in written
    assert (tmp_path / "some-curve.svg").exists()


def test_a_row_that_was_not_chosen_keeps_what_an_earlier_run_found(tmp_path: Path) -> None:
    write_results(tmp_path, {"B2": figures(REACHED)}, FACTS, page=None)
    later = write_results(tmp_path, {"B1": figures({})}, replace(FACTS, seed=2), page=None)
    by_id = {entry["id"]: entry for entry in later["rows"]}
    assert (by_id["B2"]["reached"], by_id["B2"]["run"]["seed"], by_id["B1"]["run"]["seed"]) == (True, 1, 2)
    assert len((tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_a_refused_arm_and_a_row_that_failed_end_the_run_in_another_way_than_a_missed_goal(tmp_path: Path) -> None:
    missed = write_results(tmp_path / "a", {"B2": figures({"rows/s over COPY to null": 0.1})}, FACTS, page=None)
    refused = write_results(tmp_path / "b", {"B2": figures({}, rows=4)}, FACTS, page=None)
    failed = write_results(tmp_path / "c", {"B2": "OSError: away"}, FACTS, page=None)
    assert [is_whole(found, ["B2"]) for found in (missed, refused, failed)] == [True, False, False]
    assert failed["rows"][1]["reason"] == "OSError: away"


def test_a_page_without_markers_is_not_written_over() -> None:
    with pytest.raises(ValueError, match="marker"):
        with_block("# Performance\n", "text")


@pytest.mark.parametrize("logarithmic", [True, False])
def test_a_curve_is_a_picture_with_a_line_for_each_name(logarithmic: bool) -> None:  # noqa: FBT001
    lines = {"hot & fast": [(1e6, 0.5), (3e7, 0.6)], "flat": [(1e6, 2.0), (3e7, 2.0)]}
    curve = Curve(title="A claim", across="rows", upwards="seconds", lines=lines, logarithmic=logarithmic)
    root = ET.fromstring(svg(curve))  # noqa: S314
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    assert svg(curve) == svg(curve)
    with pytest.raises(ValueError, match="no points"):
        svg(replace(curve, lines={}))


def test_sizes_are_those_of_the_scale_unless_they_are_set() -> None:
    assert sizes_of("B4", "quick")["rows"] == 1_000_000
    assert sizes_of("B4", "tiny", [parse_setting("B4.rows=10_000")])["rows"] == 10_000
    assert parse_setting("B6.claims=7") == Setting(row="B6", name="claims", value=7)
    with pytest.raises(ValueError, match=r"expected ROW\.NAME=NUMBER"):
        parse_setting("B4.rounds=3")


def test_a_setting_of_the_pipeline_names_its_section() -> None:
    assert sections_of("worker.claim_rows=5") == {"worker": {"claim_rows": 5}}
    with pytest.raises(ValueError, match="sets nothing"):
        sections_of("worker.claim_rows")
