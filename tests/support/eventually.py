"""Waiting for what another process will do, with an end to the patience."""

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 60


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition came true in time; it is asked twenty times a second."""
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.05)
    return True
