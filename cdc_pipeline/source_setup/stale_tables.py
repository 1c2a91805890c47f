"""Tables whose stream lacks changes: noted with the reason, and whether a new snapshot is taken without being asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from cdc_pipeline.errors import TableStale
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import TableName
from cdc_pipeline.source_setup.registered import RegisteredStream
from cdc_pipeline.sources.known import KnownTable
from cdc_pipeline.sources.protocol import SourceSurvey

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleMarks:
    """Marks tables as stale. `followed`: those that get a new snapshot by themselves."""

    registered: RegisteredStream
    followed: frozenset[TableName]
    store: MetadataStore

    def note_stale(self, survey: SourceSurvey, known: Mapping[TableName, KnownTable]) -> None:
        """Marks every table that cannot be read on as stale. `known`: the tables as the survey saw them."""
        for name, error in survey.stale.items():
            wanted = name in survey.mendable and name in self.followed
            row = self.store.tables.table(name)
            if known[name].published_as is not None:
                self._mark(row, error, snapshot_wanted=wanted)
            elif row.snapshot_wanted != wanted:
                self.store.stale_tables.want_snapshot(row.table_id, wanted=wanted)

    def note_unlisted(self) -> None:
        """Marks as stale what was taken out of pipeline.yml, which is not read from here on.

        Put back, it needs a snapshot.
        """
        for row in self.registered.stored_tables():
            if row.name not in self.registered.listed and row.publication_mark is not None:
                error = TableStale(
                    f"{row.name} was taken out of pipeline.yml, and its changes are not read since",
                    table=row.name,
                    remedy=f"list it again and run cdc snapshot {row.name}",
                )
                self._mark(row, error, snapshot_wanted=False)

    def mark(self, error: TableStale) -> None:
        """Marks a table that turned out to be stale while it was read: a new snapshot would mend it."""
        name = TableName.parse(str(error.table))
        self._mark(self.store.tables.table(name), error, snapshot_wanted=name in self.followed)

    def _mark(self, row: SourceTable, error: TableStale, *, snapshot_wanted: bool) -> None:
        words: dict[str, Any] = {"found": error.found, "expected": error.expected, "remedy": error.remedy}
        log.error("table stopped", table=str(row.name), **words, snapshot_follows=snapshot_wanted)
        self.store.stale_tables.mark(row.table_id, str(error), snapshot_wanted=snapshot_wanted)


def note_refused(survey: SourceSurvey) -> None:
    """Logs the tables that were never read and cannot be: the others go on without them."""
    for name, error in survey.refused.items():
        log.error("table not read", table=str(name), found=error.found, expected=error.expected, remedy=error.remedy)
