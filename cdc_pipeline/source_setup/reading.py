"""A consumer opened, run, and opened again whenever its source changed under it, or a server was away."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

import structlog

from cdc_pipeline.consume.consumer import Consumer
from cdc_pipeline.consume.stream_to_slices import stream_to_slices, stream_to_slices_until_idle
from cdc_pipeline.errors import CdcError, SourceError, StaleEpoch, StreamMoved
from cdc_pipeline.settings import PostgresSource
from cdc_pipeline.source_setup.files import open_files_consumer
from cdc_pipeline.source_setup.postgres import open_slot_consumer
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_BEAT_SECONDS = 2.0

Beat = Callable[[], None]


def _no_beat() -> None:
    """Of a consumer that nobody watches."""


@contextmanager
def open_consumer(pipeline: Pipeline) -> Iterator[Consumer]:
    """Takes every stream partition; whoever had them before gets StaleEpoch at its next register.

    What stops the stream is kept with it in the metadata store, for everybody to see, until the next cut.
    """
    source = pipeline.settings.source
    try:
        if isinstance(source, PostgresSource):
            with open_slot_consumer(pipeline) as consumer:
                yield consumer
        else:
            with open_files_consumer(pipeline, source) as consumer:
                yield consumer
    except StaleEpoch:
        raise
    except CdcError as error:
        if not error.retryable or isinstance(error, SourceError):
            pipeline.store.streams.raise_alarm(pipeline.settings.name, f"{type(error).__name__}: {error}")
        raise


def consume(pipeline: Pipeline, stop: Event, beat: Beat = _no_beat) -> None:
    """Until `stop` is set. While a server is away, or somebody else holds the slot, it is tried again and again.

    `beat` is called every few seconds, also while it waits.
    """

    def read() -> None:
        with open_consumer(pipeline) as consumer:
            stream_to_slices(consumer, stop.is_set, beat)

    retried(read, stop, beat)


def retried(work: Callable[[], None], stop: Event, beat: Beat = _no_beat) -> None:
    """Until `work` returns or `stop` is set. Each failure is logged at once; the pauses between two tries grow.

    Raises what no retry can mend.
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
    """Until `stop` is set, or so many seconds have passed."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stop.wait(min(left, _BEAT_SECONDS)):
        beat()


def consume_until_idle(pipeline: Pipeline) -> int:
    """Registers everything that the source held when this was called; returns the position behind it."""
    while True:
        try:
            with open_consumer(pipeline) as consumer:
                return stream_to_slices_until_idle(consumer)
        except StreamMoved as error:
            log.warning("stream opened again", found=error.found)
