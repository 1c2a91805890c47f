"""Keeps a lease while a block runs: a thread renews it, and `check` fails before it could have expired."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread

import structlog

from cdc_pipeline.errors import CdcError, StaleEpoch

log = structlog.get_logger()

_RENEWALS_PER_LEASE = 3


class LeaseKeeper:
    """Renews a lease from a thread. The worker calls `check` before every commit.

    The deadline counts from the time at which the last renewal was sent, by this process's own clock. So it
    never lasts longer by the worker's clock than by the database's.
    """

    def __init__(self, renew: Callable[[], object], duration: timedelta, *, sent: float, what: str) -> None:
        self._renew = renew
        self._duration = duration
        self._deadline = sent + duration.total_seconds()
        self._what = what
        self._found = f"the lease of {what} could not be renewed in time"
        self._stop = Event()

    def check(self) -> None:
        """Raises StaleEpoch when the lease may have expired, or when a renewal found that it was taken away."""
        if time.monotonic() >= self._deadline:
            raise StaleEpoch(
                self._found,
                expected=f"a renewal within {self._duration}",
                remedy="nothing is lost: the next worker continues from what the lake has",
            )

    def keep(self) -> None:
        """Runs in a thread until `stop`, or until somebody else has the lease."""
        while not self._stop.wait(self._duration.total_seconds() / _RENEWALS_PER_LEASE):
            sent = time.monotonic()
            try:
                self._renew()
            except StaleEpoch as error:
                self._found, self._deadline = error.found, sent
                log.warning("lease lost", of=self._what, found=error.found)
                return
            except CdcError as error:
                log.warning("lease not renewed", of=self._what, found=error.found)
            else:
                self._deadline = sent + self._duration.total_seconds()

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def renewed(renew: Callable[[], object], duration: timedelta, *, sent: float, what: str) -> Iterator[LeaseKeeper]:
    """Renews a lease until the block ends. `sent`: the monotonic time at which it was asked for."""
    keeper = LeaseKeeper(renew, duration, sent=sent, what=what)
    thread = Thread(target=keeper.keep, name=f"lease of {what}", daemon=True)
    thread.start()
    try:
        yield keeper
    finally:
        keeper.stop()
        thread.join()
