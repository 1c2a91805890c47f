"""docs/reports/benchmarks.md: each benchmark runs, and gives figures only if its arms did the same work."""

import re
from importlib import import_module

import pytest

from tests.support.doc_pages import text_of

PAGE = text_of("docs/reports/benchmarks.md")
COMMANDS = re.findall(r"^\.venv/bin/python -m (benchmarks\.\w+)$", PAGE, re.MULTILINE)
WITH_STACK = {"benchmarks.idle"}
WITH_SPARK = {"benchmarks.slice", "benchmarks.snapshot_memory"}
SMALL = {
    "benchmarks.decoder": ("2000",),
    "benchmarks.consumer": ("1000", "1"),
    "benchmarks.slice": ("1", "500"),
    "benchmarks.snapshot_memory": ("500", "2"),
    "benchmarks.large_transaction": ("500", "2"),
    "benchmarks.year": ("3", "1", "3"),
    "benchmarks.idle": ("1", "1"),
}


def test_the_page_names_every_benchmark() -> None:
    assert sorted(COMMANDS) == sorted(SMALL)


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=[pytest.mark.stack] if name in WITH_STACK else []) for name in COMMANDS]
)
def test_a_benchmark_runs_and_finds_that_its_arms_did_the_same(
    module: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    spark = [request.getfixturevalue("spark_url")] if module in WITH_SPARK else []
    import_module(module).main([*spark, *SMALL[module]])
    assert re.search(r"\d x |ratio \d", capsys.readouterr().out)
