"""Scheduled runs over tables: what a run may leave to others, what it waits for, and the counts that it reports."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import structlog

from cdc_pipeline.application import apply_tables
from cdc_pipeline.errors import LeaseBusy, TablePauses
from cdc_pipeline.record import TableName
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()


def run_slices(pipeline: Pipeline, table: TableName, *, by_hand: bool = False) -> dict[str, Any]:
    """Applies what waits. A busy lease is a success, its holder does the work; so is a table that is still unknown.

    So is one that pauses after a failure: the run that failed has said so, and a later one tries again. So is one that
    waits for the snapshot that it asked for by itself.
    """
    row = pipeline.store.tables.find(table)
    if row is None:
        return {"table": str(table), "ended": "the consumer has not registered the table yet"}
    if row.snapshot_wanted:
        return {"table": str(table), "ended": f"a new snapshot of it follows: {row.parked_reason}"}
    (result,) = apply_tables(pipeline, [table], by_hand=by_hand)
    if result.error is not None and not isinstance(result.error, (LeaseBusy, TablePauses)):
        raise result.error
    log.info("slice run ended", **result.row())
    return result.row()


def run_backfill(
    pipeline: Pipeline, tables: Sequence[TableName], *, until: datetime | None = None
) -> list[dict[str, Any]]:
    """Applies what is registered and not applied, table by table, each as far as it can, a pausing one too.

    Raises afterwards what stopped a table, first of all what a later try can mend: LeaseBusy while another one works.
    """
    results = apply_tables(pipeline, tables, until=until, by_hand=True)
    errors = [result.error for result in results if result.error is not None]
    for error in sorted(errors, key=lambda found: not (found.retryable or isinstance(found, LeaseBusy))):
        raise error
    return [result.row() for result in results]
