"""Upkeep of one table's lake files, under the table's lease, so that no slice is applied meanwhile."""

import time
from datetime import timedelta
from typing import Any

import structlog

from cdc_pipeline.errors import LeaseBusy
from cdc_pipeline.lake.protocol import NOTHING_APPLIED, LakeTable
from cdc_pipeline.metadata_store.lease_keeper import held_lease
from cdc_pipeline.record import TableName
from cdc_pipeline.source_setup import oldest_version_to_come
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_FENCE_AGE = timedelta(days=3)
"""Less than half of the time for which the lake's log keeps a commit."""
_EVERY_VERSION = "~"
"""Greater than any version of a stream that keeps its order."""


def maintain(pipeline: Pipeline, table: TableName, retention: timedelta) -> dict[str, Any]:
    """Merges small files, removes tombstones, then deletes files that no version younger than `retention` names.

    Tombstones stay where something older than they are may still come: out of quarantine, or from a stream without an
    order that promises nothing.

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
            pipeline.lake.keep_fence(lake_table, older_than=_FENCE_AGE)
            pipeline.lake.optimize(lake_table)
            held[1].check()
            below = _purgeable(pipeline, lake_table, row.table_id)
            if below:
                pipeline.lake.purge(lake_table, below)
            held[1].check()
            pipeline.lake.vacuum(lake_table, retention)
    except LeaseBusy as busy:
        return f"left for the next run: {busy.found}"
    return "done"


def _purgeable(pipeline: Pipeline, table: LakeTable, table_id: int) -> str:
    """The version below which no tombstone has anything left to meet; "" where all have to stay.

    A horizon counts once the lake has every slice that was registered before it.
    """
    if table.ordered:
        return "" if pipeline.store.slices.awaits_late(table_id) else _EVERY_VERSION
    fence = pipeline.lake.read_fence(table)
    applied = NOTHING_APPLIED if fence is None else fence.number
    horizons = pipeline.store.tombstone_horizons
    horizon = horizons.horizon(table_id)
    if horizon.number > applied:
        return ""
    risen = horizons.promise(table_id, oldest_version_to_come(pipeline, table.name))
    return horizon.version if risen.number > applied else risen.version
