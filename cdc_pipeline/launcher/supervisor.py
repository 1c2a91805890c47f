"""The supervisor: starts the planned processes in order, restarts those that die or hang, and stores their states.

    python -m cdc_pipeline.launcher.supervisor HOME

It never ends processes at shutdown: `down` does that by their mark, and ends the supervisor first. A disk without room
does not end it: what it could not start or store it tries again.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

import structlog

from cdc_pipeline.launcher.account import server_account
from cdc_pipeline.launcher.health import Health, forget, health_of, unanswered
from cdc_pipeline.launcher.launch import kill, kill_idle_workers, opened_log, shorten_each, start, without_proxy
from cdc_pipeline.launcher.marked import SUPERVISOR, marks
from cdc_pipeline.launcher.probe import Probe
from cdc_pipeline.launcher.processes import Process
from cdc_pipeline.settings.installation.state import Installation, open_installation, write_document

log = structlog.get_logger()

FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=60)
SETTLED = timedelta(seconds=3)
CALM = timedelta(seconds=10)
"""After running this long, a process that dies is restarted after the shortest pause, however often it died before."""
POLL = timedelta(seconds=0.2)


class Condition(StrEnum):
    """WAITING: for a dependency or for the pause before a restart. DONE: a one-shot that succeeded.

    Without a supervisor: LOST still runs, but nothing would restart it; DOWN does not run.
    """

    WAITING = "waiting"
    STARTING = "starting"
    HEALTHY = "healthy"
    DONE = "done"
    LOST = "lost"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """`since`: Unix time of the last change. `failures`: ends in a row. `exit_code`: of the last end."""

    name: str
    waits_for: str
    condition: Condition
    pid: int | None
    since: float
    failures: int
    exit_code: int | None

    @property
    def is_ready(self) -> bool:
        return self.condition in (Condition.HEALTHY, Condition.DONE)


class Keeper:
    """Starts one process, watches it and restarts it. The supervisor calls `tend` several times a second."""

    def __init__(
        self,
        process: Process,
        launch: Callable[[Process], "subprocess.Popen[bytes]"],
        *,
        calm: timedelta = CALM,
        ask: Callable[[str], Health] = health_of,
    ) -> None:
        self.process = process
        self._launch = launch
        self._calm = calm
        self._ask = ask
        self._probe = self._new_probe()
        self._child: subprocess.Popen[bytes] | None = None
        self._condition = Condition.WAITING
        self._since = time.time()
        self._failures = 0
        self._exit_code: int | None = None
        self._started = 0.0
        self._not_before = 0.0

    @property
    def state(self) -> ProcessState:
        return ProcessState(
            name=self.process.name,
            waits_for=self.process.waits_for,
            condition=self._condition,
            pid=None if self._child is None else self._child.pid,
            since=self._since,
            failures=self._failures,
            exit_code=self._exit_code,
        )

    @property
    def _age(self) -> float:
        return time.monotonic() - self._started

    def tend(self, ready: set[str]) -> None:
        if self._condition is Condition.DONE:
            if self.process.repeats and not ready.issuperset(self.process.depends_on):
                self._become(Condition.WAITING)
            return
        if self._child is None:
            if time.monotonic() >= self._not_before and ready.issuperset(self.process.depends_on):
                self._begin()
            return
        exit_code = self._child.poll()
        if exit_code is not None:
            self._ended(exit_code)
        elif self._condition is Condition.STARTING and not self.process.one_shot and self._is_healthy():
            self._become(Condition.HEALTHY)
        elif self._condition is Condition.HEALTHY and self._hangs():
            self._kill(self._child)
        elif self._condition is Condition.HEALTHY and timedelta(seconds=self._age) > self._calm:
            self._failures = 0

    def _begin(self) -> None:
        self._probe = self._new_probe()
        try:
            forget(self.process.health)
            self._child = self._launch(self.process)
        except OSError as error:
            report("not started", process=self.process.name, error=str(error))
            self._ended(None)
            return
        self._started = time.monotonic()
        self._become(Condition.STARTING)

    def _new_probe(self) -> Probe:
        url = self.process.health or ""
        return Probe(lambda: self._ask(url), unanswered=unanswered(url))

    def _is_healthy(self) -> bool:
        if self.process.health is None:
            return timedelta(seconds=self._age) > SETTLED
        return self._probe.answers()

    def _hangs(self) -> bool:
        return self.process.health is not None and self._probe.hangs(silence=self.process.silence)

    def _kill(self, child: "subprocess.Popen[bytes]") -> None:
        """Kills a process that hangs. A later `tend` sees its end."""
        report(
            "killed because it does not answer",
            process=self.process.name,
            pid=child.pid,
            waits_for=self.process.waits_for,
            seconds=self.process.silence,
        )
        kill(child)
        self._probe = self._new_probe()

    def _ended(self, exit_code: int | None) -> None:
        """`exit_code`: None for a process that could not be started."""
        if self._child is not None:
            kill_idle_workers(self._child.pid)
        self._child, self._exit_code = None, exit_code
        if self.process.one_shot and exit_code == 0:
            self._failures = 0
            self._become(Condition.DONE)
            return
        self._not_before = time.monotonic() + pause_after(self._failures).total_seconds()
        self._failures += 1
        self._become(Condition.WAITING)

    def _become(self, condition: Condition) -> None:
        self._condition, self._since = condition, time.time()


def pause_after(failures: int) -> timedelta:
    """Returns the pause before a process that ended is started again; `failures`: how often in a row it did before."""
    doublings = min(failures, 6)  # 1 << failures would overflow after an hour
    return min(FIRST_PAUSE * (1 << doublings), LONGEST_PAUSE)


def supervise(keepers: Iterable[Keeper], store: Callable[[list[ProcessState]], None], logs: Collection[Path]) -> None:
    """Runs forever and calls `store` after each change. Processes keep running while a dependency restarts.

    States that could not be stored are stored as soon as that is possible. `logs`: those that are kept short.
    """
    everyone, stored, reported, not_before = list(keepers), None, "", 0.0
    while True:
        ready = {keeper.process.name for keeper in everyone if keeper.state.is_ready}
        for keeper in everyone:
            keeper.tend(ready)
        states = [keeper.state for keeper in everyone]
        if states != stored:
            try:
                store(states)
                stored, reported = states, ""
            except OSError as error:
                if reported != str(error):
                    report("states not stored", error=str(error))
                reported = str(error)
        not_before = shorten_each(logs, not_before)
        time.sleep(POLL.total_seconds())


def report(event: str, **values: object) -> None:
    """Logs an error. The log may lie on the disk that has no room."""
    with suppress(OSError):
        log.error(event, **values)


def launcher(installation: Installation, mark: str) -> Callable[[Process], "subprocess.Popen[bytes]"]:
    """Returns a function that starts a process of the installation, with the mark and a log of its own."""
    account = server_account()

    def launch(process: Process) -> "subprocess.Popen[bytes]":
        environment = without_proxy({**os.environ, **process.environment}) | marks(mark, process.name)
        if process.scratch is not None:
            shutil.rmtree(process.scratch, ignore_errors=True)
        with opened_log(installation.log(process.name)) as output:
            return start(
                list(process.command),
                environment=environment,
                folder=Path("/") if process.as_server_account else installation.home,
                output=output,
                account=account if process.as_server_account else None,
            )

    return launch


def read_plan(path: Path) -> list[Process]:
    documents = json.loads(path.read_text(encoding="utf-8"))
    return [
        Process(**{**document, "command": tuple(document["command"]), "depends_on": tuple(document["depends_on"])})
        for document in documents
    ]


def main() -> None:
    """Forks: the parent returns at once, the child is the supervisor."""
    if os.fork():
        return
    installation = open_installation(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    launch = launcher(installation, installation.identity)
    keepers = [Keeper(process, launch) for process in read_plan(installation.plan)]
    supervise(
        keepers,
        lambda states: write_document(installation.processes, [asdict(state) for state in states]),
        [installation.log(name) for name in (SUPERVISOR, *(keeper.process.name for keeper in keepers))],
    )


if __name__ == "__main__":
    main()
