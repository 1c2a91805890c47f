"""When to wake a table's worker: at once for a new slice, again and ever more rarely while it still waits."""

from datetime import timedelta


class Doorbell:
    """One table's memory of its last ring; times are seconds of one monotonic clock."""

    def __init__(self, patience: timedelta, longest_patience: timedelta) -> None:
        self._shortest = patience.total_seconds()
        self._longest = longest_patience.total_seconds()
        self._patience = self._shortest
        self._rung_for: int | None = None
        self._rung_at = 0.0

    def rings(self, newest: int | None, *, is_leased: bool, now: float) -> bool:
        """`newest` is the number of the newest waiting slice, None when none waits.

        Silent while somebody holds the lease: that one does the work, or its lease expires.
        """
        if newest is None:
            self._rung_for, self._patience = None, self._shortest
            return False
        if is_leased:
            return False
        if newest != self._rung_for:
            self._patience = self._shortest
        elif now - self._rung_at < self._patience:
            return False
        else:
            self._patience = min(self._patience * 2, self._longest)
        self._rung_for, self._rung_at = newest, now
        return True
