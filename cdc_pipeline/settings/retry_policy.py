"""How long a failing table pauses before its next try, and when it parks; pure."""

from dataclasses import dataclass
from datetime import timedelta

_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The first pause doubles with every failure in a row up to `longest_pause`; after `retry_for` the table parks."""

    first_pause: timedelta = timedelta(seconds=10)
    longest_pause: timedelta = timedelta(minutes=5)
    retry_for: timedelta = timedelta(hours=1)
    probe_parked: timedelta = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """From the failure to the next try that nobody has to ask for."""

    length: timedelta
    parks: bool


def next_pause(
    retry_policy: RetryPolicy, *, failures: int, failing_for: timedelta, is_outage: bool, is_parked: bool = False
) -> Pause:
    """`failures` in a row with the one that just happened; `failing_for`: since the first of them.

    An outage is no table's fault, so it parks none; a table that is parked stays so until a try succeeds.
    """
    if is_parked or (failing_for >= retry_policy.retry_for and not is_outage):
        return Pause(length=retry_policy.probe_parked, parks=True)
    first, longest = retry_policy.first_pause, retry_policy.longest_pause
    growth = 2 ** min(failures - 1, _MOST_DOUBLINGS)
    return Pause(length=longest if growth >= longest / first else first * growth, parks=False)
