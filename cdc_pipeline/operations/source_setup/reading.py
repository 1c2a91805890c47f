"""Runs a consumer, and opens it again after the source changed or a server was not reachable."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from threading import Event

import structlog

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.consume.stream_to_slices import stream_to_slices, stream_to_slices_until_idle
from cdc_pipeline.errors import CdcError, PartitionFailed, SourceBusy, StaleEpoch, StreamMoved
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.operations.source_setup.opening import ConsumerOpening
from cdc_pipeline.operations.source_setup.registered import RegisteredStream
from cdc_pipeline.operations.source_setup.sharing import Membership, joined

log = structlog.get_logger()

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_BEAT_SECONDS = 2.0

Beat = Callable[[], None]


def _no_beat() -> None:
    """Does nothing: the default where nobody watches the consumer."""


@dataclass(slots=True, kw_only=True)
class ReopenPauses:
    """Pauses between two openings of a stream that raised StreamMoved.

    `chain_position` returns the stream's chain position; a registered cut changes it. `stale_tables` returns how many
    tables are stale: one event may make many so, one at each opening.
    """

    chain_position: Callable[[], str]
    stale_tables: Callable[[], int]
    _before: tuple[str, int] | None = None
    _pause: float = 0.0

    def pause(self, open_seconds: float) -> float:
        """Returns seconds: none at first, and growing ones while the stream moves again without a cut or a stale table.

        `open_seconds`: for how long it was open. After a long time it is opened again at once.
        """
        now = self._before
        with suppress(CdcError):  # The next opening meets the same error.
            now = self.chain_position(), self.stale_tables()
        if now is None or now != self._before or open_seconds > _LONGEST_PAUSE_SECONDS:
            self._pause = 0.0
        else:
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        self._before = now
        return self._pause


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRuns:
    """Reads a stream into registered slices."""

    registered: RegisteredStream
    opening: ConsumerOpening

    @contextmanager
    def open(self, without: Collection[int] = ()) -> Iterator[Consumer]:
        """Opens a consumer at the registered offsets, as `ConsumerOpening.opened` does.

        An error that stops the stream is stored as the stream's alarm in the metadata store, until the next cut.
        """
        with self.registered.kept_alarm(), self.opening.opened(without=without) as consumer:
            yield consumer

    def consume(self, stop: Event, beat: Beat = _no_beat) -> None:
        """Reads until `stop` is set. Retries while a server is not reachable or another process holds the slot.

        Calls `beat` every few seconds, also while it waits. Raises errors that no retry can resolve.
        """
        if self._is_shared():
            with joined(self.opening.store, self.registered.name, self.opening.owner) as membership:
                retried(lambda: self._read_share(membership, stop, beat), stop, beat, self._pauses())
            return

        def read() -> None:
            with self._noticed(), self.open() as consumer:
                stream_to_slices(consumer, stop.is_set, beat)

        retried(read, stop, beat, self._pauses())

    def _pauses(self) -> ReopenPauses:
        store = self.opening.store
        return ReopenPauses(
            chain_position=lambda: store.streams.chain_position(self.registered.name),
            stale_tables=lambda: sum(table.state is TableState.STALE for table in store.tables.tables()),
        )

    def _noticed(self) -> AbstractContextManager[None]:
        """Lets removals notice a consumer that reads alone. A database has a slot or a lock for that."""
        if self.opening.source.capabilities.copies_tables:
            return nullcontext()
        return self.opening.store.consumers.reading(self.registered.name)

    def _is_shared(self) -> bool:
        """Returns whether several consumers may share the stream.

        An unregistered stream counts as not shared; `opened` refuses it.
        """
        return self.opening.source.capabilities.shares_partitions and self.registered.identity() is not None

    def _read_share(self, membership: Membership, stop: Event, beat: Beat) -> None:
        """Reads this consumer's share of the stream partitions until it changes. One that fails is left out."""

        def look(consumer: Consumer) -> None:
            beat()
            membership.check(consumer.position)

        if not membership.wait_for_share(stop, beat):
            return
        try:
            with (
                self.registered.kept_alarm(self.opening.owner),
                self.opening.opened(membership.take) as consumer,
            ):
                stream_to_slices(consumer, stop.is_set, lambda: look(consumer))
        except PartitionFailed as error:
            pause = membership.set_aside(error.stream_partition)
            log.warning("stream partition stopped", found=error.found, remedy=error.remedy, next_try_seconds=pause)
            raise StreamMoved(error.found, remedy="the others are read without it") from error
        except StaleEpoch as error:
            raise StreamMoved(error.found, remedy="this consumer goes on with what is its share now") from error

    def consume_until_idle(self) -> int:
        """Registers everything that the source held at the time of the call; returns the position after it.

        Raises SourceBusy while other consumers share the stream. Raises PartitionFailed after all other stream
        partitions are registered.
        """
        shared = self._is_shared()
        others = self.opening.store.consumers.others(self.registered.name, owner=self.opening.owner) if shared else ()
        if others:
            raise SourceBusy(
                f"the stream {self.registered.name} is read by {', '.join(others)}",
                expected="no other consumer, to read every stream partition until it is idle",
                remedy="stop them first; or leave it to them, since they read all the time",
            )
        pauses, failed = self._pauses(), dict[int, PartitionFailed]()
        while True:
            begun = time.monotonic()
            try:
                with self._noticed(), self.open(failed) as consumer:
                    end = stream_to_slices_until_idle(consumer)
                for failure in failed.values():
                    raise failure
            except PartitionFailed as error:
                if not shared or error.stream_partition in failed:
                    raise
                failed[error.stream_partition] = error
                log.warning("stream partition stopped", found=error.found, remedy=error.remedy)
                continue
            except StreamMoved as error:
                pause = pauses.pause(time.monotonic() - begun)
                log.warning("stream opened again", found=error.found, next_try_seconds=pause)
            else:
                return end
            _wait(Event(), pause, _no_beat)


def retried(
    work: Callable[[], None],
    stop: Event,
    beat: Beat = _no_beat,
    pauses: ReopenPauses | None = None,
    *,
    words: str = "the stream stands still",
) -> None:
    """Repeats `work` until it returns or `stop` is set. Logs each failure as `words`; the pauses between tries grow.

    `pauses`: those of the stream that `work` reads. Raises errors that no retry can resolve.
    """
    pause = _FIRST_PAUSE_SECONDS
    while not stop.is_set():
        begun = time.monotonic()
        beat()
        try:
            work()
        except StreamMoved as error:
            reopens_after = 0.0 if pauses is None else pauses.pause(time.monotonic() - begun)
            log.warning("stream opened again", found=error.found, next_try_seconds=reopens_after)
            _wait(stop, reopens_after, beat)
            continue
        except CdcError as error:
            if not error.retryable:
                raise
            failure = error
        else:
            return
        if time.monotonic() - begun > _LONGEST_PAUSE_SECONDS:
            pause = _FIRST_PAUSE_SECONDS
        log.error(words, found=failure.found, remedy=failure.remedy, next_try_seconds=pause)
        _wait(stop, pause, beat)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _wait(stop: Event, seconds: float, beat: Beat) -> None:
    """Waits until `stop` is set or `seconds` have passed, and calls `beat` meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stop.wait(min(left, _BEAT_SECONDS)):
        beat()
