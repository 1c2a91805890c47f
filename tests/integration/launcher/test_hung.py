"""Processes that live and do nothing, under the real supervisor."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import psutil
import pytest

from cdc_pipeline.launcher.control import down, process_states, start_and_wait
from cdc_pipeline.launcher.health import Health, health_of
from cdc_pipeline.launcher.marked import SUPERVISOR
from cdc_pipeline.launcher.processes import Process
from cdc_pipeline.launcher.supervisor import Condition, Keeper, ProcessState
from cdc_pipeline.settings.installation.ports import free_port
from cdc_pipeline.settings.installation.state import Installation, open_installation
from tests.support.eventually import eventually

SILENCE = 3.0
LONG = 600.0
SERVER = """
import http.server, os, signal, sys, threading
if os.fork() == 0:
    os.setsid()
    signal.pause()
class Slow(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        threading.Event().wait(float(sys.argv[2]))
        super().do_GET()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Slow).serve_forever()
"""
"""Beside the server there is a child in a session of its own, as PostgreSQL's are."""
FOREVER = "import signal; signal.pause()"


def server(installation: Installation, port: int, *, seconds: float = 0.0, silence: float = SILENCE) -> Process:
    """Serves the files of the installation's home, each answer after so many seconds."""
    return Process(
        name="web",
        waits_for="an answer",
        command=(sys.executable, "-c", SERVER, str(port), str(seconds)),
        environment={},
        health=f"http://127.0.0.1:{port}/installation.lock",
        silence=silence,
    )


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    yield open_installation(tmp_path / "home")
    down(tmp_path / "home")


def quietly(_states: list[ProcessState]) -> None:
    return


def state_of(installation: Installation, name: str) -> ProcessState:
    return next(state for state in process_states(installation.home) if state.name == name)


def is_again(installation: Installation, name: str, before: int) -> bool:
    """Whether it was started again and is healthy."""
    state = state_of(installation, name)
    return state.pid not in (before, None) and state.condition is Condition.HEALTHY


def is_dead(process: psutil.Process) -> bool:
    """Whether it runs no more. The child of a killed process is a zombie until the init process has reaped it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill_with_children(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        for process in psutil.Process(child.pid).children():
            process.kill()
        child.kill()


def answers(installation: Installation) -> int:
    return installation.log("web").read_text(encoding="utf-8").count("GET ")


def test_a_process_that_was_stopped_is_killed_with_its_children_and_started_again(installation: Installation) -> None:
    start_and_wait(installation, (server(installation, free_port()),), quietly)
    pid = state_of(installation, "web").pid or 0
    family = [psutil.Process(pid), *psutil.Process(pid).children()]
    assert len(family) == 2
    for process in family:
        process.suspend()
    assert eventually(lambda: is_again(installation, "web", pid))
    assert state_of(installation, "web").exit_code == -signal.SIGKILL
    assert eventually(lambda: all(is_dead(process) for process in family))
    said = installation.log(SUPERVISOR).read_text(encoding="utf-8")
    assert "killed because it does not answer" in said
    assert "process=web" in said


def test_a_process_that_answers_slowly_is_left_alone(installation: Installation) -> None:
    slow = server(installation, free_port(), seconds=SILENCE / 2, silence=4 * SILENCE)
    start_and_wait(installation, (slow,), quietly)
    pid, before = state_of(installation, "web").pid, answers(installation)
    assert eventually(lambda: answers(installation) > before + 4)
    assert state_of(installation, "web").pid == pid
    assert state_of(installation, "web").condition is Condition.HEALTHY


def test_a_part_is_not_judged_by_a_server_that_is_itself_away(installation: Installation) -> None:
    port, page = free_port(), installation.home / "page"
    page.write_text(json.dumps({name: {"status": "healthy"} for name in ("metadatabase", "part")}), encoding="utf-8")
    web = server(installation, port)
    command = (sys.executable, "-c", FOREVER)
    health = f"http://127.0.0.1:{port}/page#part"
    part = replace(web, name="part", command=command, health=health, silence=SILENCE / 3)
    start_and_wait(installation, (web, part), quietly)
    first, second = (state_of(installation, name).pid or 0 for name in ("web", "part"))
    os.kill(first, signal.SIGSTOP)
    assert eventually(lambda: is_again(installation, "web", first))
    assert state_of(installation, "part").pid == second
    page.write_text(page.read_text(encoding="utf-8").replace("healthy", "unhealthy", 2).replace("un", "", 1))
    assert eventually(lambda: state_of(installation, "part").pid not in (second, None))


def test_a_question_that_hangs_keeps_nobody_else_from_being_tended(installation: Installation) -> None:
    children: list[subprocess.Popen[bytes]] = []
    never = Event()

    def launch(process: Process) -> "subprocess.Popen[bytes]":
        with installation.log(process.name).open("ab") as output:
            children.append(subprocess.Popen(process.command, stderr=output, cwd=installation.home))
        return children[-1]

    def ask(url: str) -> Health:
        if url == "http://hangs":
            never.wait()
        return health_of(url)

    web = server(installation, free_port(), silence=LONG)
    hanging = Keeper(
        replace(web, name="hangs", command=(sys.executable, "-c", FOREVER), health="http://hangs"), launch, ask=ask
    )
    other = Keeper(web, launch, ask=ask)

    def comes_to(condition: Condition) -> bool:
        def has_come() -> bool:
            hanging.tend(set())
            other.tend(set())
            return other.state.condition is condition

        return eventually(has_come)

    assert comes_to(Condition.HEALTHY)
    kill_with_children(children[-1])
    assert comes_to(Condition.WAITING)
    assert comes_to(Condition.HEALTHY)
    assert hanging.state.condition is Condition.STARTING
    never.set()
    for child in children:
        kill_with_children(child)
        child.wait()
