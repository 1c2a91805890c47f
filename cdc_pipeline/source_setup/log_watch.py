"""The log that the source keeps for its reader, looked at from time to time while nothing is lost yet."""

import time
from dataclasses import asdict, dataclass
from datetime import timedelta

import structlog

from cdc_pipeline.errors import SourceError
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.sources.known import KeptLog
from cdc_pipeline.sources.protocol import Source

log = structlog.get_logger()

_INTERVAL = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLog:
    """The log that a source keeps for the reader of `stream`."""

    stream: str
    source: Source
    store: MetadataStore

    def look(self) -> KeptLog | None:
        """Records and returns what the source keeps now, None where it keeps nothing or does not say. Logs a warning.

        Never raises for the source: a stream that is read is not stopped because it is looked at.
        """
        try:
            seen = self.source.kept_log()
        except SourceError as error:
            log.warning("the source does not tell how much log it keeps", found=error.found)
            return None
        if seen is not None:
            noted = {name: value for name, value in asdict(seen).items() if name != "summary"}
            self.store.streams.record_source_log(self.stream, noted)
            if seen.warning is not None:
                log.warning("the slot may be lost", found=seen.warning)
        return seen


@dataclass(slots=True, kw_only=True)
class LogWatch:
    """Looks at most once a minute, so that it costs a busy stream nothing."""

    source_log: SourceLog
    next_look: float = 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now >= self.next_look:
            self.next_look = now + _INTERVAL.total_seconds()
            self.source_log.look()
