"""Decides when to start a table's worker, and how long to wait for one. Times are seconds of one monotonic clock."""

from datetime import timedelta

FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE_OF_SNAPSHOTS = timedelta(minutes=15)
"""The source may refuse a table until a person mends it, and each try is a failed run; or it is away for a while."""


class WakeUpPolicy:
    """Starts the worker of one table at once for a new slice, then after growing pauses while the slice waits.

    `others_turn`: how long a slice is left to an open run that asks for it.
    """

    def __init__(self, first_pause: timedelta, longest_pause: timedelta, others_turn: timedelta = timedelta(0)) -> None:
        self._others_turn = others_turn.total_seconds()
        self._shortest = first_pause.total_seconds()
        self._longest = longest_pause.total_seconds()
        self._pause = self._shortest
        self._woken_for: int | None = None
        self._woken_at = 0.0
        self._left_at: float | None = None

    def wakes(self, newest: int | None, *, is_leased: bool, is_awaited: bool = False, now: float) -> bool:
        """Returns whether to start the worker now. `newest`: number of the newest waiting slice; None if none waits.

        Returns False while a worker holds the lease: that worker applies the slices, or its lease expires.
        `is_awaited`: an open run asks for the slice, unless it is gone.
        """
        if newest is None:
            self._woken_for, self._pause, self._left_at = None, self._shortest, None
            return False
        if is_leased:
            self._left_at = None
            return False
        if is_awaited:
            self._left_at = now if self._left_at is None else self._left_at
            if now - self._left_at < self._others_turn:
                return False
        if newest != self._woken_for:
            self._pause = self._shortest
        elif now - self._woken_at < self._pause:
            return False
        else:
            self._pause = min(self._pause * 2, self._longest)
        self._woken_for, self._woken_at = newest, now
        return True


def wake_up_policy_of_snapshots() -> WakeUpPolicy:
    """Returns the policy of wanted snapshots. Errors of set-up get past its first pauses: others have the store's."""
    return WakeUpPolicy(FIRST_PAUSE, LONGEST_PAUSE_OF_SNAPSHOTS)


class WorkerWatch:
    """Gives up when no resident worker has been alive for `longest_absence`."""

    def __init__(self, longest_absence: timedelta) -> None:
        self._longest = longest_absence.total_seconds()
        self._away_since: float | None = None

    def gives_up(self, *, is_alive: bool, now: float) -> bool:
        if is_alive:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
        return self._away_since is not None and now - self._away_since >= self._longest
