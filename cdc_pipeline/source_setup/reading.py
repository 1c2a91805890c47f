"""Runs a consumer, and opens it again after the source changed or a server was not reachable."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

import structlog

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.consume.stream_to_slices import stream_to_slices, stream_to_slices_until_idle
from cdc_pipeline.errors import CdcError, StreamMoved
from cdc_pipeline.source_setup.opening import ConsumerOpening
from cdc_pipeline.source_setup.registered import RegisteredStream

log = structlog.get_logger()

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_BEAT_SECONDS = 2.0

Beat = Callable[[], None]


def _no_beat() -> None:
    """Does nothing: the default where nobody watches the consumer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRuns:
    """Reads a stream into registered slices."""

    registered: RegisteredStream
    opening: ConsumerOpening

    @contextmanager
    def open(self) -> Iterator[Consumer]:
        """Opens a consumer at the registered offsets, as `ConsumerOpening.opened` does.

        An error that stops the stream is stored as the stream's alarm in the metadata store, until the next cut.
        """
        with self.registered.kept_alarm(), self.opening.opened() as consumer:
            yield consumer

    def consume(self, stop: Event, beat: Beat = _no_beat) -> None:
        """Reads until `stop` is set. Retries while a server is not reachable or another process holds the slot.

        Calls `beat` every few seconds, also while it waits. Raises errors that no retry can resolve.
        """

        def read() -> None:
            with self.open() as consumer:
                stream_to_slices(consumer, stop.is_set, beat)

        retried(read, stop, beat)

    def consume_until_idle(self) -> int:
        """Registers everything that the source held at the time of the call; returns the position after it."""
        while True:
            try:
                with self.open() as consumer:
                    return stream_to_slices_until_idle(consumer)
            except StreamMoved as error:
                log.warning("stream opened again", found=error.found)


def retried(work: Callable[[], None], stop: Event, beat: Beat = _no_beat) -> None:
    """Repeats `work` until it returns or `stop` is set. Logs each failure; the pauses between tries grow.

    Raises errors that no retry can resolve.
    """
    pause = _FIRST_PAUSE_SECONDS
    while not stop.is_set():
        begun = time.monotonic()
        beat()
        try:
            work()
        except StreamMoved as error:
            log.warning("stream opened again", found=error.found)
            continue
        except CdcError as error:
            if not error.retryable:
                raise
            failure = error
        else:
            return
        if time.monotonic() - begun > _LONGEST_PAUSE_SECONDS:
            pause = _FIRST_PAUSE_SECONDS
        log.error("the stream stands still", found=failure.found, remedy=failure.remedy, next_try_seconds=pause)
        _wait(stop, pause, beat)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _wait(stop: Event, seconds: float, beat: Beat) -> None:
    """Waits until `stop` is set or `seconds` have passed, and calls `beat` meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stop.wait(min(left, _BEAT_SECONDS)):
        beat()
