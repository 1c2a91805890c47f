"""Slices applied to many tables: each on its own, so that one that fails never stops its neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from cdc_pipeline.errors import CdcError
from cdc_pipeline.record import TableName
from cdc_pipeline.wiring import Pipeline
from cdc_pipeline.worker import Applied

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """What became of one table; `exit_code` is 0, or that of the error that stopped it."""

    table: TableName
    applied: Applied | None
    error: CdcError | None

    @property
    def exit_code(self) -> int:
        return 0 if self.error is None else self.error.exit_code

    def row(self) -> dict[str, Any]:
        outcomes = self.applied.outcomes if self.applied else ()
        return {
            "table": str(self.table),
            "claims": len(outcomes),
            "inserted": sum(outcome.inserted for outcome in outcomes),
            "updated": sum(outcome.updated for outcome in outcomes),
            "deleted": sum(outcome.deleted for outcome in outcomes),
            "ignored": sum(outcome.ignored for outcome in outcomes),
            "ended": str(self.error) if self.error else self.applied.ended if self.applied else "",
        }


def apply_tables(
    pipeline: Pipeline, tables: Sequence[TableName], *, until: datetime | None = None
) -> tuple[TableResult, ...]:
    """One after the other, through the one Spark driver."""
    return tuple(_apply_table(pipeline, table, until) for table in tables)


def _apply_table(pipeline: Pipeline, table: TableName, until: datetime | None) -> TableResult:
    try:
        applied = pipeline.slice_worker().slice_to_lake(table, until=until)
    except CdcError as error:
        log.warning("table not applied", table=str(table), found=str(error))
        return TableResult(table=table, applied=None, error=error)
    return TableResult(table=table, applied=applied, error=None)
