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


@contextmanager
def stopped_in_time() -> Iterator[Event]:
    """The event is set by SIGTERM and SIGINT. A process that has not ended GRACE_SECONDS later is ended then."""
    stop = Event()
    for number in STOPPING:
        signal.signal(number, lambda *_: stop.set())
    with _ended_in_time("what was not registered is read again", stop):
        yield stop


@contextmanager
def left_in_time() -> Iterator[None]:
    """SIGTERM leaves the block like an error: leases are released, and what runs in Spark is cancelled.

    So does SIGINT. A process that has not ended GRACE_SECONDS later is ended then; what it did is safe to repeat.
    """
    from cdc_pipeline.wiring import left_on_termination

    with _ended_in_time("run the same command again: it goes on from what is done", Event()), left_on_termination():
        yield


@contextmanager
def _ended_in_time(words: str, stop: Event) -> Iterator[None]:
    """Of what may be killed anywhere.

    Python runs a handler between two of its instructions, which a driver that waits in C for a server or for a lock
    may never reach. The number of a signal is written to the pipe at once, and a thread of its own reads it there.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    Thread(target=_end_in_time, args=(reader, stop, words), name="ending", daemon=True).start()
    try:
        yield
    finally:
        if not stop.is_set():
            signal.set_wakeup_fd(before)


def _end_in_time(reader: int, stop: Event, words: str) -> None:
    """The alarm, which nobody handles, ends a process whose interpreter is being taken down already."""
    number = os.read(reader, 1)[0]
    stop.set()
    signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS + _LAST_RESORT_SECONDS)
    threading.Event().wait(GRACE_SECONDS)
    print(f"ended while it waited for a server; {words}", file=sys.stderr, flush=True)
    os._exit(128 + number)
