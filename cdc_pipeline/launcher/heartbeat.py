"""The file by which a process that no client connects to shows that its main loop goes round."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from cdc_pipeline.steps import Moment

HEARTBEAT_VARIABLE = "CDC_HEARTBEAT"
"""Where the file is to lie; whoever is not told writes none."""
_SHORTEST_PAUSE_SECONDS = 1.0


class Heartbeat:
    """Touched by the thread that does the work, and by no other: what it waits for stands still with it."""

    def __init__(self, environment: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        found = environment.get(HEARTBEAT_VARIABLE)
        self._path = Path(found) if found else None
        self._clock = clock
        self._due = clock()

    def beat(self) -> None:
        """At most once a second the file is touched. A disk that is full is no reason to stop the work."""
        if self._path is None or self._clock() < self._due:
            return
        self._due = self._clock() + _SHORTEST_PAUSE_SECONDS
        with suppress(OSError):
            self._path.touch()

    def on_step(self, _name: str, _moment: Moment) -> None:
        """Before and after each call to the outside, while the stream is opened and while a cut is registered."""
        self.beat()
