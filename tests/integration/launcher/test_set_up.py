"""Set-up with nothing to do."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from cdc_pipeline.launcher.project import PROJECT

SET_UP = ["make", "--silent", "setup-dev"]
LONGEST_SECONDS = 2


def processor_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_set_up_with_nothing_changed_takes_under_two_seconds() -> None:
    """Of the processor: other tests run beside this one."""
    subprocess.run(SET_UP, cwd=PROJECT, check=True)
    before = processor_seconds()
    outcome = subprocess.run(SET_UP, cwd=PROJECT, check=True, capture_output=True, text=True)
    assert processor_seconds() - before < LONGEST_SECONDS
    assert outcome.stderr.startswith("set-up: ready")


def test_without_a_fitting_python_set_up_says_so_in_one_line() -> None:
    command = ["make", "--silent", "setup", "PYTHON=python2.0"]
    outcome = subprocess.run(command, cwd=PROJECT, check=False, capture_output=True, text=True)
    assert outcome.returncode != 0
    assert "there is no working python2.0 on PATH" in outcome.stderr.splitlines()[0]


def test_a_checkout_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    for name in ("__init__.py", "errors.py", "launcher"):
        source, copy = PROJECT / "cdc_pipeline" / name, tmp_path / "cdc_pipeline" / name
        copy.parent.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    (tmp_path / ".cache").touch()
    command = [sys.executable, "-m", "cdc_pipeline.launcher.set_up", "--no-jars"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    outcome = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert outcome.returncode == 1
    (line,) = outcome.stderr.splitlines()
    assert ".cache" in line
    assert f"run it as an account that may write to {tmp_path}, with room on its disk" in line
