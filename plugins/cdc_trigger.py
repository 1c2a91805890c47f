"""Triggers that turn waiting slices and wanted snapshots into asset events. A pipeline's tables share one poller."""

import time
import zlib
from collections.abc import AsyncIterator, Hashable
from datetime import timedelta
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from cdc_wake_up_policy import WakeUpPolicy

POLL_INTERVAL = timedelta(seconds=1)
FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=5)


class _StoreTrigger(BaseEventTrigger):
    """Shares one poller of the metadata store with all triggers of the same pipeline."""

    def __init__(self, pipeline: str) -> None:
        BaseEventTrigger.__init__(self)
        self.pipeline = pipeline

    def shared_stream_key(self) -> Hashable:
        return ("cdc", self.pipeline)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        from cdc_pipeline.metadata_store.ledger.backlogs import backlogs

        async for found in backlogs(_metadata_store_url, kwargs["pipeline"], poll_interval=POLL_INTERVAL):
            yield found

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async for event in self.filter_shared_stream(self.open_shared_stream(self.serialize()[1])):
            yield event


class SliceReadyTrigger(_StoreTrigger):
    """Fires while slices of the table wait, at the times of the wake-up policy.

    It is level-triggered: slices that waited before it started fire it too, and so do slices that a run did not apply.
    Airflow's database has only names; the triggerer's environment says where the metadata store is.
    """

    def __init__(self, pipeline: str, table: str) -> None:
        _StoreTrigger.__init__(self, pipeline)
        self.table = table

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.SliceReadyTrigger", {"pipeline": self.pipeline, "table": self.table}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        policy = WakeUpPolicy(FIRST_PAUSE, LONGEST_PAUSE)
        async for found in shared_stream:
            backlog = found.get(self.table)
            backlog = None if backlog is not None and backlog.wants_snapshot else backlog
            newest, is_leased = (backlog.newest, backlog.is_leased) if backlog else (None, False)
            if policy.wakes(newest, is_leased=is_leased, now=time.monotonic()):
                yield TriggerEvent({"table": self.table, "newest_slice": newest})


class SnapshotWantedTrigger(_StoreTrigger):
    """Fires while tables need a snapshot because their stream misses a change, and none of them is being taken."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.SnapshotWantedTrigger", {"pipeline": self.pipeline}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        policy = WakeUpPolicy(FIRST_PAUSE, LONGEST_PAUSE)
        async for found in shared_stream:
            wanted = sorted(name for name, backlog in found.items() if backlog.wants_snapshot)
            which = zlib.crc32(",".join(wanted).encode()) if wanted else None
            if policy.wakes(which, is_leased=False, now=time.monotonic()):
                yield TriggerEvent({"tables": wanted})


def _metadata_store_url() -> str:
    from cdc_pipeline.wiring import configured_endpoints

    return configured_endpoints().metadata_store_url
