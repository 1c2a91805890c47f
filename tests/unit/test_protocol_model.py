"""docs/explanation/model.md: the protocol holds in every reachable state, and each guard is what the page says."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from protocol_model import SPACES, explore, report, space
from world import Guard

from tests.support.doc_pages import text_of

ROOT = Path(__file__).parents[2]
PAGE = text_of("docs/explanation/model.md")
GUARD = re.compile(
    r"^\| `([a-z-]+)` \| .+? \| ([a-z ]+) \| `(.+?)`(?: without (.+?))? \| (?:(\d+): )?(.*?) ?\|$", re.MULTILINE
)
STATES_IN_TESTS = 1_000_000
SECONDS_IN_TESTS = 90
STATES_OF_A_REDUNDANT_GUARD = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    guard: Guard
    verdict: str
    space: str
    others: tuple[Guard, ...]
    steps: int
    found: str


def rows() -> list[Row]:
    return [
        Row(
            guard=Guard(guard),
            verdict=verdict,
            space=words,
            others=tuple(map(Guard, re.findall(r"`(.+?)`", others))),
            steps=int(steps or 0),
            found=found,
        )
        for guard, verdict, words, others, steps, found in GUARD.findall(PAGE)
    ]


def test_in_no_state_of_a_million_anything_is_lost_doubled_or_stuck() -> None:
    states, seconds = 0, 0.0
    for words in SPACES["test"]:
        found = explore(space(words))
        assert found.counterexample is None, report(words, found)
        assert found.is_complete
        assert found.good_ends > 0
        states, seconds = states + found.states, seconds + found.seconds
    assert states >= STATES_IN_TESTS
    assert seconds < SECONDS_IN_TESTS


def test_the_page_names_every_guard_once() -> None:
    assert sorted(row.guard for row in rows()) == sorted(Guard)


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.guard))
def test_without_a_guard_happens_what_the_page_says(row: Row) -> None:
    """Without a redundant guard alone no error follows, as far as the test looks."""
    if row.verdict == "needed":
        assert not row.others
    else:
        alone = explore(space(row.space.removesuffix(" silent"), {row.guard}), STATES_OF_A_REDUNDANT_GUARD)
        assert alone.counterexample is None, report(row.space, alone)
        assert bool(row.others) == (row.verdict == "redundant")
    if row.verdict != "efficiency":
        found = explore(space(row.space, {row.guard, *row.others}))
        assert found.counterexample is not None
        assert (len(found.counterexample.trace), found.counterexample.found) == (row.steps, row.found)
        for other in row.others:
            assert explore(space(row.space, {other}), found.states).counterexample is None or other in needed()


def needed() -> set[Guard]:
    return {row.guard for row in rows() if row.verdict == "needed"}


def test_a_keyless_table_is_safe_from_crashes_expired_leases_and_lost_answers() -> None:
    found = explore(space("01 crash=1 zombie=1 lost-answer=1", {Guard.ROW_VERSION}))
    assert found.counterexample is None, report("bag", found)
    assert found.is_complete


def test_the_commands_of_the_page_work_and_a_wrong_guard_is_refused_by_name() -> None:
    commands = re.findall(r"^\.venv/bin/python (docs/model/protocol_model\.py.*?)(?:\s+#.*)?$", PAGE, re.MULTILINE)
    assert len(commands) == len(SPACES) + 1
    program = [sys.executable, str(ROOT / "docs" / "model" / "protocol_model.py")]
    erring = subprocess.run([*program, "--without", "offset"], capture_output=True, text=True, timeout=120, check=False)
    assert (erring.returncode, "registers [1, 2) as number 1" in erring.stdout) == (1, True), erring.stderr
    calm = subprocess.run(
        [*program, "--space", "010 crash=1"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (calm.returncode, "every end is good" in calm.stdout) == (0, True), calm.stdout
    wrong = subprocess.run([*program, "--without", "luck"], capture_output=True, text=True, timeout=120, check=False)
    assert (wrong.returncode, "invalid choice: 'luck'" in wrong.stderr) == (2, True)
