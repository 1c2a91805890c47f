"""How long a failing table waits before its next try, and when it is parked. Pure."""

from dataclasses import dataclass
from datetime import timedelta

_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The first pause doubles with each failure in a row, up to `longest_pause`. After `retry_for` the table is parked.

    A parked table is tried every `probe_parked`.
    """

    first_pause: timedelta = timedelta(seconds=10)
    longest_pause: timedelta = timedelta(minutes=5)
    retry_for: timedelta = timedelta(hours=1)
    probe_parked: timedelta = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The time between a failure and the next automatic try."""

    length: timedelta
    parks: bool


def next_pause(
    retry_policy: RetryPolicy, *, failures: int, failing_for: timedelta, is_outage: bool, is_parked: bool = False
) -> Pause:
    """Returns the pause after a failure.

    `failures`: failures in a row, including this one. `failing_for`: time since the first of them. A server's outage
    parks no table. A parked table stays parked until a try succeeds.
    """
    if is_parked or (failing_for >= retry_policy.retry_for and not is_outage):
        return Pause(length=retry_policy.probe_parked, parks=True)
    first, longest = retry_policy.first_pause, retry_policy.longest_pause
    growth = 2 ** min(failures - 1, _MOST_DOUBLINGS)
    return Pause(length=longest if growth >= longest / first else first * growth, parks=False)
