"""A resident worker: tables side by side, none in another's way, and requests that outlive it."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any
from uuid import UUID

import pytest
import structlog
from structlog.contextvars import merge_contextvars
from structlog.processors import JSONRenderer

from cdc_pipeline.errors import CdcError, LakeError, StaleEpoch, StoreAway
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.slice_requests import SliceRequest
from cdc_pipeline.metadata_store.states import RequestState
from cdc_pipeline.operations.resident_worker import REQUEST, ResidentWorker, RunLines
from tests.support.eventually import eventually
from tests.support.metadata_store import MINUTE, Shop, opened_shop

ORDERS, CUSTOMERS = UUID(int=1), UUID(int=2)


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    """Runs are asked for of both tables."""
    with opened_shop(store_url) as shop:
        for request_id, table in ((ORDERS, shop.orders), (CUSTOMERS, shop.customers)):
            shop.store.slice_requests.ask(request_id, table.name, by_hand=False)
        yield shop


def worker(shop: Shop, run: Callable[[SliceRequest], Mapping[str, Any]], lines: RunLines) -> ResidentWorker:
    return ResidentWorker(
        owner="resident",
        lease_length=MINUTE,
        slots=2,
        requests=shop.store.slice_requests,
        run=run,
        lines=lines,
        grace=timedelta(milliseconds=10),
    )


def outcome(shop: Shop, request_id: UUID) -> SliceRequest:
    found = shop.store.slice_requests.find(request_id)
    assert found is not None
    return found


def test_a_table_that_hangs_or_fails_holds_no_other(shop: Shop) -> None:
    other_has_ended, beats = Event(), list[int]()

    def run(request: SliceRequest) -> Mapping[str, Any]:
        if request.request_id == CUSTOMERS:
            message = "Spark is gone"
            raise LakeError(message)
        assert other_has_ended.wait(30)
        return {"claims": 1}

    worker_of_both = worker(shop, run, RunLines(str))
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(worker_of_both.work, Event(), lambda: beats.append(1), until_idle=True)
        assert eventually(lambda: outcome(shop, CUSTOMERS).state is RequestState.FAILED)
        assert outcome(shop, ORDERS).state is RequestState.TAKEN
        other_has_ended.set()
        working.result(30)
    assert outcome(shop, ORDERS).report == {"claims": 1}
    assert outcome(shop, CUSTOMERS).error == "Spark is gone"
    assert beats


def test_nothing_new_begins_beside_a_run_that_ended_two_workers(shop: Shop) -> None:
    """Whatever ends them takes the other runs with it, and those would be given up too."""
    for dead in ("first", "second"):
        taken = shop.store.slice_requests.take(dead)
        assert taken is not None
        assert taken.request_id == ORDERS
    beside = list[RequestState]()

    def run(request: SliceRequest) -> Mapping[str, Any]:
        if request.request_id == ORDERS:
            looked = time.monotonic() + 1
            eventually(lambda: time.monotonic() > looked or outcome(shop, CUSTOMERS).state is RequestState.TAKEN)
            beside.append(outcome(shop, CUSTOMERS).state)
        return {}

    worker(shop, run, RunLines(str)).work(Event(), lambda: None, until_idle=True)
    assert beside == [RequestState.REQUESTED]
    assert {outcome(shop, each).state for each in (ORDERS, CUSTOMERS)} == {RequestState.DONE}


def test_an_error_that_nobody_foresaw_ends_its_run_and_no_other(shop: Shop) -> None:
    def run(request: SliceRequest) -> Mapping[str, Any]:
        return {"half": 1 / (request.request_id != CUSTOMERS)}

    worker(shop, run, RunLines(str)).work(Event(), lambda: None, until_idle=True)
    assert outcome(shop, ORDERS).report == {"half": 1.0}
    assert "ZeroDivisionError: division by zero" in str(outcome(shop, CUSTOMERS).error)


@pytest.mark.parametrize("value", ["a\0b", "caf\udce9"], ids=["NUL", "no UTF-8"])
def test_a_run_whose_error_quotes_what_no_store_takes_ends_with_that_error(shop: Shop, value: str) -> None:
    def run(request: SliceRequest) -> Mapping[str, Any]:
        if request.request_id == CUSTOMERS:
            message = f"no folder {value}"
            raise LakeError(message)
        return {}

    worker(shop, run, RunLines(str)).work(Event(), lambda: None, until_idle=True)
    assert outcome(shop, ORDERS).state is RequestState.DONE
    assert outcome(shop, CUSTOMERS).error == f"no folder {value!r}".replace("'", "")


def test_a_run_whose_outcome_cannot_be_recorded_fails_and_no_other_one(shop: Shop) -> None:
    def run(request: SliceRequest) -> Mapping[str, Any]:
        return {"claims": object() if request.request_id == CUSTOMERS else 1}

    worker(shop, run, RunLines(str)).work(Event(), lambda: None, until_idle=True)
    assert outcome(shop, ORDERS).report == {"claims": 1}
    assert outcome(shop, CUSTOMERS).error == "what came of the run cannot be recorded; it is in the log of resident"


@pytest.mark.parametrize("error", [StoreAway, StaleEpoch])
def test_a_run_that_meets_a_metadata_store_that_is_away_is_tried_again_twice(shop: Shop, error: type[CdcError]) -> None:
    """If it is away for long during a MERGE, the run has lost its lease when it wants to commit."""
    tries = list[UUID]()

    def run(request: SliceRequest) -> Mapping[str, Any]:
        tries.append(request.request_id)
        if request.request_id == CUSTOMERS or tries.count(ORDERS) == 1:
            message = "nobody listens"
            raise error(message)
        return {"claims": 1}

    worker(shop, run, RunLines(str)).work(Event(), lambda: None, until_idle=True)
    assert (tries.count(ORDERS), outcome(shop, ORDERS).report) == (2, {"claims": 1})
    assert (tries.count(CUSTOMERS), outcome(shop, CUSTOMERS).error) == (3, "nobody listens")


def test_a_worker_is_not_idle_while_it_waits_for_the_lease_of_a_run_that_it_left(shop: Shop) -> None:
    """As of a run whose metadata store was away also when it released its lease."""
    leases, tries = list[Lease](), list[UUID]()

    def run(request: SliceRequest) -> Mapping[str, Any]:
        tries.append(request.request_id)
        if not leases:
            leases.append(shop.acquire("resident"))
            message = "nobody listens"
            raise StoreAway(message)
        return {"claims": 1}

    shop.store.slice_requests.cancel(CUSTOMERS)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(worker(shop, run, RunLines(str)).work, Event(), lambda: None, until_idle=True)
        try:
            assert not eventually(working.done, seconds=3)
        finally:
            shop.store.leases.release(leases[0])
        working.result(30)
    assert (tries, outcome(shop, ORDERS).report) == ([ORDERS] * 2, {"claims": 1})


def test_a_worker_that_is_stopped_hands_its_runs_back(shop: Shop) -> None:
    stop, has_begun, may_end = Event(), Event(), Event()

    def run(request: SliceRequest) -> Mapping[str, Any]:
        if request.request_id == ORDERS:
            shop.acquire("resident")
            has_begun.set()
            may_end.wait(30)
        return {}

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(worker(shop, run, RunLines(str)).work, stop, lambda: None)
        assert has_begun.wait(30)
        stop.set()
        working.result(30)
        assert outcome(shop, ORDERS).state is RequestState.REQUESTED
        assert shop.acquire("another")
        may_end.set()


def test_a_worker_whose_settings_have_changed_ends_its_runs_and_leaves(shop: Shop) -> None:
    resident = replace(worker(shop, lambda _: {}, RunLines(str)), is_current=lambda: False, settings_poll=timedelta())
    resident.work(Event(), lambda: None)
    assert outcome(shop, ORDERS).state is RequestState.REQUESTED


def test_a_long_run_holds_no_table_back_after_the_settings_have_changed(shop: Shop) -> None:
    stop, begun, may_end = Event(), Event(), Event()

    def run(_: SliceRequest) -> Mapping[str, Any]:
        begun.set()
        assert may_end.wait(30)
        return {}

    resident = replace(
        worker(shop, run, RunLines(str)),
        is_current=lambda: not begun.is_set(),
        settings_poll=timedelta(),
        grace_of_a_change=timedelta(milliseconds=10),
    )
    try:
        resident.work(stop, lambda: None)
        assert outcome(shop, ORDERS).state is RequestState.REQUESTED
    finally:
        stop.set()
        may_end.set()


@pytest.mark.parametrize("logs", [True, False], ids=["goes on", "hangs"])
def test_a_worker_has_a_heartbeat_however_long_a_run_takes_that_goes_on(shop: Shop, *, logs: bool) -> None:
    lines, longest, late_beats = RunLines(str), timedelta(seconds=1), list[int]()
    begun, may_end = list[float](), Event()
    structlog.configure(processors=[merge_contextvars, lines, JSONRenderer()])

    def beat() -> None:
        if begun and time.monotonic() - begun[0] > 2 * longest.total_seconds():
            late_beats.append(1)

    def run(_: SliceRequest) -> Mapping[str, Any]:
        begun.append(time.monotonic())
        while not may_end.wait(0.05):
            if logs:
                structlog.get_logger().info("claim applied")
        return {}

    shop.store.slice_requests.cancel(CUSTOMERS)
    resident = replace(worker(shop, run, lines), longest_silence=longest)
    try:
        with ThreadPoolExecutor(1) as threads:
            working = threads.submit(resident.work, Event(), beat, until_idle=True)
            try:
                assert eventually(lambda: bool(late_beats), seconds=4) is logs
            finally:
                may_end.set()
            working.result(30)
    finally:
        structlog.reset_defaults()


def test_each_run_keeps_the_lines_that_it_logged_itself(shop: Shop) -> None:
    lines = RunLines(lambda event: str(event["event"]))
    structlog.configure(processors=[merge_contextvars, lines, JSONRenderer()])

    def run(request: SliceRequest) -> Mapping[str, Any]:
        structlog.get_logger().info(f"applied {request.table}")
        return {}

    try:
        worker(shop, run, lines).work(Event(), lambda: None, until_idle=True)
    finally:
        structlog.reset_defaults()
    assert outcome(shop, ORDERS).log == "slice run begins\napplied shop.public.orders"
    assert lines(None, "info", {"event": "of no run", REQUEST: None})
    assert lines.taken(str(ORDERS)) == ""
