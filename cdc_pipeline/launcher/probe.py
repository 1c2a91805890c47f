"""Checks again and again whether a process answers, without waiting for the answer."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from cdc_pipeline.launcher.health import Health

MOST_MISSES = 6
"""Failed checks in a row after which a process counts as hung.

Checks are counted instead of time, so that a machine that was suspended does not kill its processes when it resumes.
"""


class Probe:
    """Runs each check in a thread of its own, so that a check that hangs delays nothing else.

    One check runs at a time. A check that still runs when the next is due counts as `unanswered`.
    """

    def __init__(
        self,
        ask: Callable[[], Health],
        *,
        unanswered: Health = Health.SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._unanswered = unanswered
        self._clock = clock
        self._check: Future[Health] | None = None
        self._due = clock()
        self._misses = 0

    def answers(self) -> bool:
        """Whether a check has succeeded since the last call. If not, and if none runs, starts a check."""
        health = self._answer()
        if self._check is None and health is not Health.HEALTHY:
            self._begin()
        return health is Health.HEALTHY

    def hangs(self, *, silence: float) -> bool:
        """Whether checks have failed for `silence` seconds. A check starts every `silence` / MOST_MISSES seconds."""
        self._judge(self._answer())
        if self._clock() >= self._due:
            self._due = self._clock() + silence / MOST_MISSES
            if self._check is None:
                self._begin()
            else:
                self._judge(self._unanswered)
        return self._misses >= MOST_MISSES

    def _judge(self, health: Health | None) -> None:
        if health is Health.SILENT:
            self._misses += 1
        elif health is not None:
            self._misses = 0

    def _answer(self) -> Health | None:
        """Returns the result of a finished check once, else None."""
        if self._check is None or not self._check.done():
            return None
        check, self._check = self._check, None
        return check.result()

    def _begin(self) -> None:
        """If no thread can be started, as at a limit of processes, the check counts as UNKNOWN."""
        self._check = Future()
        try:
            Thread(target=self._run, args=(self._check,), name="probe", daemon=True).start()
        except RuntimeError:
            self._check.set_result(Health.UNKNOWN)

    def _run(self, check: "Future[Health]") -> None:
        """Runs in the thread. An unexpected error goes to the log and counts as UNKNOWN."""
        health = Health.UNKNOWN
        try:
            health = self._ask()
        finally:
            check.set_result(health)
