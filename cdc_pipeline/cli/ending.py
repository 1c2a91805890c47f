"""How a command that runs for long is asked to end, and that it does."""

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


def stop_on_signals() -> Event:
    """Set by SIGTERM and SIGINT."""
    stop = Event()
    for number in STOPPING:
        signal.signal(number, lambda *_: stop.set())
    return stop


@contextmanager
def stopped_in_time() -> Iterator[Event]:
    """The same for what may be killed anywhere: a process that has not ended GRACE_SECONDS later is ended then.

    Python runs a handler between two of its instructions, which a driver that waits in C for a server or for a lock
    may never reach. The number of a signal is written to the pipe at once, and a thread of its own reads it there.
    """
    stop = stop_on_signals()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    Thread(target=_end_in_time, args=(reader, stop), name="ending", daemon=True).start()
    try:
        yield stop
    finally:
        if not stop.is_set():
            signal.set_wakeup_fd(before)


def _end_in_time(reader: int, stop: Event) -> None:
    """The alarm, which nobody handles, ends a process whose interpreter is being taken down already."""
    number = os.read(reader, 1)[0]
    stop.set()
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS + _LAST_RESORT_SECONDS)
    threading.Event().wait(GRACE_SECONDS)
    print("ended while it waited for a server; what was not registered is read again", file=sys.stderr, flush=True)
    os._exit(128 + number)
