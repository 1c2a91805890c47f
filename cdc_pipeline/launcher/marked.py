"""Finds and ends the processes of one installation by a mark in their environment, which descendants inherit."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import psutil

STACK_VARIABLE = "CDC_STACK"
PROCESS_VARIABLE = "CDC_PROCESS"
SUPERVISOR = "supervisor"
GRACE = timedelta(seconds=10)
POSTGRES_GRACE = timedelta(seconds=60)


def marks(identity: str, process: str) -> dict[str, str]:
    """Variables that mark a process and its descendants. SPT_NOENV keeps process titles from overwriting them."""
    return {STACK_VARIABLE: identity, PROCESS_VARIABLE: process, "SPT_NOENV": "1"}


def marked(identity: str) -> dict[psutil.Process, str]:
    """Live processes with the mark -> name of the part they belong to. Without the caller and its parents."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: dict[psutil.Process, str] = {}
    for process in psutil.process_iter():
        try:
            if process.pid in own or process.status() == psutil.STATUS_ZOMBIE:
                continue
            environment = process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if environment.get(STACK_VARIABLE) == identity:
            found[process] = environment.get(PROCESS_VARIABLE, "")
    return found


def end_marked(identity: str, *, last: str) -> int:
    """Ends all marked processes and returns their number. Returns only when none is left.

    The supervisor ends first, the part called `last` at the end. A process that ignores SIGTERM is killed. Of `last`,
    only the topmost process gets a signal: SIGINT.
    """
    ended = _end(lambda: [p for p, name in marked(identity).items() if name == SUPERVISOR], signal.SIGTERM, GRACE)
    ended += _end(lambda: [p for p, name in marked(identity).items() if name != last], signal.SIGTERM, GRACE)
    return ended + _end(lambda: _tops(marked(identity)), signal.SIGINT, POSTGRES_GRACE)


def _tops(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    everyone = list(processes)
    numbers = {process.pid for process in everyone}
    return [process for process in everyone if _parent_of(process) not in numbers]


def _parent_of(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return 0


def _end(find: Callable[[], list[psutil.Process]], ending: signal.Signals, grace: timedelta) -> int:
    """Signals, waits, kills, and looks again until none is found: a fork may have been missed at first."""
    ended: set[psutil.Process] = set()
    deadline = time.monotonic() + grace.total_seconds()
    while found := find():
        late = time.monotonic() > deadline
        for process in found:
            if process not in ended or late:
                _send(process, signal.SIGKILL if late else ending)
        ended.update(found)
        psutil.wait_procs(found, timeout=0.2)
    return len(ended)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    """Signals the process. psutil compares start times, so a process id that was reused is not signalled."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
