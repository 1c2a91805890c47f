"""Decides when the consumer sends a heartbeat: one for each time at which a slice is due, or for each slice length."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from cdc_pipeline.consume.slice_cutter import CUT, SliceCutter
from cdc_pipeline.sources.protocol import EventBatch

_GRACE = timedelta(milliseconds=200)
"""A heartbeat is sent this long after a slice is due, so that the source's clock has passed the label's end too."""
_SHORTEST_WAIT = timedelta(milliseconds=50)
_LONGEST_WAIT = timedelta(seconds=1)


class HeartbeatTimer:
    """`is_idle`: since the last heartbeat was sent nothing else was read, and nothing was held back.

    `monotonic`: seconds that never go back.
    """

    def __init__(
        self,
        *,
        cutter: SliceCutter,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cutter = cutter
        self._clock = clock
        self._monotonic = monotonic
        self._earliest = self._last_cut = monotonic()
        self.is_idle = self._is_awaited = self._is_repeated = self._is_second = False
        self._is_first = True
        self._passed: datetime | None = None
        """A due time that had passed when a heartbeat closed the slice. It stays until the source's time moves on."""

    @property
    def is_due(self) -> bool:
        """Returns whether to send a heartbeat now: never before the last one was read."""
        return not self._is_awaited and self._until_next() <= timedelta(0)

    @property
    def wait(self) -> timedelta:
        """Returns how long to wait for events."""
        return _LONGEST_WAIT if self._is_awaited else min(max(self._until_next(), _SHORTEST_WAIT), _LONGEST_WAIT)

    def note_sent(self) -> None:
        self._is_awaited = True
        self._is_second, self._is_repeated = self._is_repeated, False
        self._earliest = self._monotonic() + _LONGEST_WAIT.total_seconds()

    def note_read(self, batch: EventBatch) -> None:
        """Call it once the slice cutter has the batch. A heartbeat that left lines behind is repeated once.

        So is the first one: only then it is known whether the source is idle, and an idle one's time is registered.
        """
        holds_back = any(marker.holds_back for marker in batch.markers)
        self.is_idle = 0 < len(batch.markers) == len(batch.transactions.commit_position) and not holds_back
        if any(marker.text == CUT for marker in batch.markers):
            self._is_awaited = False
            self._is_repeated = self._is_first if not holds_back else not self._is_second
            self._is_first = self._is_first and holds_back
            self._passed = self._cutter.due if self._cutter.due <= self._clock() else None

    def note_cut(self) -> None:
        self._last_cut = self._monotonic()

    def _until_next(self) -> timedelta:
        """Returns the time until the next heartbeat.

        It is sent at most one slice length (plus _GRACE) after the last cut, because this machine's clock may be hours
        behind the source's. It may be ahead too, and events may come late: one due time is asked for only once.
        """
        now, due = self._monotonic(), self._cutter.due
        earliest = timedelta(seconds=self._earliest - now)
        if self._is_repeated:
            return earliest
        since_cut = self._cutter.length - timedelta(seconds=now - self._last_cut)
        by_clock = since_cut if due == self._passed else due - self._clock()
        return max(min(by_clock, since_cut) + _GRACE, earliest)
