"""Waiting for what others do, with an end to the patience."""

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

Found = TypeVar("Found")
PATIENCE_SECONDS = 600


def wait_for(find: Callable[[], Found | None], what: str, seconds: float = PATIENCE_SECONDS) -> Found:
    """What `find` gives at last, asked five times a second."""
    deadline, pause = time.monotonic() + seconds, Event()
    while not (found := find()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        pause.wait(0.2)
    return found
