"""A lease is renewed for as long as its block runs, and given up before it can expire."""

import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from threading import enumerate as running_threads

import pytest

from cdc_pipeline.errors import StaleEpoch, StoreAway
from cdc_pipeline.metadata_store.lease_keeper import LeaseKeeper, renewed

SHORT = timedelta(milliseconds=30)
LONG = timedelta(hours=1)
TIMEOUT_SECONDS = 30.0


class Renewals:
    """A renew function that answers as told; `came` is set once it was called `wanted` times."""

    def __init__(self, answer: Callable[[], None], *, wanted: int = 1) -> None:
        self._answer = answer
        self._wanted = wanted
        self.calls = 0
        self.came = Event()

    def __call__(self) -> None:
        self.calls += 1
        if self.calls >= self._wanted:
            self.came.set()
        self._answer()


def granted() -> None:
    """The store renews."""


def refused() -> None:
    raise StaleEpoch("the lease is now epoch 2 of another")


def unanswered() -> None:
    raise StoreAway("the metadata store did not answer")


def names_of_threads() -> set[str]:
    return {thread.name for thread in running_threads()}


def test_a_fresh_lease_may_be_used() -> None:
    LeaseKeeper(granted, LONG, sent=time.monotonic(), what="orders").check()


def test_a_lease_that_may_have_expired_by_our_own_clock_is_given_up() -> None:
    keeper = LeaseKeeper(granted, LONG, sent=time.monotonic() - LONG.total_seconds(), what="orders")
    with pytest.raises(StaleEpoch, match="the lease of orders could not be renewed in time"):
        keeper.check()


def test_the_lease_is_renewed_again_and_again_while_the_block_runs() -> None:
    renewals = Renewals(granted, wanted=5)
    with renewed(renewals, SHORT, sent=time.monotonic(), what="orders"):
        assert renewals.came.wait(TIMEOUT_SECONDS)


def test_a_renewal_moves_the_deadline_of_a_lease_that_was_about_to_expire() -> None:
    renewals = Renewals(granted)
    sent = time.monotonic() - LONG.total_seconds()
    with renewed(renewals, timedelta(seconds=3), sent=sent, what="orders") as expiring:
        with pytest.raises(StaleEpoch):
            expiring.check()
        assert renewals.came.wait(TIMEOUT_SECONDS)
    expiring.check()


def test_a_newer_owner_ends_the_lease_at_once_and_no_renewal_is_tried_again() -> None:
    renewals = Renewals(refused)
    with renewed(renewals, SHORT, sent=time.monotonic() + LONG.total_seconds(), what="orders") as keeper:
        assert renewals.came.wait(TIMEOUT_SECONDS)
    with pytest.raises(StaleEpoch, match="the lease is now epoch 2 of another"):
        keeper.check()
    assert renewals.calls == 1


def test_a_store_that_is_away_is_asked_again_but_does_not_lengthen_the_lease() -> None:
    renewals = Renewals(unanswered, wanted=3)
    sent = time.monotonic() - SHORT.total_seconds()
    with renewed(renewals, SHORT, sent=sent, what="orders") as keeper:
        assert renewals.came.wait(TIMEOUT_SECONDS)
        with pytest.raises(StaleEpoch):
            keeper.check()


def test_nothing_renews_after_the_block_however_it_ends() -> None:
    renewals = Renewals(granted)

    def interrupted() -> None:
        with renewed(renewals, SHORT, sent=time.monotonic(), what="gone"):
            assert "lease of gone" in names_of_threads()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "lease of gone" not in names_of_threads()


def test_a_block_does_not_wait_for_the_next_renewal_to_end() -> None:
    began = time.monotonic()
    with renewed(granted, LONG, sent=began, what="orders"):
        pass
    assert time.monotonic() - began < TIMEOUT_SECONDS
