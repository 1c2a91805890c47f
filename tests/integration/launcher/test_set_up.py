"""Set-up with nothing to do."""

import resource
import subprocess

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
