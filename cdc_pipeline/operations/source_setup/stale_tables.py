"""Marks tables whose stream lacks changes as stale, with the reason and whether a new snapshot starts by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.operations.source_setup.registered import RegisteredStream
from cdc_pipeline.record import TableName
from cdc_pipeline.sources.known import KnownTable
from cdc_pipeline.sources.protocol import SourceCapabilities, SourceSurvey

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleMarks:
    """Marks tables as stale. `followed`: the tables whose new snapshot starts without a command."""

    registered: RegisteredStream
    capabilities: SourceCapabilities
    followed: frozenset[TableName]
    store: MetadataStore

    def note_stale(self, survey: SourceSurvey, known: Mapping[TableName, KnownTable]) -> None:
        """Marks every table that cannot be read further as stale. `known`: the registered tables before the survey."""
        for name, error in survey.stale.items():
            wanted = name in survey.mendable and name in self.followed
            row = self.store.tables.table(name)
            is_known = known[name].published_as is None and str(error).startswith(row.state_reason or "")
            if not is_known:
                self._mark(row, error, snapshot_wanted=wanted)
            elif row.snapshot_wanted != wanted:
                self.store.stale_tables.want_snapshot(row.table_id, wanted=wanted)

    def note_unlisted(self) -> None:
        """Marks registered tables that pipeline.yml no longer lists as stale, since they are not read any more.

        A table that is listed again needs a new snapshot, or a new beginning if its source copies no tables. One that
        was stale already wants no snapshot any more.
        """
        for row in self.store.tables.tables():
            if row.name in self.registered.listed:
                continue
            if row.snapshot_wanted:
                self.store.stale_tables.want_snapshot(row.table_id, wanted=False)
            if row.published_as is not None:
                self._mark(row, self._unlisted(row.name), snapshot_wanted=False)

    def _unlisted(self, name: TableName) -> TableStale:
        found = f"{name} was taken out of pipeline.yml, and its changes are not read since"
        if self.capabilities.copies_tables:
            return TableStale(found, table=name, remedy=f"list it again and run cdc snapshot {name}")
        # With --lake, so that nobody takes the rows of before for the table's present ones.
        return TableStale(
            found,
            table=name,
            remedy=f"while it is not listed, run cdc remove {name} --lake; then list it again (Kafka, Kinesis,"
            " DynamoDB: with begin: kept under source), run cdc setup-source, export all its rows, and run"
            f" cdc snapshot {name} --from PREFIX --as-of start",
        )

    def mark(self, error: TableStale) -> None:
        """Marks a table that turned out to be stale while it was read. A new snapshot repairs it."""
        name = TableName.parse(str(error.table))
        self._mark(self.store.tables.table(name), error, snapshot_wanted=name in self.followed)

    def _mark(self, row: SourceTable, error: TableStale, *, snapshot_wanted: bool) -> None:
        words: dict[str, Any] = {"found": error.found, "expected": error.expected, "remedy": error.remedy}
        log.error("table stopped", table=str(row.name), **words, snapshot_follows=snapshot_wanted)
        self.store.stale_tables.mark(row.table_id, str(error), snapshot_wanted=snapshot_wanted)


def note_refused(refused: Mapping[TableName, SourceError]) -> None:
    """Logs the tables that were never read and cannot be read. They do not stop the other tables."""
    for name, error in refused.items():
        log.error("table not read", table=str(name), found=error.found, expected=error.expected, remedy=error.remedy)
