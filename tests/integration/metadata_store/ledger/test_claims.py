"""Slices go into the lake once, in order, whole boundaries at a time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from cdc_pipeline.errors import RegistryError
from cdc_pipeline.metadata_store.ledger.records import RegisteredSlice
from cdc_pipeline.metadata_store.operations.old_rows import NOTHING_FORGOTTEN
from cdc_pipeline.metadata_store.states import ClaimState, SliceState
from cdc_pipeline.record import ClaimCounts
from tests.support.metadata_store import Shop, count_waiting, mark_applied, opened_shop

COUNTS = ClaimCounts(read=20, inserted=11, ignored=9)


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        yield shop


def next_numbers(shop: Shop, after: int, *, most_slices: int = 100, most_rows: int = 1_000) -> list[int]:
    rows = shop.store.slices.next_slices(
        shop.orders.table_id, after_number=after, most_slices=most_slices, most_rows=most_rows
    )
    return [row.number for row in rows]


def states(shop: Shop) -> list[SliceState]:
    return [row.state for row in shop.store.slices.slices(shop.orders.table_id, 1, 100)]


def test_next_slices_are_consecutive_behind_the_given_number(shop: Shop) -> None:
    shop.register_orders(3)
    assert next_numbers(shop, 0) == [1, 2, 3, 4, 5, 6]
    assert next_numbers(shop, 4) == [5, 6]
    assert next_numbers(shop, 6) == []


def test_a_boundary_is_never_parted_by_a_cap(shop: Shop) -> None:
    shop.register_orders(3)
    assert next_numbers(shop, 0, most_slices=3) == [1, 2]
    assert next_numbers(shop, 0, most_slices=5) == [1, 2, 3, 4]
    assert next_numbers(shop, 0, most_rows=29) == [1, 2, 3, 4]


def test_one_boundary_comes_whole_even_when_it_alone_is_over_the_caps(shop: Shop) -> None:
    shop.register_orders(2)
    assert next_numbers(shop, 0, most_slices=1) == [1, 2]
    assert next_numbers(shop, 0, most_rows=1) == [1, 2]


def test_nothing_behind_a_requested_boundary_comes_with_what_is_before_it(shop: Shop) -> None:
    shop.register_orders(2)
    shop.register_orders(1, start=2, requested=True)
    shop.register_orders(1, start=3)
    assert next_numbers(shop, 0) == [1, 2, 3, 4, 5, 6]
    assert next_numbers(shop, 6) == [7, 8]


def test_a_lost_row_in_the_store_is_an_alarm_and_not_a_jump(shop: Shop) -> None:
    shop.register_orders(2)
    with shop.store.slices.database.transaction("test.lose") as connection:
        connection.exec_driver_sql("DELETE FROM cdc.slice WHERE number = 1")
    with pytest.raises(RegistryError, match=r"is number 2; expected number 1"):
        next_numbers(shop, 0)


def test_applied_slices_carry_their_claim_and_the_claim_its_outcome(shop: Shop) -> None:
    shop.register_orders(2)
    lease = shop.acquire()
    claim = shop.claim(lease, after=0)
    mark_applied(shop.store, lease, claim, COUNTS, lake_version=7)
    rows = shop.store.slices.slices(shop.orders.table_id, 1, 4)
    assert {(row.state, row.claim_id) for row in rows} == {(SliceState.APPLIED, claim.claim_id)}
    (kept,) = shop.store.inspection.run("claims")
    assert (kept["state"], kept["lake_version"], kept["rows_inserted"], kept["seconds"]) == ("applied", 7, 11, 1.5)
    assert count_waiting(shop.store, shop.orders.table_id) == 0


def test_marking_the_same_claim_again_changes_nothing(shop: Shop) -> None:
    shop.register_orders(1)
    lease = shop.acquire()
    claim = shop.apply(lease, after=0, lake_version=3)
    mark_applied(shop.store, lease, claim, COUNTS, lake_version=99)
    assert shop.store.inspection.run("claims")[0]["lake_version"] == 3


def test_a_dead_workers_claim_is_found_and_resumed_with_the_same_bounds(shop: Shop) -> None:
    shop.register_orders(2)
    claim = shop.claim(shop.acquire("dead", duration=timedelta(seconds=-1)), after=0)
    shop.register_orders(3, start=2)
    lease = shop.acquire("next")
    found = shop.store.claims.open_claim(shop.orders.table_id)
    assert found == claim
    resumed = shop.store.claims.resume_claim(lease, claim)
    assert (resumed.first_number, resumed.last_number, resumed.attempt, resumed.epoch) == (1, 4, 2, lease.epoch)


def test_there_is_one_open_claim_per_table(shop: Shop) -> None:
    shop.register_orders(2)
    lease = shop.acquire()
    shop.claim(lease, after=0)
    slices = shop.store.slices.slices(shop.orders.table_id, 1, 2)
    with pytest.raises(RegistryError, match="claim_open"):
        shop.store.claims.record_claim(lease, slices, claim_id=UUID(int=5))


def test_no_claim_begins_behind_a_slice_that_waits(shop: Shop) -> None:
    shop.register_orders(2)
    lease = shop.acquire()
    with pytest.raises(RegistryError, match="slice 1 of table 1 is not applied yet"):
        shop.claim(lease, after=2)


def test_an_applied_slice_cannot_be_claimed_again(shop: Shop) -> None:
    shop.register_orders(1)
    lease = shop.acquire()
    shop.apply(lease, after=0, lake_version=1)
    with pytest.raises(RegistryError, match="not all there and registered"):
        shop.claim(lease, after=0)


def test_a_failed_claim_frees_its_slices_and_the_next_one_counts_on(shop: Shop) -> None:
    shop.register_orders(2)
    lease = shop.acquire()
    claim = shop.claim(lease, after=0)
    shop.store.claims.mark_failed(lease, claim, "slice 3 is damaged")
    shop.store.claims.mark_failed(lease, claim, "slice 3 is damaged")
    slices = shop.store.slices.next_slices(shop.orders.table_id, after_number=0, most_slices=2, most_rows=100)
    smaller = shop.store.claims.record_claim(lease, slices, claim_id=UUID(int=5))
    assert (smaller.last_number, smaller.attempt) == (2, 2)
    with pytest.raises(RegistryError, match="is not open"):
        mark_applied(shop.store, lease, claim, COUNTS, lake_version=1)


def test_what_the_lake_already_holds_is_marked_without_work(shop: Shop) -> None:
    shop.register_orders(3)
    lease = shop.acquire()
    claim = shop.claim(lease, after=0, most_slices=4)
    shop.store.claims.mark_applied_through(lease, 4, lake_version=9)
    shop.store.claims.mark_applied_through(lease, 4, lake_version=9)
    assert states(shop) == [SliceState.APPLIED] * 4 + [SliceState.REGISTERED] * 2
    (kept,) = shop.store.inspection.run("claims")
    assert (kept["claim_id"], kept["state"], kept["lake_version"]) == (claim.claim_id, ClaimState.APPLIED, 9)


def test_what_the_lake_holds_is_marked_when_the_store_forgot_the_claim(shop: Shop) -> None:
    shop.register_orders(2)
    shop.store.claims.mark_applied_through(shop.acquire(), 2, lake_version=9)
    assert states(shop) == [SliceState.APPLIED] * 2 + [SliceState.REGISTERED] * 2


def test_a_claim_that_the_lake_overtook_is_given_up_and_its_rest_waits(shop: Shop) -> None:
    shop.register_orders(3)
    lease = shop.acquire()
    shop.claim(lease, after=0, most_slices=4)
    shop.store.claims.mark_applied_through(lease, 2, lake_version=9)
    assert states(shop) == [SliceState.APPLIED] * 2 + [SliceState.REGISTERED] * 4
    assert shop.store.claims.open_claim(shop.orders.table_id) is None
    (kept,) = shop.store.inspection.run("claims")
    assert (kept["state"], "the lake was at slice 2" in kept["error"]) == (ClaimState.FAILED, True)
    assert shop.claim(lease, after=2, most_slices=2).first_number == 3


def test_a_requested_boundary_ends_every_claim_that_reaches_it(shop: Shop) -> None:
    shop.register_orders(1)
    asked = shop.register_orders(1, start=1, requested=True)
    shop.register_orders(2, start=2)
    claims = walk(shop)
    assert asked.boundary_id in [rows[-1].boundary_id for rows in claims]
    assert all(before[-1].number + 1 == after[0].number for before, after in pairwise(claims))


def walk(shop: Shop) -> list[tuple[RegisteredSlice, ...]]:
    """What a worker would claim, one after the other."""
    claims: list[tuple[RegisteredSlice, ...]] = []
    after = 0
    while rows := shop.store.slices.next_slices(
        shop.orders.table_id, after_number=after, most_slices=100, most_rows=1_000
    ):
        claims.append(rows)
        after = rows[-1].number
    return claims


def test_the_last_claim_is_none_that_was_rewound(shop: Shop) -> None:
    shop.register_orders(4)
    lease = shop.acquire()
    shop.publish(lease, 0)
    for after in (0, 2, 4):
        shop.apply(lease, after=after, lake_version=after + 2, most_slices=2)
    shop.store.rewinds.reopen(lease, after=2)
    shop.store.leases.release(lease)
    lease = shop.acquire()
    shop.store.claims.mark_failed(lease, shop.claim(lease, after=2, most_slices=2), "the slice file of 3 is damaged")
    assert of_orders(shop, "lag")["last_claim_error"] == "the slice file of 3 is damaged"


def test_incomplete_rows_of_claims_before_a_snapshot_count_no_more(shop: Shop) -> None:
    """Also if the snapshot is of an earlier position than the claims, as one of exported files may be."""
    shop.register_orders(4)
    lease = shop.acquire()
    shop.publish(lease, 1, snapshot_id="first", lake_version=1)
    left = ClaimCounts(read=10, incomplete=7)
    mark_applied(shop.store, lease, shop.claim(lease, after=2, most_slices=2), left, lake_version=2)
    assert of_orders(shop, "withheld")["rows_incomplete"] == 7
    shop.publish(lease, 0, snapshot_id="second", lake_version=9)
    assert of_orders(shop, "withheld")["rows_incomplete"] == 0


def test_claims_that_left_incomplete_rows_are_deleted_once_a_snapshot_has_replaced_them(shop: Shop) -> None:
    """Until then they stay, because `v_withheld` counts them. The newest claim stays in any case."""
    lease = shop.acquire()
    shop.register_orders(3)
    shop.publish(lease, 1, snapshot_id="first", lake_version=1)
    left = ClaimCounts(read=10, incomplete=7)
    for after in (2, 4):
        mark_applied(shop.store, lease, shop.claim(lease, after=after, most_slices=2), left, lake_version=after)
    old = NOTHING_FORGOTTEN | {"boundary_id": 1 << 60, "history_before": datetime.now(UTC) + timedelta(days=1)}
    assert (shop.store.retention.delete("slice", old), shop.store.retention.delete("claim", old)) == (6, 0)
    shop.publish(lease, 2, snapshot_id="second", lake_version=9)
    counted = of_orders(shop, "withheld")
    assert shop.store.retention.delete("claim", old) == 1
    assert [row["first_number"] for row in shop.store.inspection.run("claims")] == [5]
    assert of_orders(shop, "withheld") == counted


def of_orders(shop: Shop, query: str) -> dict[str, Any]:
    (row,) = shop.store.inspection.run(query, {"table": str(shop.orders.name)})
    return dict(row)


def test_claims_of_a_lake_that_was_lost_and_filled_again_are_no_targets(shop: Shop) -> None:
    """The versions of the new lake begin again, so that those of the old claims look newer."""
    shop.register_orders(2)
    lease = shop.acquire()
    shop.publish(lease, 0, lake_version=1)
    shop.apply(lease, after=0, lake_version=5)
    shop.publish(lease, 0, snapshot_id="second", lake_version=1)
    target = shop.store.rewinds.target(shop.orders.table_id)
    assert target is not None
    assert (target.number, target.lake_version) == (0, 1)
    shop.store.leases.release(lease)
    shop.apply(shop.acquire(), after=0, most_slices=2, lake_version=2)
    target = shop.store.rewinds.target(shop.orders.table_id)
    assert target is not None
    assert (target.number, target.lake_version) == (2, 2)
