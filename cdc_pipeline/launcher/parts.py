"""Servers for a single command: missing ones are started, and the last command that uses them ends them."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.control import failure, process_states
from cdc_pipeline.launcher.health import is_healthy
from cdc_pipeline.launcher.marked import SUPERVISOR, marked
from cdc_pipeline.launcher.planning import plan
from cdc_pipeline.launcher.processes import DATABASES, POSTGRES, SPARK, Process, with_dependencies
from cdc_pipeline.launcher.supervisor import launcher
from cdc_pipeline.launcher.users import one_user, parts_mark, watch
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.endpoints import Endpoints, endpoints_of
from cdc_pipeline.settings.installation.state import Installation, exclusive, open_installation
from cdc_pipeline.settings.work import EMBEDDED

TIMEOUT_SECONDS = 180
POLL_SECONDS = 0.1
PORTS = {"postgres": POSTGRES, "spark": SPARK}
Launch = Callable[[Process], "subprocess.Popen[bytes]"]


@contextmanager
def running(settings: Settings, *, config: Path, home: Path, parts: frozenset[str]) -> Iterator[Endpoints]:
    """Inside the block the named processes and their dependencies run. External servers are left alone.

    Only missing processes are started; `postgres` includes its databases. The last command that leaves the block ends
    what commands have started. Processes of the stack itself know every server by URL, so nothing is embedded for them.
    Raises SetupError if one of them runs without its supervisor.
    """
    installation = open_installation(home)
    wanted = _embedded(settings, parts)
    if not wanted:
        yield endpoints_of(settings, installation)
        return
    with ExitStack() as started, one_user(installation) as users:
        alive = set(marked(installation.identity).values())
        if SUPERVISOR in alive:
            users.close()
            _wait_until(lambda: _are_ready(home, wanted), installation, "the stack")
        else:
            _refuse_left_over(alive & wanted)
            _start_missing(settings, config, home, wanted, started)
        yield endpoints_of(settings, open_installation(home))


def _embedded(settings: Settings, parts: frozenset[str]) -> frozenset[str]:
    """Those of the parts that this installation starts itself."""
    wanted = parts | {DATABASES} if POSTGRES in parts else parts
    if not settings.embeds_source and settings.metadata_store != EMBEDDED:
        wanted -= {POSTGRES, DATABASES}
    return wanted if settings.spark == EMBEDDED else wanted - {SPARK}


def _refuse_left_over(left: set[str]) -> None:
    """A second server on the same data would get another port, which would be stored."""
    if left:
        raise SetupError(
            f"{' and '.join(sorted(left))} of this installation runs without its supervisor",
            expected="processes that `cdc up` keeps running, or none of them",
            remedy="wait for a `cdc down` that is at work; otherwise run `cdc up`",
        )


def _start_missing(settings: Settings, config: Path, home: Path, wanted: frozenset[str], started: ExitStack) -> None:
    """Starts missing processes. `started` gets callbacks that reap children of this process which have ended."""
    with exclusive(home / "parts.lock"):
        installation = open_installation(home)  # another command may have replaced ports meanwhile
        present = set(marked(parts_mark(installation)).values())
        free = [port for port, name in PORTS.items() if name not in present]
        renewed, described = plan(settings, config=config, installation=installation, free=free)
        launch = launcher(renewed, parts_mark(renewed))
        for process in with_dependencies(described, wanted):
            if process.one_shot:
                _run(process, renewed, launch)
            elif process.name in present:  # it may still start: a command that waited for it may have been killed
                _await_present(process, renewed)
            else:
                watcher = watch(renewed)
                if watcher is not None:
                    started.callback(watcher.poll)
                _start(process, renewed, launch, started)


def _run(process: Process, installation: Installation, launch: Launch) -> None:
    exit_code = launch(process).wait()
    if exit_code:
        raise failure(installation, process.name, f"{process.name} ended with {exit_code}")


def _start(process: Process, installation: Installation, launch: Launch, started: ExitStack) -> None:
    child = launch(process)
    started.callback(child.poll)

    def answers() -> bool:
        if child.poll() is not None:
            raise failure(installation, process.name, f"{process.name} ended with {child.returncode}")
        return _answers(process)

    _wait_until(answers, installation, process.name)


def _await_present(process: Process, installation: Installation) -> None:
    """Waits for a server that another command started. Raises SetupError as soon as no process of it is left."""

    def answers() -> bool:
        if _answers(process):
            return True
        if process.name not in marked(parts_mark(installation)).values():
            raise failure(installation, process.name, f"{process.name} ended while it started")
        return False

    _wait_until(answers, installation, process.name)


def _answers(process: Process) -> bool:
    return process.health is None or is_healthy(process.health)


def _are_ready(home: Path, parts: frozenset[str]) -> bool:
    states = process_states(home)
    return bool(states) and all(state.is_ready for state in states if state.name in parts)


def _wait_until(condition: Callable[[], bool], installation: Installation, name: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SetupError(
                f"{name} is not healthy after {TIMEOUT_SECONDS} s", remedy=f"read {installation.home / 'logs'}"
            )
        time.sleep(POLL_SECONDS)
