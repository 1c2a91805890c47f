"""Starts and ends all processes of one installation, and reports their states."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from cdc_pipeline.errors import SettingsError, SetupError
from cdc_pipeline.launcher.launch import log_end
from cdc_pipeline.launcher.marked import SUPERVISOR, end_marked, marked, marks
from cdc_pipeline.launcher.planning import plan
from cdc_pipeline.launcher.processes import POSTGRES, Process
from cdc_pipeline.launcher.supervisor import POLL, Condition, ProcessState
from cdc_pipeline.launcher.users import nobody_uses, source_mark
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.endpoints import Endpoints, endpoints_of
from cdc_pipeline.settings.installation.state import (
    PORT_NAMES,
    Installation,
    exclusive,
    open_installation,
    write_document,
)

MANY_FAILURES = 3
LONGEST_SILENCE = timedelta(minutes=15)
"""For so long `up` waits although the state of no process changes."""
OnStates = Callable[[list[ProcessState]], None]


def up(settings: Settings, *, config: Path, home: Path, on_states: OnStates, later: Collection[str] = ()) -> Endpoints:
    """Starts all processes and returns when they are healthy. On a failure or Ctrl-C it ends what it has started.

    If they run already, it only waits until they are healthy: whatever happens then, they go on.
    `on_states` is called after each change of their states. `later`: names of processes that it does not wait for.
    Raises SettingsError if they run for another pipeline.yml.
    """
    open_installation(home)
    with exclusive(home / "up.lock"):
        installation = open_installation(home)  # another `up` may have replaced ports meanwhile
        if not is_up(installation):
            with nobody_uses(installation):
                end_marked(installation.identity, last=POSTGRES)
                installation, described = plan(settings, config=config, installation=installation, free=PORT_NAMES)
                start_and_wait(installation, described, on_states, later)
        else:
            _check_runs_for(config, installation)
            _wait(installation, on_states, later, LONGEST_SILENCE)
    return endpoints_of(settings, installation)


def start_and_wait(
    installation: Installation,
    described: tuple[Process, ...],
    on_states: OnStates,
    later: Collection[str] = (),
    *,
    silence: timedelta = LONGEST_SILENCE,
) -> None:
    """Starts a supervisor for the processes, detached from this terminal, and waits until all are healthy.

    `later`: names of processes that it does not wait for. `silence`: for how long it waits although nothing changes.
    """
    write_document(installation.plan, [_document(process) for process in described])
    installation.processes.unlink(missing_ok=True)
    try:
        with installation.log(SUPERVISOR).open("ab") as output:
            subprocess.run(
                [sys.executable, "-m", "cdc_pipeline.launcher.supervisor", str(installation.home)],
                env={**os.environ, **marks(installation.identity, SUPERVISOR)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=installation.home,
                start_new_session=True,
                check=True,
            )
    except BaseException:
        end_marked(installation.identity, last=POSTGRES)
        raise
    try:
        _wait(installation, on_states, later, silence)
    except BaseException:
        end_marked(installation.identity, last=POSTGRES)
        raise


def down(home: Path) -> int:
    """Ends exactly the processes of this installation and returns their number, which may be zero."""
    if not (home / "installation.json").exists():
        return 0
    installation = open_installation(home)
    ended = end_marked(installation.identity, last=POSTGRES)
    return ended + end_marked(source_mark(installation), last="")


def is_up(installation: Installation) -> bool:
    return SUPERVISOR in marked(installation.identity).values()


def process_states(home: Path) -> list[ProcessState]:
    """The states as the supervisor saw them last. Without a live supervisor each is LOST or DOWN."""
    installation = open_installation(home)
    alive = marked(installation.identity)
    seen = _seen(installation)
    if SUPERVISOR in alive.values():
        return seen
    running = {name: process.pid for process, name in alive.items()}
    return [
        replace(
            state, pid=running.get(state.name), condition=Condition.LOST if state.name in running else Condition.DOWN
        )
        for state in seen
    ]


def _check_runs_for(config: Path, installation: Installation) -> None:
    environments = [process["environment"] for process in json.loads(installation.plan.read_text(encoding="utf-8"))]
    planned = next((found["CDC_CONFIG"] for found in environments if "CDC_CONFIG" in found), None)
    if planned is not None and Path(planned).resolve() != config.resolve():
        raise SettingsError(
            f"the state folder {installation.home} runs {planned}",
            expected=f"no other pipeline in the state folder of {config}",
            remedy="set CDC_HOME to another folder, or run `cdc down` first",
        )


def _document(process: Process) -> dict[str, object]:
    return {name: getattr(process, name) for name in Process.__slots__}


def _seen(installation: Installation) -> list[ProcessState]:
    if not installation.processes.exists():
        return []
    documents = json.loads(installation.processes.read_text(encoding="utf-8"))
    return [ProcessState(**{**document, "condition": Condition(document["condition"])}) for document in documents]


def _wait(installation: Installation, on_states: OnStates, later: Collection[str], silence: timedelta) -> None:
    known, changed = list[ProcessState](), time.monotonic()
    while not known or not all(state.is_ready for state in known if state.name not in later):
        states = _seen(installation)
        if states != known:
            on_states(states)
            known, changed = states, time.monotonic()
        broken = next((state for state in states if state.failures >= MANY_FAILURES), None)
        if broken is not None:
            raise failure(installation, broken.name, f"{broken.name} ended {broken.failures} times in a row")
        if not is_up(installation):
            raise failure(installation, SUPERVISOR, "the supervisor has ended")
        if time.monotonic() - changed > silence.total_seconds():
            name = _awaited(states, later)
            raise failure(installation, name, f"{name} did not become healthy, and nothing changed for {silence}")
        time.sleep(POLL.total_seconds())


def _awaited(states: list[ProcessState], later: Collection[str]) -> str:
    """The process that the others wait for."""
    unready = [state for state in states if not state.is_ready and state.name not in later]
    begun = [state for state in unready if state.condition is Condition.STARTING]
    return next((state.name for state in (*begun, *unready)), SUPERVISOR)


def failure(installation: Installation, name: str, found: str) -> SetupError:
    log = installation.log(name)
    return SetupError(
        f"{found}; the end of {log}:\n{log_end(log)}", remedy="correct what it names and run `cdc up` again"
    )
