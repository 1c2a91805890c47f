"""When to wake a table's worker: at once for a new slice, again and ever more rarely while it still waits."""

from datetime import timedelta


class WakeUpPolicy:
    """One table's memory of its last ring; times are seconds of one monotonic clock."""

    def __init__(self, first_pause: timedelta, longest_pause: timedelta) -> None:
        self._shortest = first_pause.total_seconds()
        self._longest = longest_pause.total_seconds()
        self._pause = self._shortest
        self._rung_for: int | None = None
        self._rung_at = 0.0

    def rings(self, newest: int | None, *, is_leased: bool, now: float) -> bool:
        """`newest` is the number of the newest waiting slice, None when none waits.

        Silent while somebody holds the lease: that one does the work, or its lease expires.
        """
        if newest is None:
            self._rung_for, self._pause = None, self._shortest
            return False
        if is_leased:
            return False
        if newest != self._rung_for:
            self._pause = self._shortest
        elif now - self._rung_at < self._pause:
            return False
        else:
            self._pause = min(self._pause * 2, self._longest)
        self._rung_for, self._rung_at = newest, now
        return True
