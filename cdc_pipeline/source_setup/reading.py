"""A consumer opened, run, and opened again whenever its source changed under it."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import structlog

from cdc_pipeline.consumer import Consumer
from cdc_pipeline.errors import CdcError, StaleEpoch, StreamMoved
from cdc_pipeline.settings import PostgresSource
from cdc_pipeline.source_setup.files import open_files_consumer
from cdc_pipeline.source_setup.postgres import open_slot_consumer
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()


@contextmanager
def open_consumer(pipeline: Pipeline) -> Iterator[Consumer]:
    """Takes every stream partition; whoever had them before gets StaleEpoch at its next register.

    What stops the stream for good is kept with it in the metadata store, for everybody to see.
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
        if not error.retryable:
            pipeline.store.streams.raise_alarm(pipeline.settings.name, f"{type(error).__name__}: {error}")
        raise


def consume(pipeline: Pipeline, stop: Event) -> None:
    """Until `stop` is set."""
    while not stop.is_set():
        try:
            with open_consumer(pipeline) as consumer:
                consumer.run(stop)
        except StreamMoved as error:
            log.warning("stream opened again", found=error.found)


def consume_until_idle(pipeline: Pipeline) -> int:
    """Registers everything that the source held when this was called; returns the position behind it."""
    while True:
        try:
            with open_consumer(pipeline) as consumer:
                return consumer.run_until_idle()
        except StreamMoved as error:
            log.warning("stream opened again", found=error.found)
