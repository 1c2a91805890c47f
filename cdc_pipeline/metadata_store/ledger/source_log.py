"""What was seen last of the log that a stream's slot keeps back on the source, for everybody to ask."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database

_LOG, _STREAM = models.source_log, models.stream


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLogs:
    database: Database

    def record(self, stream: str, seen: Mapping[str, Any]) -> None:
        """In place of what was seen before; the columns by their names. Nothing for a stream that is not registered."""
        values = dict(seen) | {"seen_at": func.clock_timestamp()}
        with self.database.transaction("source_log.record") as connection:
            known = connection.scalar(select(_STREAM.c.name).where(_STREAM.c.name == stream))
            if known is not None:
                new = insert(_LOG).values(stream=stream, **values)
                connection.execute(new.on_conflict_do_update(index_elements=["stream"], set_=values))
