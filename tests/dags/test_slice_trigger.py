"""The trigger of a slice task, without an Airflow: what it does with its request at each outcome."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from airflow.triggers.base import TaskFailedEvent, TriggerEvent
from cdc_open_store import open_store
from cdc_trigger import SliceRunTrigger

from cdc_pipeline.errors import SetupError, StoreAway
from cdc_pipeline.metadata_store.ledger.backlogs import RecentRequest
from cdc_pipeline.metadata_store.slice_requests import SliceRequest
from cdc_pipeline.metadata_store.states import RequestState
from tests.support.metadata_store import STREAM, Shop, opened_shop
from tests.support.streams import run_sql
from tests.support.tcp_proxy import proxied

OWN = UUID(int=7)
COMMITTED = b"COMMIT\0Z"
"""The answer of PostgreSQL; the statement lacks the last byte."""


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    with opened_shop(store_url) as shop:
        yield shop


@contextmanager
def found_at(url: str) -> Iterator[None]:
    """Triggers find the store there while the block runs."""
    away = StoreAway("nobody listens", expected="a server", remedy="start it")
    with suppress(StoreAway), open_store(STREAM.name, lambda: url):
        raise away  # another test may have opened it
    with open_store(STREAM.name, lambda: url):
        pass
    try:
        yield
    finally:
        with suppress(StoreAway), open_store(STREAM.name, lambda: url):
            raise away


def trigger_of_orders() -> SliceRunTrigger:
    """Of a run that stays open."""
    trigger = SliceRunTrigger(STREAM.name, "shop.public.orders", resumes=False, run_seconds=300)
    instance: Any = SimpleNamespace(id=OWN, task_id="", run_id="scheduled__2026-01-01T00:00:00")
    trigger.task_instance = instance
    return trigger


@pytest.fixture
def trigger() -> SliceRunTrigger:
    return trigger_of_orders()


def tried(trigger: SliceRunTrigger, recent: RecentRequest | None = None) -> TriggerEvent | None:
    return asyncio.run(trigger._tried(recent))


def taken(shop: Shop) -> SliceRequest:
    request = shop.store.slice_requests.take("worker")
    assert request is not None
    return request


def state_of(shop: Shop, request_id: UUID) -> RequestState:
    found = shop.store.slice_requests.find(request_id)
    assert found is not None
    return found.state


def test_a_task_that_was_ended_while_it_asked_leaves_no_request(shop: Shop, trigger: SliceRunTrigger) -> None:
    with found_at(shop.url):
        asyncio.run(trigger.on_kill())
        trigger._ask()
    assert state_of(shop, OWN) is RequestState.CANCELLED


def test_a_run_whose_request_an_earlier_triggerer_cancels_asks_again(shop: Shop, trigger: SliceRunTrigger) -> None:
    """A triggerer that hung finds that another one has its triggers, and ends its own as if tasks were killed."""
    earlier = trigger_of_orders()
    with found_at(shop.url):
        assert tried(earlier) is None
        assert tried(trigger) is None
        taken(shop)
        asyncio.run(earlier.on_kill())
        assert state_of(shop, OWN) is RequestState.CANCELLED
        assert tried(trigger) is None, "it sees that"
        assert tried(trigger) is None, "it asks"
        assert state_of(shop, OWN) is RequestState.REQUESTED
        asyncio.run(trigger.on_kill())
        assert isinstance(tried(trigger), TaskFailedEvent), "its task was ended"
    assert state_of(shop, OWN) is RequestState.CANCELLED


def test_an_error_that_is_no_outage_fails_the_task_in_our_words(shop: Shop, trigger: SliceRunTrigger) -> None:
    """A store whose tables are gone. A pipeline.yml that cannot be read is another one."""
    with found_at(shop.url):
        run_sql(shop.url, "DROP SCHEMA cdc CASCADE")
        with pytest.raises(SetupError, match="the metadata store refuses"):
            trigger._ask()
        assert isinstance(tried(trigger), TaskFailedEvent)


def test_a_run_that_lost_the_answer_when_it_asked_again_ends_as_its_repetition(
    shop: Shop, trigger: SliceRunTrigger
) -> None:
    recent = RecentRequest(request_id=OWN, state="done", worker="worker", has_workers=True, goes_on=True, newest=1)
    with proxied(urlsplit(shop.url).port or 0) as proxy:
        with found_at(shop.url.replace(f":{urlsplit(shop.url).port}/", f":{proxy.port}/")):
            assert tried(trigger) is None
            shop.store.slice_requests.end(taken(shop), report={"claims": 1})
            assert tried(trigger, recent) is None, "it stays open"
            proxy.lost = COMMITTED
            assert tried(trigger, recent) is None
        assert proxy.is_cut.is_set()
    shop.store.slice_requests.end(taken(shop), report=None, error="it broke")
    with found_at(shop.url):
        assert isinstance(tried(trigger, replace(recent, state="failed", goes_on=False, newest=None)), TaskFailedEvent)


@pytest.mark.parametrize(
    ("minutes", "state"), [(59, RequestState.TAKEN), (61, RequestState.CANCELLED)], ids=["59 minutes", "61 minutes"]
)
def test_a_person_who_ends_a_run_also_ends_the_one_that_it_follows_if_that_ones_task_has_timed_out(
    shop: Shop, trigger: SliceRunTrigger, minutes: int, state: RequestState
) -> None:
    followed = UUID(int=1)
    assert shop.store.slice_requests.ask(followed, shop.orders.name, by_hand=False)
    with found_at(shop.url):
        assert tried(trigger) is None
        taken(shop)
        run_sql(shop.url, f"UPDATE cdc.slice_request SET taken_at = clock_timestamp() - interval '{minutes} minutes'")
        asyncio.run(trigger.on_kill())
    assert state_of(shop, followed) is state
