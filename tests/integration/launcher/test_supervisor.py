"""Up and down of small real processes under the real supervisor."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from cdc_pipeline.errors import SettingsError, SetupError
from cdc_pipeline.launcher.control import MANY_FAILURES, OnStates, down, is_up, process_states, start_and_wait, up
from cdc_pipeline.launcher.health import heartbeat_url
from cdc_pipeline.launcher.launch import LONGEST_LOG_BYTES
from cdc_pipeline.launcher.marked import SUPERVISOR, marked, marks
from cdc_pipeline.launcher.processes import Process
from cdc_pipeline.launcher.supervisor import Condition, Keeper, ProcessState
from cdc_pipeline.settings.installation.ports import free_port
from cdc_pipeline.settings.installation.state import Installation, open_installation
from tests.support.eventually import eventually
from tests.support.shop_settings import shop_settings

STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
signal.pause()
"""

ENDS_WITH_FILE = """
import pathlib, threading
while not pathlib.Path({!r}).exists():
    threading.Event().wait(0.1)
raise SystemExit(1)
"""

TALKS = """
import pathlib, signal, threading
print("begins", flush=True)
while not pathlib.Path({!r}).exists():
    threading.Event().wait(0.1)
print("goes on", flush=True)
signal.pause()
"""

SPILLS = """
import pathlib, signal
folder = pathlib.Path({!r})
print("finds", folder.exists(), flush=True)
folder.mkdir()
(folder / "shuffle").touch()
signal.pause()
"""

SCHEDULES = """
import os, signal
from airflow.executors.local_executor import LocalExecutor
from setproctitle import setproctitle
if os.fork() == 0:
    setproctitle("airflow worker -- LocalExecutor: a task")
else:
    LocalExecutor(parallelism=2).start()
signal.pause()
"""

FOREVER = "import signal; signal.pause()"


def quietly(_states: list[ProcessState]) -> None:
    return


def server(name: str, *, port: int, depends_on: tuple[str, ...] = ()) -> Process:
    command = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))
    return Process(
        name=name,
        waits_for="a port",
        command=command,
        environment={},
        depends_on=depends_on,
        health=f"http://127.0.0.1:{port}/",
    )


def script(name: str, text: str, *, one_shot: bool = False) -> Process:
    command = (sys.executable, "-c", text)
    return Process(name=name, waits_for="", command=command, environment={}, one_shot=one_shot)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    yield open_installation(tmp_path / "home")
    down(tmp_path / "home")


def state_of(installation: Installation, name: str) -> ProcessState:
    return next(state for state in process_states(installation.home) if state.name == name)


def test_everything_is_healthy_when_up_returns_and_nothing_is_left_after_down(installation: Installation) -> None:
    once = script("once", "print('did it')", one_shot=True)
    last = server("web", port=free_port(), depends_on=("once",))
    start_and_wait(installation, (once, last), quietly)
    assert [state.condition for state in process_states(installation.home)] == [Condition.DONE, Condition.HEALTHY]
    assert is_up(installation)
    assert installation.log("once").read_text(encoding="utf-8") == "did it\n"
    assert down(installation.home) == 2
    assert marked(installation.identity) == {}
    assert down(installation.home) == 0


def titled(installation: Installation, end: str) -> set[psutil.Process]:
    return {found for found in marked(installation.identity) if " ".join(found.cmdline()).rstrip().endswith(end)}


def test_of_a_scheduler_that_dies_only_the_workers_with_a_task_are_left(installation: Installation) -> None:
    scheduler = replace(script("scheduler", SCHEDULES), environment={"AIRFLOW_HOME": str(installation.home)})
    start_and_wait(installation, (scheduler,), quietly)
    assert eventually(lambda: len(titled(installation, "<idle>") | titled(installation, ": a task")) == 3)
    idle, busy = titled(installation, "<idle>"), titled(installation, ": a task")
    os.kill(state_of(installation, "scheduler").pid or 0, signal.SIGKILL)
    assert eventually(lambda: idle.isdisjoint(marked(installation.identity)))
    assert busy <= set(marked(installation.identity))


def test_what_dies_is_restarted(installation: Installation) -> None:
    start_and_wait(installation, (server("web", port=free_port()),), quietly)
    first = state_of(installation, "web").pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: state_of(installation, "web").pid not in (first, None))
    assert eventually(lambda: state_of(installation, "web").condition is Condition.HEALTHY)
    assert state_of(installation, "web").exit_code == -signal.SIGKILL


def test_what_was_killed_finds_none_of_its_scratch_files_when_it_starts_again(installation: Installation) -> None:
    folder = installation.home / "local"
    spills = replace(script("spills", SPILLS.format(str(folder))), scratch=str(folder))
    start_and_wait(installation, (spills,), quietly)
    assert (folder / "shuffle").exists()
    os.kill(state_of(installation, "spills").pid or 0, signal.SIGKILL)
    log = installation.log("spills")
    assert eventually(lambda: log.read_text(encoding="utf-8") == "finds False\n" * 2)


def test_what_dies_now_and_then_is_started_again_after_the_first_pause_every_time() -> None:
    children: list[subprocess.Popen[bytes]] = []

    def launch(process: Process) -> "subprocess.Popen[bytes]":
        children.append(subprocess.Popen(process.command))
        return children[-1]

    keeper = Keeper(server("web", port=free_port()), launch, calm=timedelta())

    def comes_to(condition: Condition, *, failures: int) -> bool:
        def has_come() -> bool:
            keeper.tend(set())
            return (keeper.state.condition, keeper.state.failures) == (condition, failures)

        return eventually(has_come)

    for _ in range(2):
        assert comes_to(Condition.HEALTHY, failures=0)
        children[-1].kill()
        assert comes_to(Condition.WAITING, failures=1)


def test_a_one_shot_that_repeats_is_done_again_when_its_server_was_started_again(installation: Installation) -> None:
    web = server("web", port=free_port())
    once = replace(script("once", "print('did it')", one_shot=True), depends_on=("web",), repeats=True)
    start_and_wait(installation, (web, once), quietly)
    os.kill(state_of(installation, "web").pid or 0, signal.SIGKILL)
    assert eventually(lambda: installation.log("once").read_text(encoding="utf-8") == "did it\n" * 2)


@pytest.mark.parametrize(
    ("given", "exempt"),
    [
        ({"no_proxy": "a,b", "NO_PROXY": "c"}, "a,b,127.0.0.1,localhost c,127.0.0.1,localhost"),
        ({"NO_PROXY": "c"}, "c,127.0.0.1,localhost c,127.0.0.1,localhost"),
        ({"no_proxy": "*"}, "* *"),
        ({"no_proxy": ""}, "127.0.0.1,localhost 127.0.0.1,localhost"),
    ],
)
def test_every_process_is_told_that_no_proxy_leads_to_this_machine(
    installation: Installation, given: dict[str, str], exempt: str
) -> None:
    shows = script("shows", "import os; print(os.environ['no_proxy'], os.environ['NO_PROXY'])", one_shot=True)
    start_and_wait(installation, (replace(shows, environment=given),), quietly)
    assert installation.log("shows").read_text(encoding="utf-8") == f"{exempt}\n"


def test_a_long_log_is_put_aside_when_its_process_starts(installation: Installation) -> None:
    log = installation.log("once")
    log.touch()
    os.truncate(log, LONGEST_LOG_BYTES + 1)
    start_and_wait(installation, (script("once", "print('did it')", one_shot=True),), quietly)
    assert log.read_text(encoding="utf-8") == "did it\n"
    assert log.with_suffix(".log.1").stat().st_size == LONGEST_LOG_BYTES + 1


def test_a_log_that_grows_too_long_is_put_aside_while_its_process_runs(installation: Installation) -> None:
    log = installation.log("talks")
    start_and_wait(installation, (script("talks", TALKS.format(str(installation.home / "go"))),), quietly)
    os.truncate(log, LONGEST_LOG_BYTES + 1)
    assert eventually(lambda: log.stat().st_size == 0)
    (installation.home / "go").touch()
    assert eventually(lambda: log.read_text(encoding="utf-8") == "goes on\n")
    assert log.with_suffix(".log.1").stat().st_size == LONGEST_LOG_BYTES + 1


def test_what_keeps_failing_ends_everything_and_shows_the_end_of_its_log(installation: Installation) -> None:
    broken = script("broken", "raise SystemExit('no such table')")
    with pytest.raises(SetupError, match=r"(?s)broken ended 3 times in a row; the end of .*broken.log:.*no such table"):
        start_and_wait(installation, (server("web", port=free_port()), broken), quietly)
    assert marked(installation.identity) == {}


def test_what_does_not_become_healthy_is_named_after_a_while(installation: Installation) -> None:
    deaf = replace(script("deaf", FOREVER), health=heartbeat_url(str(installation.home / "never"), seconds=60))
    after = script("after", "", one_shot=True)
    described = (replace(after, depends_on=("deaf",)), deaf)
    with pytest.raises(SetupError, match=r"deaf did not become healthy, and nothing changed for 0:00:03"):
        start_and_wait(installation, described, quietly, silence=timedelta(seconds=3))
    assert marked(installation.identity) == {}


def test_an_interrupted_up_leaves_no_process(installation: Installation) -> None:
    def interrupt(states: list[ProcessState]) -> None:
        if any(state.pid for state in states):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_and_wait(installation, (server("web", port=free_port()),), interrupt)
    assert marked(installation.identity) == {}


@pytest.mark.parametrize("ending", [SetupError, KeyboardInterrupt])
def test_an_up_that_finds_a_running_installation_ends_none_of_it(
    installation: Installation, ending: type[BaseException]
) -> None:
    def interrupt(_states: list[ProcessState]) -> None:
        raise KeyboardInterrupt

    ends = installation.home / "ends"
    consumer = script("consumer", ENDS_WITH_FILE.format(str(ends)))
    start_and_wait(installation, (server("web", port=free_port()), consumer), quietly)
    ends.touch()
    assert eventually(lambda: state_of(installation, "consumer").failures >= MANY_FAILURES)
    before = state_of(installation, "web").pid
    on_states: OnStates = quietly if ending is SetupError else interrupt
    folder = installation.home.parent
    with pytest.raises(ending):
        up(shop_settings(folder), config=folder / "pipeline.yml", home=installation.home, on_states=on_states)
    assert is_up(installation)
    assert (state_of(installation, "web").pid, state_of(installation, "web").condition) == (before, Condition.HEALTHY)
    ends.unlink()
    assert eventually(lambda: state_of(installation, "consumer").condition is Condition.HEALTHY)


def test_an_up_for_another_file_than_the_one_that_runs_is_refused(installation: Installation) -> None:
    folder = installation.home.parent
    consumer = replace(script("consumer", FOREVER), environment={"CDC_CONFIG": str(folder / "pipeline.yml")})
    start_and_wait(installation, (consumer,), quietly)
    (folder / "same.yml").symlink_to("pipeline.yml")
    up(shop_settings(folder), config=folder / "same.yml", home=installation.home, on_states=quietly)
    with pytest.raises(SettingsError, match=r"runs .*/pipeline\.yml; .*other\.yml.*CDC_HOME"):
        up(shop_settings(folder), config=folder / "other.yml", home=installation.home, on_states=quietly)
    assert is_up(installation)


def test_down_ends_descendants_that_ignore_it_also_when_the_supervisor_was_killed(installation: Installation) -> None:
    start_and_wait(installation, (script("stubborn", STUBBORN),), quietly)
    everyone = marked(installation.identity)
    assert sorted(everyone.values()) == ["stubborn", "stubborn", SUPERVISOR]
    supervisor = next(process for process, name in everyone.items() if name == SUPERVISOR)
    supervisor.kill()
    assert eventually(lambda: not is_up(installation))
    assert state_of(installation, "stubborn").condition is Condition.LOST
    assert down(installation.home) == 2
    assert state_of(installation, "stubborn").condition is Condition.DOWN
    assert marked(installation.identity) == {}


def test_down_leaves_the_processes_of_others_alone(installation: Installation) -> None:
    other = marks("another installation", "web")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=os.environ | other) as stranger:
        assert down(installation.home) == 0
        assert stranger.poll() is None
        stranger.communicate(b"\n")
