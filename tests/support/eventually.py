"""Waiting for what another process will do, with a timeout."""

import subprocess
import threading
import time
from collections.abc import Callable

from cdc_pipeline.settings.installation.ports import is_listening

TIMEOUT_SECONDS = 60


def eventually(condition: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> bool:
    """Whether the condition came true in time; it is asked twenty times a second."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.05)
    return True


def await_listener(
    process: "subprocess.Popen[bytes]", port: int, seconds: float, said: Callable[[], str] = str
) -> None:
    """Fails with what the process has said when it ends first, or does not listen in time."""
    assert eventually(lambda: process.poll() is not None or is_listening(port), seconds), said()
    assert process.poll() is None, said()
