"""A line of a Debezium file may hold anything: it becomes rows, is skipped, or is quarantined whole, in little time."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.line_fuzz import LineFuzz, recorded_lines
from tests.support.odd_lines_read import OddLines, pipelines

LINES = int(os.environ.get("CDC_FUZZ_LINES", "10000"))
MOST_MEGABYTES = 400
"""What is imported takes 220 of them."""
RECORDED = recorded_lines()
FEW = settings(max_examples=200, suppress_health_check=list(HealthCheck), deadline=None)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.integers(10**30, 10**40)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=10
)
SOURCE = st.fixed_dictionaries(
    {},
    optional={
        "db": JSON,
        "schema": JSON,
        "table": JSON | st.sampled_from(["orders", "keyless"]),
        "ts_ms": JSON,
        "txId": JSON,
        "lsn": JSON,
        "sequence": JSON,
        "snapshot": JSON,
        "file": JSON,
        "pos": JSON,
    },
)
FIELDS = st.fixed_dictionaries({}, optional={"field": JSON, "type": JSON, "name": JSON, "fields": JSON, "items": JSON})
ENVELOPE = st.fixed_dictionaries(
    {"op": st.sampled_from(["c", "r", "u", "d", "t"]) | JSON},
    optional={"before": JSON, "after": JSON, "source": SOURCE | JSON, "ts_ms": JSON, "transaction": JSON},
)
WRAPPED = st.fixed_dictionaries({"payload": ENVELOPE, "schema": FIELDS | JSON})
RECORD = st.fixed_dictionaries({"value": ENVELOPE | WRAPPED | JSON, "key": JSON}, optional={"headers": JSON})
LINE = st.binary().map(lambda octets: octets.replace(b"\n", b"")) | (ENVELOPE | WRAPPED | RECORD | JSON).map(
    lambda document: json.dumps(document).encode()
)
Read = Callable[[list[bytes]], list[Any]]


@pytest.fixture(scope="module", params=range(len(pipelines())))
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OddLines:
    return OddLines(pipelines()[request.param], tmp_path_factory.mktemp("lines"))


@FEW
@given(lines=st.lists(LINE, min_size=1, max_size=8))
def test_lines_of_any_shape_are_read_or_quarantined_one_by_one(reader: OddLines, lines: list[bytes]) -> None:
    reader.replay(reader.read(lines))


@FEW
@given(seed=st.integers(0, 1 << 30))
def test_recorded_lines_with_other_parts_are_read_or_quarantined_one_by_one(reader: OddLines, seed: int) -> None:
    reader.replay(reader.read(list(LineFuzz(Random(seed), RECORDED).lines(5))))


@pytest.mark.slow
def test_many_odd_lines_take_little_time_and_memory() -> None:
    """As a process of its own, whose memory is its own; `make fuzz-lines` reads a million."""
    program = [sys.executable, "-m", "tests.support.odd_lines_read", str(LINES), "1"]
    ended = subprocess.run(program, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3_000:]
    measured = json.loads(ended.stdout.splitlines()[-1])
    print(measured)  # noqa: T201 - what `make fuzz-lines` reports
    assert measured["lines"] == LINES
    assert measured["memory_mb"] < MOST_MEGABYTES
