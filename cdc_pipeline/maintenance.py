"""Upkeep of one table's lake files, under the table's lease, so that no slice is applied meanwhile."""

import time
from datetime import timedelta
from typing import Any

import structlog

from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.lease_keeper import held_lease
from cdc_pipeline.record import TableName
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_EVERY_VERSION = "~"
"""Greater than any version of a stream that keeps its order."""


def maintain(pipeline: Pipeline, table: TableName, retention: timedelta) -> dict[str, Any]:
    """Merges small files, removes tombstones, then deletes files that no version younger than `retention` names.

    Tombstones stay where something older than they are may still come: while events are kept in quarantine, and for
    streams without an order.

    A busy lease, or a table without a lake, is no failure: the next run comes. Raises UsageError below seven days.
    """
    started = time.monotonic()
    ended = _maintain(pipeline, table, retention)
    report = {"table": str(table), "ended": ended, "seconds": round(time.monotonic() - started, 1)}
    log.info("maintenance ended", **report)
    return report


def _maintain(pipeline: Pipeline, table: TableName, retention: timedelta) -> str:
    row = pipeline.store.tables.table(table)
    lease_length = pipeline.settings.worker.lease
    try:
        with held_lease(pipeline.store.leases, row.table_id, owner=pipeline.owner, duration=lease_length) as held:
            lake_table = pipeline.lake_table(table)
            if pipeline.lake.read_version(lake_table) is None:
                return "the table has no lake yet"
            pipeline.lake.optimize(lake_table)
            held[1].check()
            if lake_table.ordered and not pipeline.store.slices.awaits_quarantined(row.table_id):
                pipeline.lake.purge(lake_table, _EVERY_VERSION)
            held[1].check()
            pipeline.lake.vacuum(lake_table, retention)
    except LeaseBusy as busy:
        return f"left for the next run: {busy.found}"
    return "done"
