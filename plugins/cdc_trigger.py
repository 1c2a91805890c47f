"""Triggers that turn waiting slices and wanted snapshots into asset events, and that end slice runs.

A pipeline's tables share one poller.
"""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Hashable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from airflow.utils.types import DagRunType
from cdc_dag import is_by_hand
from cdc_open_store import metadata_store_url, open_store
from cdc_wake_up_policy import FIRST_PAUSE, WakeUpPolicy, WorkerWatch, wake_up_policy_of_snapshots

from cdc_pipeline.errors import CdcError, NoWorker, StoreAway
from cdc_pipeline.metadata_store.states import NOT_REGISTERED, RequestState
from cdc_pipeline.record import TableName

if TYPE_CHECKING:
    from cdc_pipeline.metadata_store.ledger.backlogs import RecentRequest
    from cdc_pipeline.metadata_store.slice_requests import SliceRequest

POLL_INTERVAL = timedelta(milliseconds=200)
LONGEST_PAUSE = timedelta(minutes=5)
TURN_OF_A_RUN = timedelta(seconds=5)
"""How long a slice is left to the open run of its table."""
WITHOUT_WORKERS = timedelta(seconds=60)
"""How long a slice run waits while no resident worker is alive."""
LONGEST_TRY = timedelta(hours=1)
"""Ends a try of a slice run from inside its task. In the triggerer, its request stays with the worker."""
UNTIL_ERRORS_ARE_READ = timedelta(seconds=1)
"""How long a task stays open after its error. Airflow reads the lines of all triggers 4 KiB at a time, between queries
of its database. A line that it reads after its trigger has ended is missing from the log of the task.
"""


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

        async for found in backlogs(metadata_store_url, kwargs["pipeline"], poll_interval=POLL_INTERVAL):
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
        policy = WakeUpPolicy(FIRST_PAUSE, LONGEST_PAUSE, TURN_OF_A_RUN)
        async for found in shared_stream:
            backlog = found.get(self.table)
            waits = backlog is not None and not backlog.wants_snapshot
            newest = backlog.newest if waits else None
            is_leased, is_awaited = (backlog.is_leased, backlog.is_awaited) if waits else (False, False)
            if policy.wakes(newest, is_leased=is_leased, is_awaited=is_awaited, now=time.monotonic()):
                yield TriggerEvent({"table": self.table, "newest_slice": newest})


class SnapshotWantedTrigger(_StoreTrigger):
    """Fires while tables need a snapshot because their stream misses a change, and none of them is being taken.

    `tables`: those of pipeline.yml. A consumer that still reads with an older one may want snapshots of others.
    """

    def __init__(self, pipeline: str, tables: list[str]) -> None:
        _StoreTrigger.__init__(self, pipeline)
        self.tables = tables

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.SnapshotWantedTrigger", {"pipeline": self.pipeline, "tables": self.tables}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        policy = wake_up_policy_of_snapshots()
        async for found in shared_stream:
            wanted = sorted(name for name in self.tables if name in found and found[name].wants_snapshot)
            which = zlib.crc32(",".join(wanted).encode()) if wanted else None
            if policy.wakes(which, is_leased=False, now=time.monotonic()):
                yield TriggerEvent({"tables": wanted})


class SliceRunTrigger(_StoreTrigger):
    """Runs a slice task without a task process: asks the resident workers for the run, and ends the task with them.

    The id of the task instance is the id of the request, so a trigger that starts again elsewhere finds its request.
    A triggerer that hung ends the triggers that another one has now, and cancels their requests; they ask again.
    If the table has a request of another run that has not ended, this run waits for that one and ends with its result,
    unless a person cancels that one. With `resumes`, a run that applied something ends in a task process, which updates
    the table's asset.

    Without `resumes`, a run that applied something stays open for `run_seconds` and asks again for each new slice,
    because a new run costs some seconds in Airflow. A run that a person or another DAG started does not stay open.
    """

    def __init__(self, pipeline: str, table: str, *, resumes: bool, run_seconds: float = 0.0) -> None:
        _StoreTrigger.__init__(self, pipeline)
        self.table = table
        self.resumes = resumes
        self.run_seconds = run_seconds
        self._request: SliceRequest | None = None
        self._asked_for: int | None = None
        self._is_killed = False
        self._watch = WorkerWatch(WITHOUT_WORKERS)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.SliceRunTrigger", {
            "pipeline": self.pipeline,
            "table": self.table,
            "resumes": self.resumes,
            "run_seconds": self.run_seconds,
        }

    def shared_stream_key(self) -> Hashable:
        return ("cdc slice runs", self.pipeline)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        from cdc_pipeline.metadata_store.ledger.backlogs import recent_requests

        async for found in recent_requests(metadata_store_url, kwargs["pipeline"], poll_interval=POLL_INTERVAL):
            yield found

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        event = await self._tried(None)
        while event is None:
            recent = await anext(shared_stream)
            event = await self._tried(recent.get(self.table))
        yield event

    async def on_kill(self) -> None:
        """Cancels the request. Airflow calls this when a person ends or clears the task.

        If this run follows the request of another one whose task has ended at LONGEST_TRY, cancels that one.
        """
        self._is_killed = True
        await asyncio.to_thread(self._cancel)
        await asyncio.to_thread(self._cancel_overdue)

    async def _tried(self, recent: "RecentRequest | None") -> TriggerEvent | None:
        """Returns what `_event` does; None while the metadata store is away. Any other error of ours ends the task."""
        try:
            return await self._event(recent)
        except StoreAway as error:
            self.log.warning("the metadata store is away: %s", error.found)
            return None
        except CdcError as error:  # such as of a pipeline.yml that somebody edits
            return await self._failed(str(error))

    async def _event(self, recent: "RecentRequest | None") -> TriggerEvent | None:
        """Asks at the first call. Returns the event that ends the task; None while the run is open."""
        known = self._request
        if known is None:
            self._request = await asyncio.to_thread(self._ask)
            if self._request is None:
                return TaskSuccessEvent(xcoms={"return_value": {"table": self.table, "ended": NOT_REGISTERED}})
            words = "asked for" if self._is_own(self._request) else "another run has asked for"
            self.log.info("%s a run of %s, request %s", words, self.table, self._request.request_id)
        elif known.has_ended:
            return await self._going_on(known, recent)
        elif recent is not None and recent.request_id == known.request_id and recent.state in ("requested", "taken"):
            return await self._waiting(recent)
        else:
            self._request = await asyncio.to_thread(self._find, known)
            if self._request is None:
                ended = "it has ended, and the record of a newer run has replaced what came of it"
                return TaskSuccessEvent(xcoms={"return_value": {"table": self.table, "ended": ended}})
        if self._request.state is RequestState.CANCELLED and not self._is_killed:
            self._request = None  # a run that was ended did it, or a triggerer that hung: this one asks for itself
            return None
        return await self._ended(self._request) if self._request.has_ended else None

    async def _ended(self, request: "SliceRequest") -> TriggerEvent | None:
        """Logs what came of the request. Returns the event that ends the task; None when its run stays open."""
        for line in (request.log or "").splitlines():
            self.log.info("%s", line)
        if request.state is not RequestState.DONE or request.report is None:
            return await self._failed(request.error or f"the run was {request.state}")
        self.log.info("%s", request.report)
        if request.goes_on_until is not None and self._is_own(request):
            if request.report.get("claims"):
                return None
            await asyncio.to_thread(self._go_on_no_longer, request)
        return self._success(request)

    async def _going_on(self, request: "SliceRequest", recent: "RecentRequest | None") -> TriggerEvent | None:
        """Asks again for a new slice. Returns the event that ends the task: its time is over, or a newer run came."""
        if recent is None or recent.request_id != request.request_id or not recent.goes_on:
            return self._success(request)
        if recent.newest not in (None, self._asked_for):
            self.log.info("asked again for %s: slice %d waits", self.table, recent.newest)
            self._request = replace(request, state=RequestState.REQUESTED)  # also if the answer is lost
            again = await asyncio.to_thread(self._ask_again, request)
            self._request, self._asked_for = again or request, recent.newest
        return None

    async def _waiting(self, recent: "RecentRequest") -> TriggerEvent | None:
        if not self._watch.gives_up(is_alive=recent.has_workers, now=time.monotonic()):
            return None
        await asyncio.to_thread(self._cancel)
        nobody = NoWorker(
            f"no resident worker of {self.pipeline} has been alive for {WITHOUT_WORKERS.total_seconds():.0f} s",
            expected="a process `cdc work`",
            remedy="start one, or set worker.runs: task in pipeline.yml; the slices wait until then",
        )
        return await self._failed(str(nobody))

    def _success(self, request: "SliceRequest") -> TriggerEvent:
        report: dict[str, Any] = dict(request.report or {})
        if self.resumes and report.get("claims") and self._is_own(request):
            return TriggerEvent(report)
        return TaskSuccessEvent(xcoms={"return_value": report})

    async def _failed(self, error: str) -> TriggerEvent:
        self.log.error("%s", error)
        await asyncio.sleep(UNTIL_ERRORS_ARE_READ.total_seconds())
        return TaskFailedEvent()

    def _is_own(self, request: "SliceRequest") -> bool:
        instance: Any = self.task_instance
        return str(request.request_id) == str(instance.id)

    def _ask(self) -> "SliceRequest | None":
        instance: Any = self.task_instance
        by_hand = is_by_hand(DagRunType.from_run_id(instance.run_id))
        goes_on_for = None if by_hand or self.resumes else timedelta(seconds=self.run_seconds)
        with open_store(self.pipeline) as store:
            asked = store.slice_requests.ask(
                instance.id, TableName.parse(self.table), by_hand=by_hand, goes_on_for=goes_on_for
            )
            if self._is_killed:  # while this thread waited for the store: nobody else ends the request
                store.slice_requests.cancel(instance.id)
            return asked

    def _ask_again(self, known: "SliceRequest") -> "SliceRequest | None":
        instance: Any = self.task_instance
        with open_store(self.pipeline) as store:
            again = store.slice_requests.ask_again(known.request_id)
            if self._is_killed:  # as in `_ask`
                store.slice_requests.cancel(instance.id)
            return again

    def _go_on_no_longer(self, known: "SliceRequest") -> None:
        with open_store(self.pipeline) as store:
            store.slice_requests.go_on_no_longer(known.request_id)

    def _find(self, known: "SliceRequest") -> "SliceRequest | None":
        with open_store(self.pipeline) as store:
            return store.slice_requests.find(known.request_id)

    def _cancel(self) -> None:
        instance: Any = self.task_instance
        with open_store(self.pipeline) as store:
            store.slice_requests.cancel(instance.id)

    def _cancel_overdue(self) -> None:
        known = self._request
        with open_store(self.pipeline) as store:
            found = known and store.slice_requests.find(known.request_id)
            if found is None or found.state is not RequestState.TAKEN or found.taken_at is None:
                return
            if datetime.now(UTC) - found.taken_at > LONGEST_TRY:
                store.slice_requests.cancel(found.request_id)
