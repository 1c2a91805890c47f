"""What targets of the Makefile run."""

import subprocess

import pytest

from cdc_pipeline.launcher.project import PROJECT


@pytest.mark.parametrize(("given", "marks"), [([], "not kafka"), (["MARKS=kafka", "JARS=kafka"], "kafka")])
def test_the_fuzzer_of_shapes_needs_no_broker_unless_it_is_asked_for(given: list[str], marks: str) -> None:
    """`make setup-dev` fetches none; the words that ask for it are those of CONTRIBUTING.md."""
    command = ["make", "--dry-run", "PYTHON=true", "fuzz-shapes", *given]
    shown = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert f'-m "{marks}" tests/fuzz' in shown
    assert ("--jars kafka" in shown) is bool(given)
    assert " ".join(["make fuzz-shapes", *given]) in (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
