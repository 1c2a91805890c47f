"""Observes how much log the source keeps for its reader, so that a warning comes before anything is lost."""

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
        """Records in the metadata store how much log the source keeps now, and returns it.

        Returns None if the source keeps none or does not say how much. Logs a warning if somebody has to act. Errors of
        the source are logged and not raised, so that this check never stops the stream.
        """
        try:
            seen = self.source.kept_log()
        except SourceError as error:
            log.warning("the source did not say how much log it keeps", found=error.found)
            return None
        if seen is not None:
            noted = {name: value for name, value in asdict(seen).items() if name != "summary"}
            self.store.streams.record_source_log(self.stream, noted)
            if seen.warning is not None:
                log.warning("the slot may be lost", found=seen.warning)
        return seen


@dataclass(slots=True, kw_only=True)
class LogWatch:
    """Calls `SourceLog.look` at most once a minute, so that a busy stream loses no time."""

    source_log: SourceLog
    next_look: float = 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now >= self.next_look:
            self.next_look = now + _INTERVAL.total_seconds()
            self.source_log.look()
