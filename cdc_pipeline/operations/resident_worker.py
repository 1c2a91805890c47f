"""A resident worker: takes requests for slice runs from the metadata store, and runs several of them side by side.

It keeps its imports, connections and Spark sessions between runs, so a run costs little more than its claims.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import Event, Lock
from typing import Any
from uuid import UUID

import structlog
from structlog.contextvars import bound_contextvars
from structlog.typing import EventDict, WrappedLogger

from cdc_pipeline.errors import CdcError, SetupError, StaleEpoch, StoreAway, redacted
from cdc_pipeline.metadata_store.lease_keeper import renewed
from cdc_pipeline.metadata_store.slice_requests import MOST_ATTEMPTS, SliceRequest, SliceRequests
from cdc_pipeline.metadata_store.states import RequestState
from cdc_pipeline.settings.retry_policy import RetryPolicy

log = structlog.get_logger()

REQUEST = "request"
"""The key under which each log line of a run has the id of its request."""
MOST_LINES = 200
GRACE = timedelta(seconds=3)
"""How long runs may go on after SIGTERM before their requests are handed back."""
GRACE_OF_A_CHANGE = timedelta(seconds=30)
"""How long runs may go on after the settings have changed. Meanwhile no other table of the worker gets a run."""
LONGEST_SILENCE = timedelta(hours=2)
"""While a run has logged nothing, such as a claim, for longer, the worker has no heartbeat for its supervisor.

The supervisor then ends the worker: a thread cannot be ended.
"""
_ALONE = timedelta(minutes=2)
"""For so long the last attempt of a run stays alone. Later it has one slot as any other, since it may hang."""
_POLL = timedelta(milliseconds=200)
_STORE_AWAY_PAUSE = timedelta(seconds=1)

Run = Callable[[SliceRequest], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A run in a thread, since `begun` by the monotonic clock. `is_last`: if it ends its worker, it is given up."""

    request_id: UUID
    begun: float
    is_last: bool


def _is_alone(run: Running) -> bool:
    """Returns whether no other run may begin beside this one: what ended two workers soon may end this one soon."""
    return run.is_last and time.monotonic() - run.begun < _ALONE.total_seconds()


@dataclass(frozen=True, slots=True)
class RunLines:
    """Keeps the last MOST_LINES log lines of each run, for the log of its Airflow task. A processor of structlog."""

    render: Callable[[EventDict], str]
    _lines: dict[str, "deque[str]"] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        request = event.get(REQUEST)
        if request is not None:
            line = self.render({name: value for name, value in event.items() if name != REQUEST})
            with self._lock:
                self._lines.setdefault(request, deque(maxlen=MOST_LINES)).append(line)
                self._last[request] = time.monotonic()
        return event

    def last(self, request: str) -> float:
        """Returns when the run logged its last line, by the monotonic clock; minus infinity before its first one."""
        return self._last.get(request, float("-inf"))

    def taken(self, request: str) -> str:
        """Returns the lines of a run, and forgets them."""
        with self._lock:
            self._last.pop(request, None)
            return "\n".join(self._lines.pop(request, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentWorker:
    """`run` applies the slices of a request's table and returns the report. It is called from several threads.

    `slots`: most runs at the same time. `is_current`: whether the settings that this worker was built with still hold.
    `retry_policy`: of tables whose runs end their workers.
    A worker that dies loses nothing: its requests are free for other workers when its heartbeat has expired, after at
    most `lease_length`.
    """

    owner: str
    lease_length: timedelta
    slots: int
    requests: SliceRequests
    run: Run
    lines: RunLines
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    is_current: Callable[[], bool] = lambda: True
    settings_poll: timedelta = timedelta(seconds=10)
    grace: timedelta = GRACE
    grace_of_a_change: timedelta = GRACE_OF_A_CHANGE
    longest_silence: timedelta = LONGEST_SILENCE

    def work(self, stop: Event, beat: Callable[[], None], *, until_idle: bool = False) -> None:
        """Works until `stop` is set, or with `until_idle` until no request waits. Calls `beat` about every second.

        Also returns when the settings have changed; runs have `grace_of_a_change` to end. When `stop` is set, they have
        `grace`. Then the requests and leases of those that go on are handed back. Such a run commits no more once it
        notices that; until then the fence keeps its rows from counting twice.
        """
        renew = partial(self.requests.renew, self.owner, duration=self.lease_length)
        sent = time.monotonic()
        renew()
        threads = ThreadPoolExecutor(max_workers=self.slots, thread_name_prefix="slice run")
        runs = dict[Future[bool], Running]()
        try:
            with renewed(renew, self.lease_length, sent=sent, what=f"worker {self.owner}"):
                self._take_and_run(threads, runs, stop, beat, until_idle=until_idle)
                wait(runs, timeout=self.grace.total_seconds())
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
        self.requests.leave(self.owner)

    def _take_and_run(
        self,
        threads: ThreadPoolExecutor,
        runs: "dict[Future[bool], Running]",
        stop: Event,
        beat: Callable[[], None],
        *,
        until_idle: bool,
    ) -> None:
        is_current, checked, left = True, time.monotonic(), set[UUID]()
        while not stop.is_set():
            if is_current and time.monotonic() - checked >= self.settings_poll.total_seconds():
                is_current, checked = self.is_current(), time.monotonic()
            if not is_current and time.monotonic() - checked >= self.grace_of_a_change.total_seconds():
                return
            if not any(self._is_silent(run) for run in runs.values()):
                beat()
            for ended in [run for run in runs if run.done()]:
                request_id = runs.pop(ended).request_id
                if not ended.result():
                    left.add(request_id)
            known = [run.request_id for run in runs.values()]
            has_room = is_current and len(runs) < self.slots and not any(map(_is_alone, runs.values()))
            request = self._next(known, may_fail=until_idle) if has_room else None
            if request is not None:
                is_last = request.attempts >= MOST_ATTEMPTS
                running = Running(request_id=request.request_id, begun=time.monotonic(), is_last=is_last)
                runs[threads.submit(self._run, request, stop)] = running
            elif runs:
                wait(runs, timeout=_POLL.total_seconds(), return_when=FIRST_COMPLETED)
            elif not is_current or (until_idle and not any(map(self._is_own, left))):
                return
            else:
                stop.wait(_POLL.total_seconds())

    def _is_silent(self, run: Running) -> bool:
        last = max(run.begun, self.lines.last(str(run.request_id)))
        return time.monotonic() - last >= self.longest_silence.total_seconds()

    def _is_own(self, request_id: UUID) -> bool:
        """Returns whether the worker still has a request whose run it left; it takes it again once it can."""
        found = self.requests.find(request_id)
        return found is not None and (found.state, found.worker) == (RequestState.TAKEN, self.owner)

    def _next(self, running: Sequence[UUID], *, may_fail: bool) -> SliceRequest | None:
        """Takes a request, if one is free. Waits for a metadata store that is away, or raises StoreAway if it may."""
        try:
            return self.requests.take(self.owner, running=running, retry_policy=self.retry_policy)
        except CdcError as error:
            if may_fail or not error.retryable:
                raise
            log.warning("no request taken", found=error.found)
            return None

    def _run(self, request: SliceRequest, stop: Event) -> bool:
        """Runs in a thread. An error ends the run and no other one. Returns whether the request has ended.

        If the metadata store was away, or the table's lease was lost, the request is left as it is: the worker takes it
        again when the store is back and the lease is free, unless it was cancelled.
        """
        report, error = None, None
        with bound_contextvars(**{REQUEST: str(request.request_id)}):
            log.info("slice run begins", table=str(request.table), worker=self.owner, attempt=request.attempts)
            try:
                report = self.run(request)
            except CdcError as failed:
                if isinstance(failed, (StoreAway, StaleEpoch)) and request.attempts < MOST_ATTEMPTS:
                    log.warning(
                        "slice run is tried again if still wanted", table=str(request.table), found=failed.found
                    )
                    self.lines.taken(str(request.request_id))
                    stop.wait(_STORE_AWAY_PAUSE.total_seconds())
                    return False
                error = str(failed)
            except Exception as failed:  # a thread has no caller: the error goes to the request and to the worker's log
                log.exception("slice run failed", table=str(request.table))
                error = redacted(f"{type(failed).__name__}: {failed}; the traceback is in the log of {self.owner}")
        lines = self.lines.taken(str(request.request_id))
        while not self._ended(request, report, error, lines):
            if stop.wait(_POLL.total_seconds()):
                return False
        return True

    def _ended(self, request: SliceRequest, report: Mapping[str, Any] | None, error: str | None, lines: str) -> bool:
        """Returns whether the outcome is recorded, or no longer wanted. False while the metadata store is away.

        An outcome that cannot be recorded is replaced by an error that says so.
        """
        try:
            try:
                is_wanted = self.requests.end(request, report=report, error=error, log=lines)
            except (StoreAway, SetupError):
                raise
            except Exception:  # whatever it is, it ends this request and no other one
                log.exception("outcome not recorded", table=str(request.table), report=report, error=error)
                refused = f"what came of the run cannot be recorded; it is in the log of {self.owner}"
                is_wanted = self.requests.end(request, report=None, error=refused)
        except CdcError as away:
            log.warning("outcome not recorded yet", table=str(request.table), found=away.found)
            return False
        if not is_wanted:
            log.info("the outcome of a run is not wanted any more", table=str(request.table))
        return True
