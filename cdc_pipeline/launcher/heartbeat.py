"""A heartbeat file: shows that the main loop of a process without clients makes progress."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from cdc_pipeline.steps import Moment

HEARTBEAT_VARIABLE = "CDC_HEARTBEAT"
"""Path of the file. Without this variable no file is written."""
_SHORTEST_PAUSE_SECONDS = 1.0


class Heartbeat:
    """Only the working thread touches the file, so a thread that hangs stops the heartbeat."""

    def __init__(self, environment: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        found = environment.get(HEARTBEAT_VARIABLE)
        self._path = Path(found) if found else None
        self._clock = clock
        self._due = clock()

    def beat(self) -> None:
        """Touches the file at most once a second. Errors are ignored: a full disk must not stop the work."""
        if self._path is None or self._clock() < self._due:
            return
        self._due = self._clock() + _SHORTEST_PAUSE_SECONDS
        with suppress(OSError):
            self._path.touch()

    def on_step(self, _name: str, _moment: Moment) -> None:
        """Beats before and after each step, also while the stream is opened and while a cut is registered."""
        self.beat()
