"""For how long a run waits for a server that does not answer."""

import time
from collections.abc import Callable, Iterable
from datetime import timedelta

from cdc_pipeline.errors import CdcError, LakeAway, ObjectStoreAway, StoreAway
from cdc_pipeline.metadata_store.snapshots.records import Snapshot

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


def each_advanced(
    snapshots: Iterable[Snapshot], advance: Callable[[Snapshot], Snapshot]
) -> tuple[list[Snapshot], CdcError | None]:
    """Advances each snapshot, one state at a time, until it stays in its state.

    Also returns the first error of a store or lake that is away, None if all answered. A snapshot that met one stays in
    the state that it has reached, and those behind it are advanced all the same: their folders may answer. A metadata
    store that is away is there for none of them, so it is not asked for the others.
    """
    found, outage = list(snapshots), None
    for place in range(len(found)):
        try:
            while (moved := advance(found[place])).state is not found[place].state:
                found[place] = moved
            found[place] = moved
        except StoreAway as error:
            return found, outage or error
        except (ObjectStoreAway, LakeAway) as error:
            outage = outage or error
    return found, outage
