"""One worker at a time, by the database's clock, and a way on when it dies."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier
from uuid import UUID

import pytest

from cdc_pipeline.errors import LeaseBusy, StaleEpoch, UsageError
from cdc_pipeline.metadata_store.leases import Lease
from tests.support.command_line import query
from tests.support.eventually import eventually
from tests.support.metadata_store import MINUTE, STREAM, Shop, count_waiting, mark_applied, opened_shop
from tests.support.streams import run_sql

ALREADY_OVER = timedelta(seconds=-1)
IS_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        yield shop


def test_a_second_worker_leaves_at_once_while_the_lease_is_held(shop: Shop) -> None:
    shop.acquire("first")
    with pytest.raises(LeaseBusy, match="held by first until 20"):
        shop.acquire("second")


def test_the_same_owner_gets_no_second_lease(shop: Shop) -> None:
    shop.acquire("first")
    with pytest.raises(LeaseBusy):
        shop.acquire("first")


def test_leases_of_two_tables_do_not_meet(shop: Shop) -> None:
    shop.acquire("first")
    assert shop.store.leases.acquire(shop.customers.table_id, owner="second", duration=MINUTE).epoch == 1


def test_an_expired_lease_goes_to_the_next_worker_with_the_next_epoch(shop: Shop) -> None:
    dead = shop.acquire("first", duration=ALREADY_OVER)
    taken = shop.acquire("second")
    assert (dead.epoch, taken.epoch, taken.owner) == (1, 2, "second")


def test_a_worker_that_lost_its_lease_cannot_renew_it(shop: Shop) -> None:
    dead = shop.acquire("first", duration=ALREADY_OVER)
    shop.acquire("second")
    with pytest.raises(StaleEpoch, match="now epoch 2 of second; expected epoch 1 of first"):
        shop.store.leases.renew(dead, duration=MINUTE)


def test_a_lease_that_expired_unnoticed_can_be_renewed(shop: Shop) -> None:
    late = shop.acquire("first", duration=ALREADY_OVER)
    renewed = shop.store.leases.renew(late, duration=MINUTE)
    assert renewed.epoch == late.epoch
    assert renewed.expires_at > late.expires_at
    with pytest.raises(LeaseBusy):
        shop.acquire("second")


def test_release_lets_the_next_one_in_and_may_be_repeated(shop: Shop) -> None:
    lease = shop.acquire("first")
    shop.store.leases.release(lease)
    shop.store.leases.release(lease)
    assert shop.acquire("second").epoch == 2


def test_a_late_release_leaves_the_new_owner_alone(shop: Shop) -> None:
    dead = shop.acquire("first", duration=ALREADY_OVER)
    shop.acquire("second")
    shop.store.leases.release(dead)
    with pytest.raises(LeaseBusy, match="held by second"):
        shop.acquire("third")


def test_of_many_workers_that_come_at_once_one_gets_the_lease(shop: Shop) -> None:
    workers = 4
    barrier = Barrier(workers)

    def acquire(number: int) -> Lease | None:
        barrier.wait()
        try:
            return shop.acquire(f"worker {number}")
        except LeaseBusy:
            return None

    with ThreadPoolExecutor(workers) as pool:
        leases = [lease for lease in pool.map(acquire, range(workers)) if lease is not None]
    assert [lease.epoch for lease in leases] == [1]


def test_the_first_lease_of_a_table_is_not_acquired_while_the_table_is_being_removed(shop: Shop) -> None:
    assert is_refused_beside_a_removal(shop)


def test_an_expired_lease_is_not_acquired_while_its_table_is_being_removed(shop: Shop) -> None:
    """A replay would decide a late slice with it, and the table would come back when that is registered."""
    shop.store.leases.release(shop.acquire())
    assert is_refused_beside_a_removal(shop)


def is_refused_beside_a_removal(shop: Shop) -> bool:
    """Acquires the lease of orders after a removal found it free and before the removal commits."""
    with ThreadPoolExecutor(1) as pool:
        with shop.engine.begin() as connection:
            joined = replace(shop.store.removal.database, joined=connection)
            removal = replace(shop.store.removal, database=joined)
            removal.check_idle(STREAM.name, shop.orders.name)
            acquiring = pool.submit(shop.acquire)
            assert eventually(lambda: acquiring.done() or query(shop.url, IS_WAITING) == [(1,)])
            assert removal.remove_table(STREAM.name, shop.orders.name)
        with pytest.raises(UsageError, match="is no longer in the metadata store"):
            acquiring.result()
    return True


def test_a_worker_that_lost_its_lease_changes_nothing(shop: Shop) -> None:
    shop.register_orders(2)
    dead = shop.acquire("first", duration=ALREADY_OVER)
    claim = shop.claim(dead, after=0)
    shop.acquire("second")
    claims = shop.store.claims
    with pytest.raises(StaleEpoch):
        mark_applied(shop.store, dead, claim, lake_version=1)
    with pytest.raises(StaleEpoch):
        claims.mark_failed(dead, claim, "no")
    with pytest.raises(StaleEpoch):
        claims.mark_applied_through(dead, 4, lake_version=1)
    with pytest.raises(StaleEpoch):
        claims.resume_claim(dead, claim)
    with pytest.raises(StaleEpoch):
        shop.claim(dead, after=0)
    assert count_waiting(shop.store, shop.orders.table_id) == 4
    assert claims.open_claim(shop.orders.table_id) == claim


def test_a_store_that_was_built_anew_and_counts_from_one_again_still_tells_owners_apart(shop: Shop) -> None:
    shop.register_orders(1)
    before = shop.acquire("before")
    run_sql(shop.url, "DELETE FROM cdc.lease")
    after = shop.acquire("after")
    assert (before.epoch, after.epoch) == (1, 1)
    slices = shop.store.slices.next_slices(before.table_id, after_number=0, most_slices=10, most_rows=100)
    kept, place = shop.store.quarantine, shop.store.streams.chain_position("shop")
    late = kept.late_slice(replace(shop.slice(before.table_id, 0, 1, 1, "late"), late=True), ())
    for change in (
        lambda: shop.store.leases.renew(before, duration=MINUTE),
        lambda: shop.store.claims.record_claim(before, slices, claim_id=UUID(int=1)),
        lambda: kept.replay(late, place, lease=before),
    ):
        with pytest.raises(StaleEpoch, match="now epoch 1 of after; expected epoch 1 of before"):
            change()
    shop.store.leases.release(before)
    assert shop.store.leases.renew(after, duration=MINUTE).owner == "after"
    assert shop.store.claims.open_claim(before.table_id) is None
    assert len(shop.store.slices.slices(before.table_id, 1, 100)) == 2
