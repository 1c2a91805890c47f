"""Finding and ending the processes of one installation, by the mark that all their descendants inherit."""

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
    """Variables that mark a process and everything that it starts; the last keeps titles from writing over them."""
    return {STACK_VARIABLE: identity, PROCESS_VARIABLE: process, "SPT_NOENV": "1"}


def marked(identity: str) -> dict[psutil.Process, str]:
    """Live processes with the mark, and the name of the part that each belongs to; never the caller or its parents."""
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
    """End the supervisor first, the part called `last` last; returns how many processes there were.

    Returns only when none is left. What ignores SIGTERM is killed; `last` is asked by SIGINT at its top process alone.
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
    """Ask, wait, kill, and look again until nobody is found: a fork may have slipped through the first look."""
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
    """The start time is compared, so that a number that was given away again is never hit."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
