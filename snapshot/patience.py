"""For how long a run waits for a server that does not answer."""

import time
from datetime import timedelta

from cdc_pipeline.errors import CdcError

LONGEST_AWAY = timedelta(minutes=5)


class Patience:
    """Waits for a server as long as `longest` after the first call in a row that it did not answer."""

    def __init__(self, longest: timedelta) -> None:
        self._longest = longest.total_seconds()
        self._since: float | None = None

    def answered(self) -> None:
        self._since = None

    def endure(self, error: CdcError) -> None:
        """Takes note of a call without an answer. Raises `error` if that has gone on for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._longest:
            raise error
