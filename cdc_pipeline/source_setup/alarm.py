"""What stops a stream, kept with it in the metadata store for everybody to see."""

from collections.abc import Iterator
from contextlib import contextmanager

from cdc_pipeline.errors import CdcError, SourceError, StaleEpoch
from cdc_pipeline.wiring import Pipeline


@contextmanager
def kept_alarm(pipeline: Pipeline) -> Iterator[None]:
    """Keeps an error that leaves the block as the stream's alarm, until the next cut. Raises it again.

    A newer owner is no alarm, nor is an outage of anything but the source: the next try may succeed.
    """
    try:
        yield
    except StaleEpoch:
        raise
    except CdcError as error:
        if not error.retryable or isinstance(error, SourceError):
            pipeline.store.streams.raise_alarm(pipeline.settings.name, f"{type(error).__name__}: {error}")
        raise
