"""What the store remembers of a table that fails: since when, how often, until when, and by whose word."""

from collections.abc import Iterator
from typing import Any

import pytest

from cdc_pipeline.errors import SliceDamaged, StaleEpoch
from cdc_pipeline.metadata_store.leases import Lease
from cdc_pipeline.metadata_store.ledger.failures import FailingTable
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.settings.retry_policy import RetryPolicy
from tests.support.metadata_store import MINUTE, Shop, opened_shop
from tests.support.streams import run_sql

POLICY = RetryPolicy(first_pause=MINUTE, longest_pause=4 * MINUTE, retry_for=60 * MINUTE, probe_parked=15 * MINUTE)


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    """Orders are live, with two slices that wait."""
    with opened_shop(database) as shop:
        lease = shop.acquire()
        shop.publish(lease, 0)
        shop.store.leases.release(lease)
        shop.register_orders(1)
        yield shop


def fail(shop: Shop, lease: Lease, *, is_outage: bool = False) -> FailingTable:
    shop.store.failures.record(lease, "it is broken", retry_policy=POLICY, is_outage=is_outage)
    failing = shop.store.failures.failing(lease.table_id)
    assert failing is not None
    return failing


def state(shop: Shop) -> tuple[TableState, str | None]:
    row = shop.store.tables.table(shop.orders.name)
    return row.state, row.state_reason


def an_hour_passes(shop: Shop) -> None:
    times = ", ".join(f"{name} = {name} - interval '1 hour'" for name in ("failing_since", "failed_at", "next_try_at"))
    run_sql(shop.url, f"UPDATE cdc.failing_table SET {times}")


def lag(shop: Shop) -> dict[str, Any]:
    return shop.store.inspection.run("lag", {"table": "shop.public.orders"})[0]


def test_pauses_grow_with_the_failures_in_a_row_by_the_clock_of_the_database(shop: Shop) -> None:
    lease = shop.acquire()
    found = [fail(shop, lease) for _ in range(4)]
    assert [(failing.next_try_at - failing.failed_at) / MINUTE for failing in found] == [1, 2, 4, 4]
    assert [failing.failures for failing in found] == [1, 2, 3, 4]
    assert {failing.failing_since for failing in found} == {found[0].failed_at}
    assert all(failing.pauses for failing in found)
    an_hour_passes(shop)
    failing = shop.store.failures.failing(lease.table_id)
    assert failing is not None
    assert not failing.pauses


def test_a_table_that_fails_for_too_long_is_parked_until_a_try_succeeds(shop: Shop) -> None:
    lease = shop.acquire()
    fail(shop, lease)
    assert state(shop) == (TableState.LIVE, None)
    an_hour_passes(shop)
    parked = fail(shop, lease)
    assert state(shop) == (TableState.PARKED, "it is broken")
    assert parked.next_try_at - parked.failed_at == 15 * MINUTE
    shop.store.failures.clear(lease)
    assert state(shop) == (TableState.LIVE, None)
    assert shop.store.failures.failing(lease.table_id) is None


def test_an_outage_parks_nobody_and_the_retry_policy_begins_again_behind_it(shop: Shop) -> None:
    lease = shop.acquire()
    fail(shop, lease)
    for _ in range(2):
        an_hour_passes(shop)
        assert fail(shop, lease, is_outage=True).failures > 1
    assert state(shop) == (TableState.LIVE, None)
    an_hour_passes(shop)
    assert fail(shop, lease).failures == 1
    assert state(shop) == (TableState.LIVE, None)


def test_an_outage_leaves_a_parked_table_parked(shop: Shop) -> None:
    lease = shop.acquire()
    fail(shop, lease)
    an_hour_passes(shop)
    fail(shop, lease)
    fail(shop, lease, is_outage=True)
    assert state(shop) == (TableState.PARKED, "it is broken")


def test_a_new_snapshot_clears_what_the_old_lake_failed_at(shop: Shop) -> None:
    lease = shop.acquire()
    fail(shop, lease)
    an_hour_passes(shop)
    fail(shop, lease)
    shop.publish(lease, 1, snapshot_id="second")
    assert state(shop) == (TableState.LIVE, None)
    assert shop.store.failures.failing(lease.table_id) is None


def test_who_lost_the_lease_says_nothing_of_a_table(shop: Shop) -> None:
    mine = shop.acquire(duration=-MINUTE)
    newer = shop.acquire("another")
    fail(shop, newer)
    for change in (
        lambda: shop.store.failures.clear(mine),
        lambda: shop.store.failures.record(mine, "x", retry_policy=POLICY, is_outage=False),
        lambda: shop.store.failures.record_damage(mine, {1: SliceDamaged("x", expected="y")}),
    ):
        with pytest.raises(StaleEpoch):
            change()
    failing = shop.store.failures.failing(newer.table_id)
    assert failing is not None
    assert (failing.failures, failing.error) == (1, "it is broken")


def test_the_views_say_why_since_when_and_until_when(shop: Shop) -> None:
    assert [lag(shop)[name] for name in ("failures", "failing_since", "next_try_at", "failure")] == [None] * 4
    failing = fail(shop, shop.acquire())
    found = lag(shop)
    assert (found["failures"], found["failing_since"], found["next_try_at"], found["failure"]) == (
        1,
        failing.failing_since,
        failing.next_try_at,
        "it is broken",
    )


def test_a_damaged_slice_is_known_by_name_until_it_is_applied(shop: Shop) -> None:
    lease = shop.acquire()
    for found in ("9 bytes", "8 bytes"):
        shop.store.failures.record_damage(lease, {1: SliceDamaged(found, expected="10 bytes")})
    (known,) = shop.store.inspection.run("damaged")
    path = shop.store.slices.slices(lease.table_id, 1, 1)[0].path
    assert (known["number"], known["path"], known["found"], known["expected"]) == (1, path, "8 bytes", "10 bytes")
    assert known["first_seen_at"] < known["last_seen_at"]
    shop.apply(lease, after=0, lake_version=2)
    assert shop.store.inspection.run("damaged") == []
