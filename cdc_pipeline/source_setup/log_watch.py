"""The log that the slot keeps back on the source, looked at from time to time while nothing is lost yet."""

import time
from dataclasses import asdict, dataclass
from datetime import timedelta

import structlog

from cdc_pipeline.errors import SourceError
from cdc_pipeline.sources.postgres.session import session
from cdc_pipeline.sources.postgres.slot import KeptLog, read_kept_log
from cdc_pipeline.steps import step
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_INTERVAL = timedelta(minutes=1)


def look_at_log(pipeline: Pipeline) -> KeptLog | None:
    """What the source says of the slot now, recorded; None where it says nothing. A warning is logged.

    Never raises for the source: a stream that is read is not stopped because it is looked at.
    """
    try:
        with step(pipeline.on_step, "source_log.read"), session(pipeline.source_url) as connection:
            seen = read_kept_log(connection, pipeline.settings.postgres)
    except SourceError as error:
        log.warning("the source does not tell how much log it keeps", found=error.found)
        return None
    if seen is not None:
        pipeline.store.source_logs.record(pipeline.settings.name, asdict(seen))
        if seen.warning is not None:
            log.warning("the slot may be lost", found=seen.warning)
    return seen


@dataclass(slots=True, kw_only=True)
class LogWatch:
    """At most once a minute, so that it costs a busy stream nothing."""

    pipeline: Pipeline
    next_look: float = 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now >= self.next_look:
            self.next_look = now + _INTERVAL.total_seconds()
            look_at_log(self.pipeline)
