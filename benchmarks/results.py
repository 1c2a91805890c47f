"""What a run leaves behind: latest.json, a line of history.jsonl, curves, a block of docs/reports/performance.md."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import psutil

from benchmarks.arms import ContestFigures
from benchmarks.curves import Curve, svg
from benchmarks.goals import TITLES, RowVerdict, not_measured, verdict_of
from benchmarks.page import block, with_block

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "benchmarks" / "results"
PAGE = PROJECT / "docs" / "reports" / "performance.md"
PACKAGES = {"pyspark": "pyspark", "delta": "delta-spark", "deltalake": "deltalake", "airflow": "apache-airflow-core"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFigures:
    """What a row measured. `values`: what goals are about. `missing`: why a value is not there, by its name."""

    values: Mapping[str, float]
    sizes: Mapping[str, int]
    contests: tuple[ContestFigures, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)

    @property
    def refused(self) -> list[str]:
        return [f"{each.name}: {arm}: {why}" for each in self.contests for arm, why in each.refused.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Under which conditions a run took place. `overrides`: settings of this project's further arms."""

    at: datetime
    scale: str
    seed: int
    rounds: int
    overrides: tuple[str, ...]
    versions: Mapping[str, str]
    cores: int
    memory_bytes: int
    load_before: float


def run_facts(
    *, at: datetime, scale: str, seed: int, rounds: int, overrides: Sequence[str], postgres: str, load_before: float
) -> RunFacts:
    """`postgres`: the version of the server. `load_before`: what else the machine did when the run began."""
    versions = {"python": python_version(), "project": _revision(), "postgres": postgres}
    return RunFacts(
        at=at,
        scale=scale,
        seed=seed,
        rounds=rounds,
        overrides=tuple(overrides),
        versions=versions | {name: version(package) for name, package in PACKAGES.items()},
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        load_before=load_before,
    )


def _revision() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def row_entry(row: str, found: RowFigures | str, facts: RunFacts) -> dict[str, Any]:
    """One row of latest.json. `found`: its figures, or why there are none."""
    run = asdict(facts) | {"at": f"{facts.at:%Y-%m-%dT%H:%M:%SZ}"}
    if isinstance(found, str):
        verdict = not_measured(row, found) if row in TITLES else None
        return _verdict_json(verdict) | {"id": row, "error": found, "run": run}
    verdict = verdict_of(row, found.values, found.sizes, found.missing) if row in TITLES else None
    return _verdict_json(verdict) | {
        "id": row,
        "ratios": dict(found.values),
        "sizes": dict(found.sizes),
        "curves": list(found.curves),
        "contests": [asdict(contest) for contest in found.contests],
        "refused": found.refused,
        "run": run,
    }


def _verdict_json(verdict: RowVerdict | None) -> dict[str, Any]:
    return {} if verdict is None else asdict(verdict)


def merged(before: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], facts: RunFacts) -> dict[str, Any]:
    """The content of latest.json: a row that this run did not choose keeps what an earlier one found."""
    rows = {entry["id"]: entry for entry in before.get("rows", [])} | {entry["id"]: entry for entry in entries}
    for row in TITLES:
        rows.setdefault(row, row_entry(row, "not chosen in any run", facts) | {"error": ""})
    ordered = [*(rows[row] for row in TITLES), *(entry for row, entry in sorted(rows.items()) if row not in TITLES)]
    return {"run": asdict(facts) | {"at": f"{facts.at:%Y-%m-%dT%H:%M:%SZ}"}, "rows": ordered}


def write_results(
    folder: Path, found: Mapping[str, RowFigures | str], facts: RunFacts, *, page: Path | None
) -> dict[str, Any]:
    """Writes all files of a run; returns the content of latest.json. The page and its curves only where it is named."""
    folder.mkdir(parents=True, exist_ok=True)
    latest = folder / "latest.json"
    before = json.loads(latest.read_text(encoding="utf-8")) if latest.exists() else {}
    entries = [row_entry(row, figures, facts) for row, figures in found.items()]
    text = json.dumps(merged(before, entries, facts), indent=1, ensure_ascii=False)
    latest.write_text(f"{text}\n", encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    with (folder / "history.jsonl").open("a", encoding="utf-8") as history:
        history.write(json.dumps(_history_line(content, found), ensure_ascii=False) + "\n")
    if page is not None:
        for figures in found.values():
            for name, curve in figures.curves.items() if isinstance(figures, RowFigures) else ():
                (page.parent / f"{name}.svg").write_text(svg(curve), encoding="utf-8")
        pictures = [picture.stem for picture in page.parent.glob("*.svg")]
        text = with_block(page.read_text(encoding="utf-8"), block(content, pictures))
        page.write_text(text, encoding="utf-8")
    return content


def _history_line(content: Mapping[str, Any], found: Mapping[str, object]) -> dict[str, Any]:
    rows = [entry for entry in content["rows"] if entry["id"] in found]
    ratios = {entry["id"]: entry.get("ratios", {}) for entry in rows}
    return {**content["run"], "reached": {entry["id"]: entry.get("reached") for entry in rows}, "ratios": ratios}


def is_whole(content: Mapping[str, Any], chosen: Sequence[str]) -> bool:
    """Whether every chosen row has figures, and no arm of it was refused."""
    return not any(entry.get("error") or entry.get("refused") for entry in content["rows"] if entry["id"] in chosen)
