"""A disk without room ends neither the supervisor nor its care for the processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.launcher.control import down, is_up, process_states, start_and_wait
from cdc_pipeline.launcher.marked import marked
from cdc_pipeline.launcher.processes import Process
from cdc_pipeline.launcher.supervisor import Condition, ProcessState
from cdc_pipeline.settings.installation.state import Installation, open_installation
from tests.support.eventually import eventually

NAME = "consumer"
SAYS = """
import sys
from cdc_pipeline.launcher.supervisor import report
report("not stored", error="no room")
print("goes on", file=sys.stderr)
"""


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    installation = open_installation(tmp_path / "home")
    process = Process(
        name=NAME, waits_for="", command=(sys.executable, "-c", "import signal; signal.pause()"), environment={}
    )
    start_and_wait(installation, (process,), quietly)
    yield installation
    down(installation.home)


def quietly(_states: list[ProcessState]) -> None:
    return


def kill(installation: Installation) -> int:
    pid = pids(installation)[0]
    os.kill(pid, signal.SIGKILL)
    return pid


def pids(installation: Installation) -> list[int]:
    return [process.pid for process, name in marked(installation.identity).items() if name == NAME]


def test_a_process_is_restarted_while_states_cannot_be_stored_and_they_are_stored_later(
    installation: Installation,
) -> None:
    before = installation.processes.rename(installation.home / "before")
    installation.processes.mkdir()
    dead = kill(installation)
    assert eventually(lambda: pids(installation) not in ([], [dead]))
    installation.processes.rmdir()
    assert eventually(installation.processes.is_file)
    assert eventually(lambda: [state.pid for state in process_states(installation.home)] == pids(installation))
    assert json.loads(before.read_text(encoding="utf-8"))[0]["pid"] == dead


def test_a_process_that_cannot_be_started_is_tried_again(installation: Installation) -> None:
    log = installation.log(NAME)
    log.unlink()
    log.mkdir()
    kill(installation)
    assert eventually(lambda: process_states(installation.home)[0].failures > 1)
    assert is_up(installation)
    log.rmdir()
    assert eventually(lambda: process_states(installation.home)[0].condition is Condition.HEALTHY)
    assert "not started" in installation.log("supervisor").read_text(encoding="utf-8")


def test_an_error_that_cannot_be_logged_ends_nothing() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-c", SAYS], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.stderr.startswith("goes on\n")
