"""Ends a long-running command within five seconds of SIGTERM or SIGINT."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

STOPPING = (signal.SIGTERM, signal.SIGINT)
GRACE_SECONDS = 4.0
_LAST_RESORT_SECONDS = 0.5


@contextmanager
def stopped_in_time() -> Iterator[Event]:
    """Yields an event that SIGTERM and SIGINT set. A process that still runs GRACE_SECONDS later is ended."""
    stop = Event()
    for number in STOPPING:
        signal.signal(number, lambda *_: stop.set())
    with _ended_in_time("changes that were not registered are read again", stop):
        yield stop


@contextmanager
def left_in_time() -> Iterator[None]:
    """SIGTERM and SIGINT leave the block like an error: leases are released and work in Spark is cancelled.

    A process that still runs GRACE_SECONDS later is ended. All that it did is safe to repeat.
    """
    from cdc_pipeline.wiring import left_on_termination

    with (
        _ended_in_time("run the command again: it continues where this one stopped", Event()),
        left_on_termination(),
    ):
        yield


@contextmanager
def read_in_time() -> Iterator[None]:
    """For commands that only read: SIGTERM ends them at once, SIGINT within GRACE_SECONDS."""
    with _ended_in_time("nothing was changed", Event()):
        yield


@contextmanager
def _ended_in_time(remedy: str, stop: Event) -> Iterator[None]:
    """Ends the process GRACE_SECONDS after a signal, also while it waits in C code. Only for work that is safe to kill.

    Python runs signal handlers between two instructions. A database driver that waits in C for a server or for a lock
    may never reach the next instruction. So the signal's number goes through a pipe to a thread that waits for it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    Thread(target=_end_in_time, args=(reader, stop, remedy), name="ending", daemon=True).start()
    try:
        yield
    finally:
        if not stop.is_set():
            signal.set_wakeup_fd(before)


def _end_in_time(reader: int, stop: Event, remedy: str) -> None:
    """Waits for a signal, then for the grace period, then exits.

    The alarm has no handler: it ends a process whose interpreter is already shutting down.
    """
    number = os.read(reader, 1)[0]
    stop.set()
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS + _LAST_RESORT_SECONDS)
    threading.Event().wait(GRACE_SECONDS)
    print(f"ended while waiting for a server; {remedy}", file=sys.stderr, flush=True)
    os._exit(128 + number)
