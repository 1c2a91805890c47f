"""Consumers that share a stream: each keeps itself alive, reads its share, and opens again when the share changes."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Lock, Thread

import structlog

from cdc_pipeline.errors import CdcError, StreamMoved
from cdc_pipeline.metadata_store.ledger.records import Assignment
from cdc_pipeline.metadata_store.store import MetadataStore

log = structlog.get_logger()

LIFETIME = timedelta(seconds=6)
"""How long a consumer counts as alive after its last sign. Its stream partitions then go to the others."""
_BEAT_SECONDS = 1.5
_LONGEST_STEP_SECONDS = 120.0
"""A consumer that did not come back to its loop for so long hangs, and is kept alive no longer.

One whose openings fail for so long makes way for others.
"""
_ASIDE_SECONDS, _LONGEST_ASIDE_SECONDS = 30.0, 600.0


@dataclass(slots=True, kw_only=True)
class Membership:
    """One consumer among those of a stream. A thread of its own keeps it alive (`joined`).

    Stream partitions that failed are tried again one by one. After one fails, none is tried until a cut has ended:
    however many fail, and however long a slice takes, what the others hold is registered between two tries.
    """

    store: MetadataStore
    stream: str
    owner: str
    clock: Callable[[], float] = time.monotonic
    _share: frozenset[int] = frozenset()
    _aside: dict[int, float] = field(default_factory=dict)
    """Stream partitions that failed, and when they are tried again."""
    _failed: dict[int, tuple[float, float]] = field(default_factory=dict)
    """For how long each was left out the last time, in seconds, and until when."""
    _may_try: bool = False
    """A cut has ended since one failed."""
    _next_try: float = 0.0
    _cut_end: int | None = None
    _read: frozenset[int] = frozenset()
    _progress: float = field(default_factory=time.monotonic)
    _makes_way: bool = False
    """Others have its share, since it could not open the stream. It still tries to."""
    _opens_by: float = math.inf
    """When it makes way, if it has not opened the stream by then.

    Reads that fail do not count: a shard or broker that fails would go from one consumer to the next, and each of them
    would lose its open slice.
    """
    _one_at_a_time: Lock = field(default_factory=Lock)

    def take(self, first_offset: str) -> Assignment:
        """Takes the consumer's share. Raises StreamMoved if nothing is left for it."""
        now, self._cut_end = self.clock(), None
        tried = self._tried()
        # A source may look for what makes it fail only half a minute after the opening.
        self._next_try = now + (2 if tried else 1) * _ASIDE_SECONDS
        self._aside = {
            number: until
            for number, until in self._aside.items()
            if number not in tried and (until > now or number in self._share)
        }
        self._makes_way, self._opens_by = False, math.inf  # The source was surveyed: it answers.
        with self._one_at_a_time:
            assignment = self.store.consumers.take_share(
                self.stream, owner=self.owner, lifetime=LIFETIME, first_offset=first_offset, without=self._aside
            )
            self._read = frozenset() if assignment is None else frozenset(assignment.next_offset)
            self._share = self._read | (self._share & self._aside.keys())
        if assignment is None:
            raise StreamMoved("no stream partition is left for this consumer", remedy="it waits until one is free")
        log.info("stream partitions taken", stream=self.stream, stream_partitions=sorted(self._read))
        return assignment

    def check(self, cut_end: int) -> None:
        """Raises StreamMoved if this consumer is to read other stream partitions than it does. Call it in the loop.

        `cut_end`: the stream position of the end of its last cut. A stream partition is tried at the earliest half a
        minute after the opening; a minute after one that tried another, which has the time to fail before.
        """
        self._progress = time.monotonic()
        self._may_try |= cut_end != (cut_end if self._cut_end is None else self._cut_end)
        self._cut_end = cut_end
        is_try_due = self.clock() >= self._next_try and self._tried()
        if is_try_due or self._share - self._aside.keys() != self._read:
            raise StreamMoved(
                f"this consumer reads the stream partitions {sorted(self._read)}",
                expected=f"{sorted(self._share)}, its share among the consumers that are alive",
                remedy="it opens the stream again",
            )

    def wait_for_share(self, stop: Event, beat: Callable[[], None]) -> bool:
        """Waits while other consumers have every stream partition. Returns False if `stop` was set.

        A consumer that makes way does not wait: its next opening shows whether it can again.
        """
        while not stop.is_set():
            self._progress = time.monotonic()
            self._make_way_if_due()
            self.keep_alive()
            if self._makes_way:
                return True
            if self._tried() or self._share - self._aside.keys():
                self._opens_by = min(self._opens_by, self.clock() + _LONGEST_STEP_SECONDS)
                return True
            self._opens_by = math.inf
            beat()
            stop.wait(_BEAT_SECONDS)
        return False

    def set_aside(self, stream_partition: int) -> float:
        """Leaves out a stream partition that failed. Returns for how long, in seconds.

        Half a minute, and twice as long as before if it fails again: each try costs the others what they have read and
        not registered.
        """
        now, self._may_try, self._opens_by = self.clock(), False, math.inf
        before, until = self._failed.get(stream_partition, (0.0, 0.0))
        is_again = now < until + _LONGEST_ASIDE_SECONDS
        seconds = min(2 * before, _LONGEST_ASIDE_SECONDS) if before and is_again else _ASIDE_SECONDS
        self._failed[stream_partition] = seconds, now + seconds
        self._aside[stream_partition] = now + seconds
        return seconds

    def _tried(self) -> frozenset[int]:
        """Returns the stream partition that failed and that an opening now reads again, of several the longest due one.

        Empty if none is due. If all have failed, no cut comes, and none is waited for.
        """
        now = self.clock()
        due = sorted((until, number) for number, until in self._aside.items() if until <= now and number in self._share)
        may_try = self._may_try or self._share <= self._aside.keys()
        return frozenset(number for _, number in due[:1] if may_try)

    def _make_way_if_due(self) -> None:
        """Leaves its share to other consumers, if there are any and it could not open the stream for too long."""
        with self._one_at_a_time:
            is_due, consumers = self.clock() > self._opens_by, self.store.consumers
            self._makes_way = is_due and bool(consumers.others(self.stream, owner=self.owner))
            if self._makes_way:
                log.error("the consumer cannot open the stream: others take its stream partitions", stream=self.stream)
                consumers.leave(self.stream, owner=self.owner)

    def keep_alive(self) -> None:
        """Does nothing while the consumer makes way."""
        with self._one_at_a_time:
            if not self._makes_way:
                self._share = self.store.consumers.beat(self.stream, owner=self.owner, lifetime=LIFETIME)

    def keep_alive_until(self, stop: Event) -> None:
        """Runs in a thread. Stops renewing for a consumer that hangs, so that others take over."""
        while not stop.wait(_BEAT_SECONDS):
            if time.monotonic() - self._progress > _LONGEST_STEP_SECONDS:
                log.error("the consumer hangs: others take its stream partitions", stream=self.stream)
                continue
            try:
                self.keep_alive()
            except CdcError as error:
                log.warning("consumer not kept alive", stream=self.stream, found=error.found)


@contextmanager
def joined(store: MetadataStore, stream: str, owner: str) -> Iterator[Membership]:
    """Joins the consumers of the stream until the block ends. Then the others get its stream partitions at once."""
    membership, stop = Membership(store=store, stream=stream, owner=owner), Event()
    thread = Thread(target=membership.keep_alive_until, args=(stop,), name=f"consumer of {stream}", daemon=True)
    thread.start()
    try:
        yield membership
    finally:
        stop.set()
        thread.join()
        with suppress(CdcError):  # Its time as a consumer runs out by itself.
            store.consumers.leave(stream, owner=owner)
