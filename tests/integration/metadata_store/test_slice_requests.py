"""Requests for slice runs: one per table, taken by one live worker, and gone with the lease when cancelled."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta
from uuid import UUID

import pytest

from cdc_pipeline.errors import StaleEpoch
from cdc_pipeline.metadata_store.ledger.backlogs import Backlog, RecentRequest, backlogs, recent_requests
from cdc_pipeline.metadata_store.slice_requests import MOST_ATTEMPTS, SliceRequest
from cdc_pipeline.metadata_store.states import RequestState, TableState
from cdc_pipeline.record import TableName
from tests.support.metadata_store import MINUTE, STREAM, Shop, opened_shop
from tests.support.streams import run_sql

FIRST, SECOND = UUID(int=1), UUID(int=2)
DEAD = "UPDATE cdc.resident_worker SET expires_at = clock_timestamp() WHERE owner = '{}'"


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    """Two workers are alive."""
    with opened_shop(database) as shop:
        for worker in ("a", "b"):
            shop.store.slice_requests.renew(worker, duration=MINUTE)
        yield shop


def ask(shop: Shop, request_id: UUID = FIRST, *, by_hand: bool = False) -> SliceRequest:
    request = shop.store.slice_requests.ask(request_id, shop.orders.name, by_hand=by_hand)
    assert request is not None
    return request


def take(shop: Shop, worker: str = "a") -> SliceRequest:
    request = shop.store.slice_requests.take(worker)
    assert request is not None
    return request


def test_a_request_that_is_asked_for_again_stays_as_it_is(shop: Shop) -> None:
    assert ask(shop, by_hand=True).state is RequestState.REQUESTED
    taken = take(shop)
    assert (taken.request_id, taken.table, taken.by_hand, taken.worker) == (FIRST, shop.orders.name, True, "a")
    assert ask(shop) == taken


def test_a_newer_request_replaces_the_one_of_its_table_that_has_ended_and_no_other(shop: Shop) -> None:
    ask(shop)
    other = shop.store.slice_requests.ask(UUID(int=3), shop.customers.name, by_hand=False)
    assert shop.store.slice_requests.end(take(shop), report={})
    assert ask(shop, SECOND).request_id == SECOND
    assert shop.store.slice_requests.find(FIRST) is None
    assert other is not None
    assert [take(shop, worker).request_id for worker in ("a", "b")] == [other.request_id, SECOND]


def test_a_run_that_asks_while_another_goes_on_gets_the_request_of_that_one(shop: Shop) -> None:
    first = ask(shop)
    assert ask(shop, SECOND) == first
    taken = take(shop)
    assert ask(shop, SECOND, by_hand=True) == taken
    assert shop.store.slice_requests.find(SECOND) is None
    assert shop.store.slice_requests.end(taken, report={"claims": 1})


def test_a_person_who_asks_for_a_run_that_waits_makes_it_one_by_hand(shop: Shop) -> None:
    ask(shop)
    assert ask(shop, SECOND, by_hand=True).by_hand
    taken = take(shop)
    assert (taken.request_id, taken.by_hand) == (FIRST, True)


def test_a_table_that_is_not_registered_gets_no_request(shop: Shop) -> None:
    unknown = TableName(database="shop", schema="public", table="unknown")
    assert shop.store.slice_requests.ask(FIRST, unknown, by_hand=False) is None


def test_a_request_is_taken_once_and_its_outcome_is_kept(shop: Shop) -> None:
    ask(shop)
    taken = take(shop)
    assert shop.store.slice_requests.take("b") is None
    assert shop.store.slice_requests.end(taken, report={"claims": 1}, log="one\ntwo")
    found = shop.store.slice_requests.find(FIRST)
    assert found is not None
    assert (found.state, found.report, found.error, found.log) == (RequestState.DONE, {"claims": 1}, None, "one\ntwo")
    assert found.has_ended


def test_a_failed_run_leaves_its_error(shop: Shop) -> None:
    ask(shop)
    shop.store.slice_requests.end(take(shop), report=None, error="it broke")
    found = shop.store.slice_requests.find(FIRST)
    assert found is not None
    assert (found.state, found.report, found.error) == (RequestState.FAILED, None, "it broke")


def test_the_request_of_a_dead_worker_is_taken_when_the_tables_lease_has_expired_too(shop: Shop) -> None:
    ask(shop)
    take(shop, "a")
    lease = shop.acquire("a")
    run_sql(shop.url, DEAD.format("a"))
    assert shop.store.slice_requests.take("b") is None
    shop.store.leases.release(lease)
    again = take(shop, "b")
    assert (again.request_id, again.worker, again.attempts) == (FIRST, "b", 2)


def test_a_request_that_its_worker_does_not_know_of_is_given_to_it_again(shop: Shop) -> None:
    ask(shop)
    take(shop)
    assert shop.store.slice_requests.take("a", running=[FIRST]) is None
    assert take(shop).attempts == MOST_ATTEMPTS - 1


def test_a_run_that_was_given_up_does_not_end_the_next_one_of_its_request(shop: Shop) -> None:
    ask(shop)
    first, second = take(shop), take(shop)
    assert not shop.store.slice_requests.end(first, report={"claims": 1})
    assert shop.store.slice_requests.end(second, report={"claims": 2})
    found = shop.store.slice_requests.find(FIRST)
    assert found is not None
    assert found.report == {"claims": 2}


def test_a_request_that_ends_its_workers_is_failed(shop: Shop) -> None:
    ask(shop)
    for _ in range(MOST_ATTEMPTS):
        take(shop)
        run_sql(shop.url, DEAD.format("a"))
    assert shop.store.slice_requests.take("b") is None
    found = shop.store.slice_requests.find(FIRST)
    assert found is not None
    assert found.state is RequestState.FAILED
    assert "3 workers ended in the middle of this run" in str(found.error)


def test_a_worker_whose_heartbeat_expired_in_a_pause_keeps_what_it_runs(shop: Shop) -> None:
    ask(shop)
    for _ in range(MOST_ATTEMPTS):
        taken = take(shop)
        run_sql(shop.url, DEAD.format("a"))
        assert shop.store.slice_requests.take("a", running=[FIRST]) is None
    assert shop.store.slice_requests.find(FIRST) == taken


def test_a_table_whose_runs_end_their_workers_pauses_and_is_parked_in_the_end(shop: Shop) -> None:
    run_sql(shop.url, "UPDATE cdc.source_table SET state = 'live'")
    for failures, state in ((1, TableState.LIVE), (2, TableState.PARKED)):
        ask(shop, UUID(int=failures))
        for _ in range(MOST_ATTEMPTS):
            take(shop)
            shop.acquire("a")
            run_sql(shop.url, DEAD.format("a"), "UPDATE cdc.lease SET expires_at = clock_timestamp()")
        assert shop.store.slice_requests.take("b") is None
        failing = shop.store.failures.failing(shop.orders.table_id)
        assert failing is not None
        assert (failing.failures, failing.pauses) == (failures, True)
        assert "3 workers ended in the middle of this run" in failing.error
        assert shop.store.tables.table(shop.orders.name).state is state
        run_sql(shop.url, "UPDATE cdc.failing_table SET failing_since = failing_since - interval '1 hour'")


@pytest.mark.parametrize("ended", ["cancelled", "left"])
def test_a_worker_that_lost_its_request_loses_the_lease_too(shop: Shop, ended: str) -> None:
    ask(shop)
    taken, lease = take(shop, "a"), shop.acquire("a")
    beside = shop.store.leases.acquire(shop.customers.table_id, owner="a", duration=MINUTE)
    if ended == "cancelled":
        shop.store.slice_requests.cancel(FIRST)
    else:
        shop.store.slice_requests.leave("a")
    with pytest.raises(StaleEpoch):
        shop.store.leases.renew(lease, duration=MINUTE)
    assert shop.acquire("another").epoch == lease.epoch + 2
    shop.store.leases.renew(beside, duration=MINUTE)
    assert not shop.store.slice_requests.end(taken, report={})


@pytest.mark.parametrize("hand_backs", [1, MOST_ATTEMPTS])
def test_a_request_that_was_handed_back_is_taken_at_once(shop: Shop, hand_backs: int) -> None:
    ask(shop)
    for _ in range(hand_backs):
        take(shop, "a")
        shop.store.slice_requests.leave("a")
    assert take(shop, "b").attempts == MOST_ATTEMPTS - 1
    run_sql(shop.url, DEAD.format("b"))
    for _ in ("after a death", "after a death and one more hand-back"):
        assert take(shop, "a").attempts == MOST_ATTEMPTS
        shop.store.slice_requests.leave("a")


def test_a_cancelled_request_is_taken_by_nobody(shop: Shop) -> None:
    ask(shop)
    shop.store.slice_requests.cancel(FIRST)
    shop.store.slice_requests.cancel(FIRST)
    assert shop.store.slice_requests.take("a") is None
    found = shop.store.slice_requests.find(FIRST)
    assert found is not None
    assert found.state is RequestState.CANCELLED


def test_one_poll_shows_every_recent_request_and_whether_workers_are_alive(shop: Shop) -> None:
    async def first() -> dict[str, RecentRequest]:
        stream = recent_requests(lambda: shop.url, STREAM.name, poll_interval=timedelta(milliseconds=10))
        async with aclosing(stream), asyncio.timeout(30):
            return dict(await anext(stream))

    assert asyncio.run(first()) == {}
    ask(shop)
    name = str(shop.orders.name)
    asked = RecentRequest(request_id=FIRST, state="requested", worker=None, has_workers=True)
    assert asyncio.run(first()) == {name: asked}
    shop.store.slice_requests.end(take(shop), report={})
    run_sql(shop.url, DEAD.format("a"), DEAD.format("b"))
    assert asyncio.run(first())[name] == RecentRequest(request_id=FIRST, state="done", worker="a", has_workers=False)
    run_sql(shop.url, "UPDATE cdc.slice_request SET ended_at = ended_at - interval '2 minutes'")
    assert asyncio.run(first()) == {}


def test_a_request_for_a_table_whose_name_has_a_dot_is_found_by_the_name_that_its_run_has(shop: Shop) -> None:
    async def first() -> set[str]:
        stream = recent_requests(lambda: shop.url, STREAM.name, poll_interval=timedelta(milliseconds=10))
        async with aclosing(stream), asyncio.timeout(30):
            return set(await anext(stream))

    ask(shop)
    run_sql(shop.url, f"UPDATE cdc.source_table SET table_name = 'a.b' WHERE table_id = {shop.orders.table_id}")
    assert asyncio.run(first()) == {'shop.public."a.b"'}


def test_a_table_with_a_request_is_not_woken_again(shop: Shop) -> None:
    async def first() -> dict[str, bool]:
        stream = backlogs(lambda: shop.url, STREAM.name, poll_interval=timedelta(milliseconds=10))
        async with aclosing(stream), asyncio.timeout(30):
            return {name: backlog.is_leased for name, backlog in (await anext(stream)).items()}

    run_sql(shop.url, "UPDATE cdc.source_table SET state = 'live'")
    shop.register_orders(1)
    assert asyncio.run(first()) == {str(shop.orders.name): False}
    ask(shop)
    assert asyncio.run(first()) == {str(shop.orders.name): True}


def test_a_run_that_goes_on_asks_again_and_adds_up_what_came_of_it(shop: Shop) -> None:
    requests = shop.store.slice_requests
    first = requests.ask(FIRST, shop.orders.name, by_hand=False, goes_on_for=MINUTE)
    assert first is not None
    assert requests.end(take(shop), report={"claims": 1, "ended": "all", "by_hand": False}, log="one")
    again = requests.ask_again(FIRST)
    assert again is not None
    assert (again.state, again.goes_on_until, again.log) == (RequestState.REQUESTED, first.goes_on_until, None)
    assert requests.ask_again(FIRST) == again
    taken = take(shop)
    assert taken.attempts == 1
    assert requests.end(taken, report={"claims": 2, "ended": "held", "by_hand": False}, log="two")
    found = requests.find(FIRST)
    assert found is not None
    assert (found.report, found.log) == ({"claims": 3, "ended": "held", "by_hand": False}, "two")
    ask(shop, SECOND)
    assert requests.ask_again(FIRST) is None


def test_a_run_that_goes_on_keeps_its_counts_when_its_last_round_leaves_the_table_alone(shop: Shop) -> None:
    requests = shop.store.slice_requests
    requests.ask(FIRST, shop.orders.name, by_hand=False, goes_on_for=MINUTE)
    assert requests.end(take(shop), report={"table": "t", "claims": 1, "inserted": 3, "ended": "all"})
    requests.ask_again(FIRST)
    assert requests.end(take(shop), report={"table": "t", "ended": "a new snapshot of it follows"})
    found = requests.find(FIRST)
    assert found is not None
    assert found.report == {"table": "t", "claims": 1, "inserted": 3, "ended": "a new snapshot of it follows"}


def test_a_slice_is_left_to_the_run_that_goes_on_until_it_has_ended(shop: Shop) -> None:
    requests, name = shop.store.slice_requests, str(shop.orders.name)

    async def first() -> tuple[Backlog, RecentRequest]:
        waiting = backlogs(lambda: shop.url, STREAM.name, poll_interval=timedelta(milliseconds=10))
        recent = recent_requests(lambda: shop.url, STREAM.name, poll_interval=timedelta(milliseconds=10))
        async with aclosing(waiting), aclosing(recent), asyncio.timeout(30):
            return (await anext(waiting))[name], (await anext(recent))[name]

    run_sql(shop.url, "UPDATE cdc.source_table SET state = 'live'")
    requests.ask(FIRST, shop.orders.name, by_hand=False, goes_on_for=MINUTE)
    shop.register_orders(1)
    backlog, recent = asyncio.run(first())
    assert (backlog.is_awaited, recent.goes_on, recent.newest) == (False, True, None), "it is not done yet"
    requests.end(take(shop), report={"claims": 1})
    backlog, recent = asyncio.run(first())
    assert (backlog.is_awaited, recent.goes_on, recent.newest) == (True, True, backlog.newest)
    lease = shop.acquire("another")
    assert asyncio.run(first())[1].newest is None
    shop.store.leases.release(lease)
    requests.go_on_no_longer(FIRST)
    backlog, recent = asyncio.run(first())
    assert (backlog.is_awaited, recent.goes_on, recent.newest) == (False, False, None)
