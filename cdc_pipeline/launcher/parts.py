"""Single parts of an installation for one command: what is missing is started, and ends with its last user."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cdc_pipeline.errors import SetupError
from cdc_pipeline.installation.endpoints import Endpoints, endpoints_of
from cdc_pipeline.installation.state import Installation, exclusive, open_installation
from cdc_pipeline.launcher.account import server_account
from cdc_pipeline.launcher.control import failure, is_up, process_states
from cdc_pipeline.launcher.health import is_healthy
from cdc_pipeline.launcher.launch import start
from cdc_pipeline.launcher.marked import marked, marks
from cdc_pipeline.launcher.planning import plan
from cdc_pipeline.launcher.processes import DATABASES, POSTGRES, SPARK, Process, with_dependencies
from cdc_pipeline.launcher.users import one_user, parts_mark, watch
from cdc_pipeline.settings import EMBEDDED, Settings

TIMEOUT_SECONDS = 180
POLL_SECONDS = 0.1
PORTS = {"postgres": POSTGRES, "spark": SPARK}


@contextmanager
def running(settings: Settings, *, config: Path, home: Path, parts: frozenset[str]) -> Iterator[Endpoints]:
    """The named processes, and what they depend on, are there inside the block; what is external is left alone.

    Only what does not run yet is started. The command that leaves last ends what commands have started; the others
    leave at once. `postgres` brings its databases. The processes of the stack itself are told every server by URL:
    nothing is embedded for them.
    """
    installation = open_installation(home)
    wanted = _embedded(settings, parts)
    if not wanted:
        yield endpoints_of(settings, installation)
        return
    with ExitStack() as started, one_user(installation) as users:
        if is_up(installation):
            users.close()
            _wait_until(lambda: _are_ready(home, wanted), installation, "the stack")
        else:
            installation = _start_missing(settings, config, installation, wanted, started)
        yield endpoints_of(settings, installation)


def _embedded(settings: Settings, parts: frozenset[str]) -> frozenset[str]:
    """What of the parts is this installation's own to start."""
    wanted = parts | {DATABASES} if POSTGRES in parts else parts
    if not settings.embeds_source and settings.metadata_store != EMBEDDED:
        wanted -= {POSTGRES, DATABASES}
    return wanted if settings.spark == EMBEDDED else wanted - {SPARK}


def _start_missing(
    settings: Settings, config: Path, installation: Installation, wanted: frozenset[str], started: ExitStack
) -> Installation:
    """The installation as it is now. Behind `started`, what has ended is no child of this process any more."""
    with exclusive(installation.home / "parts.lock"):
        there = set(marked(parts_mark(installation)).values())
        free = [port for port, name in PORTS.items() if name not in there]
        renewed, described = plan(settings, config=config, installation=installation, free=free)
        for process in with_dependencies(described, wanted):
            if process.one_shot:
                _run(process, renewed)
            elif process.name not in there:
                watcher = watch(renewed)
                if watcher is not None:
                    started.callback(watcher.poll)
                _start(process, renewed, started)
    return renewed


def _launch(process: Process, installation: Installation) -> "subprocess.Popen[bytes]":
    account = server_account() if process.as_server_account else None
    with installation.log(process.name).open("ab") as output:
        return start(
            list(process.command),
            environment={**os.environ, **process.environment, **marks(parts_mark(installation), process.name)},
            folder=Path("/") if process.as_server_account else installation.home,
            output=output,
            account=account,
        )


def _run(process: Process, installation: Installation) -> None:
    exit_code = _launch(process, installation).wait()
    if exit_code:
        raise failure(installation, process.name, f"{process.name} ended with {exit_code}")


def _start(process: Process, installation: Installation, started: ExitStack) -> None:
    child = _launch(process, installation)
    started.callback(child.poll)

    def answers() -> bool:
        if child.poll() is not None:
            raise failure(installation, process.name, f"{process.name} ended with {child.returncode}")
        return process.health is None or is_healthy(process.health)

    _wait_until(answers, installation, process.name)


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
