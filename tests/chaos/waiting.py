"""Waiting for what others do, with a timeout, and what goes on meanwhile."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TypeVar

Found = TypeVar("Found")
TIMEOUT_SECONDS = 600


def wait_for(find: Callable[[], Found | None], what: str, seconds: float = TIMEOUT_SECONDS) -> Found:
    """What `find` gives at last, asked five times a second."""
    deadline, pause = time.monotonic() + seconds, Event()
    while not (found := find()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        pause.wait(0.2)
    return found


@contextmanager
def beside(work: Callable[[Event], None]) -> Iterator[None]:
    """`work` goes on in a thread until the block ends, which the event tells it."""
    stop = Event()
    thread = Thread(target=work, args=(stop,), name=work.__name__)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
