"""Gives each thread a lake of its own: one Spark session must not be used by two threads at the same time."""

import time
from collections.abc import Callable
from datetime import timedelta
from threading import Lock, local
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_pipeline.lake.spark_lake import SparkLake

LONGEST_IDLE = timedelta(minutes=10)
"""The Spark server ends a session that was idle for an hour. The next call in that session would fail."""


class LakePerThread:
    """Opens a lake at a thread's first call and keeps it. A session that was idle for long is replaced."""

    def __init__(self, open_lake: "Callable[[], SparkLake]", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._open = open_lake
        self._clock = clock
        self._own = local()
        self._lock = Lock()
        self._opened: list[SparkLake] = []

    def __call__(self) -> "SparkLake":
        """Returns the lake of the calling thread."""
        now = self._clock()
        lake: SparkLake | None = getattr(self._own, "lake", None)
        if lake is None:
            lake = self._own.lake = self._open()
            with self._lock:
                self._opened.append(lake)
        elif now - self._own.used_at > LONGEST_IDLE.total_seconds():
            lake.close()  # it opens a new session when it needs one
        self._own.used_at = now
        return lake

    def close(self) -> None:
        """Ends the sessions of all threads."""
        with self._lock:
            while self._opened:
                self._opened.pop().close()
