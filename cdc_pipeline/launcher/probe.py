"""Whether a started process still answers: asked again and again, never waited for."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread

from cdc_pipeline.launcher.health import Health

MOST_MISSES = 6
"""Questions in a row that bring no good answer before a process is taken for hung.

They are counted, and not the time since the last answer: a machine that slept wakes up without killing anybody.
"""


class Probe:
    """Each question is asked on a thread of its own, so that one that hangs delays nobody else.

    There is one question at a time. One that is on its way when the next is due counts as `unanswered`.
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
        self._question: Future[Health] | None = None
        self._due = clock()
        self._misses = 0

    def answers(self) -> bool:
        """Whether a good answer came since this was asked last; asks again as soon as there is an answer."""
        health = self._answer()
        if self._question is None and health is not Health.HEALTHY:
            self._begin()
        return health is Health.HEALTHY

    def hangs(self, *, silence: float) -> bool:
        """Whether there was no good answer for so many seconds. A question begins every `silence` / MOST_MISSES."""
        self._judge(self._answer())
        if self._clock() >= self._due:
            self._due = self._clock() + silence / MOST_MISSES
            if self._question is None:
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
        """The answer that has come, once."""
        if self._question is None or not self._question.done():
            return None
        question, self._question = self._question, None
        return question.result()

    def _begin(self) -> None:
        self._question = Future()
        Thread(target=self._carry, args=(self._question,), name="probe", daemon=True).start()

    def _carry(self, question: "Future[Health]") -> None:
        """An error that nobody foresaw is written to the log, and says nothing about the process."""
        health = Health.UNKNOWN
        try:
            health = self._ask()
        finally:
            question.set_result(health)
