"""What a reader may rely on: the position that a table equals, and versions that belong together."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cdc_pipeline.metadata_store.ledger.records import LakePosition
from cdc_pipeline.metadata_store.operations.old_rows import OF_CUTS
from cdc_pipeline.record import BEFORE_ALL, encode_position
from cdc_pipeline.time_slice import label_of
from tests.support.command_line import query
from tests.support.metadata_store import MINUTE, MORNING, Shop, opened_shop
from tests.support.streams import run_sql
from tests.support.version_vector import version_vector


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        yield shop


def at(shop: Shop, minutes: int, applied_through: int) -> LakePosition:
    return LakePosition(
        table_id=shop.orders.table_id,
        position=encode_position(minutes),
        as_of=MORNING + minutes * MINUTE,
        applied_through=applied_through,
    )


def position(shop: Shop) -> LakePosition:
    return shop.store.lake_positions.lake_position(shop.orders.table_id)


def test_before_a_snapshot_the_lake_equals_the_source_nowhere(shop: Shop) -> None:
    shop.register_orders(2)
    assert (position(shop).position, position(shop).as_of) == (None, None)


def test_after_the_snapshot_the_lake_equals_the_source_at_the_cutoff(shop: Shop) -> None:
    shop.register_orders(3)
    shop.publish(shop.acquire(), 1)
    assert position(shop) == at(shop, 1, 2)


def test_a_cutoff_ahead_of_what_is_registered_counts_at_once(shop: Shop) -> None:
    shop.register_orders(2)
    shop.publish(shop.acquire(), 9)
    assert position(shop) == at(shop, 9, 4)


def test_each_applied_claim_moves_the_position_to_the_boundary_before_the_first_that_waits(shop: Shop) -> None:
    shop.register_orders(4)
    lease = shop.acquire()
    shop.publish(lease, 1)
    shop.apply(lease, after=2, most_slices=2, lake_version=2)
    assert position(shop) == at(shop, 2, 4)
    shop.apply(lease, after=4, lake_version=3)
    assert position(shop) == at(shop, 4, 8)


def test_a_silence_moves_the_position_without_any_work(shop: Shop) -> None:
    lease = shop.acquire()
    shop.publish(lease, 0)
    shop.register(shop.cut(0, 5, {(shop.orders.table_id, 0): 0, (shop.orders.table_id, 1): 0}))
    shop.register(shop.cut(5, 8, {(shop.orders.table_id, 1): 0}))
    assert position(shop) == at(shop, 8, 0)


def test_a_table_is_as_old_as_the_consumer_that_is_behind_with_rows_of_it(shop: Shop, database: str) -> None:
    shop.publish(shop.acquire(), 0)
    shop.register(shop.cut(0, 8, {(shop.orders.table_id, 0): 0, (shop.orders.table_id, 1): 0}))
    behind = "UPDATE cdc.stream_partition SET watermark = watermark - stream_partition * interval '3 minutes'"
    run_sql(database, behind)
    names = "UPDATE cdc.stream_partition SET last_position = jsonb_build_object('partition', 'one', '{}', '1')"
    run_sql(database, names.format("shop.public.orders"))
    assert position(shop).as_of == MORNING + 5 * MINUTE
    run_sql(database, names.format("shop.public.customers"))
    assert position(shop).as_of == MORNING + 8 * MINUTE


def test_a_table_is_as_old_as_slices_that_wait_of_a_consumer_that_was_behind(shop: Shop) -> None:
    lease, consumers = shop.acquire(), shop.store.consumers
    shop.publish(lease, 0)
    for owner in ("ahead", "behind"):
        consumers.beat("shop", owner=owner, lifetime=MINUTE)
    shares = {
        owner: consumers.take_share("shop", owner=owner, lifetime=MINUTE, first_offset=encode_position(0))
        for owner in ("behind", "ahead")
    }
    began = dict.fromkeys(shares, 0)

    def register(owner: str, end: int, minutes: int, rows: int) -> None:
        share = shares[owner]
        assert share is not None
        (number,) = share.next_offset
        cut = shop.cut(began[owner], end, {(shop.orders.table_id, number): rows})
        (part,) = (part for part in cut.partitions if part.stream_partition == number)
        time = MORNING + minutes * MINUTE
        partitions = (replace(part, last_position={"partition": owner}),)
        shop.store.registration.register(
            replace(cut, commit_time=time, label=label_of(time, MINUTE), partitions=partitions), share
        )
        began[owner] = end

    register("behind", 1, 1, 0)
    register("ahead", 8, 8, 0)
    assert position(shop).as_of == MORNING + MINUTE
    register("behind", 9, 2, 5)
    register("behind", 10, 8, 5)
    assert position(shop).as_of == MORNING + 2 * MINUTE
    shop.apply(lease, after=0, most_slices=1, lake_version=2)
    assert position(shop).as_of == MORNING + 2 * MINUTE
    shop.apply(lease, after=1, lake_version=3)
    assert position(shop).as_of == MORNING + 8 * MINUTE
    register("ahead", 11, 9, 5)
    assert position(shop).as_of == MORNING + 8 * MINUTE


@pytest.mark.parametrize("version", ["", BEFORE_ALL])
def test_a_table_that_began_before_all_events_is_as_old_as_what_is_applied_of_them(shop: Shop, version: str) -> None:
    started = replace(shop.new_snapshot(0), cutoff_version=version, cutoff_time=MORNING + 9 * MINUTE)
    lease = shop.acquire()
    shop.publish_new(lease, started)
    assert (position(shop).position, position(shop).as_of) == (encode_position(0), None)
    shop.register_orders(3)
    assert position(shop).as_of is None
    shop.apply(lease, after=0, most_slices=4, lake_version=2)
    assert position(shop) == at(shop, 2, 4)


def test_the_lag_view_says_the_same_in_the_sources_own_notation(shop: Shop) -> None:
    shop.register_orders(4)
    shop.publish(shop.acquire(), 1)
    (row,) = shop.store.inspection.run("lag", {"table": "shop.public.orders"})
    assert (row["lake_position"], row["lake_position_lsn"]) == (encode_position(1), "0/1")
    assert (row["slices_waiting"], row["rows_waiting"], row["state"], row["lease_owner"]) == (6, 30, "live", "worker")
    assert row["seconds_behind"] > 0


def test_the_version_vector_names_the_version_of_each_table_at_a_boundary(shop: Shop) -> None:
    orders, customers = shop.orders.table_id, shop.customers.table_id
    boundaries = [shop.register_orders(1, start=number) for number in range(5)]
    lease = shop.acquire()
    shop.publish(lease, 1, lake_version=10)
    shop.apply(lease, after=2, most_slices=2, lake_version=11)
    shop.apply(lease, after=4, most_slices=4, lake_version=13)
    vector = [version_vector(shop.store, boundary.boundary_id)[orders] for boundary in boundaries]
    assert vector == [10, 11, None, 13, None]
    assert version_vector(shop.store, boundaries[0].boundary_id)[customers] is None


def test_a_boundary_without_events_keeps_the_version_before_it(shop: Shop) -> None:
    lease = shop.acquire()
    shop.publish(lease, 0, lake_version=4)
    quiet = shop.register(shop.cut(0, 1, {(shop.orders.table_id, 0): 0}))
    shop.register_orders(1, start=1)
    still = shop.register(shop.cut(2, 3, {(shop.orders.table_id, 1): 0}))
    shop.apply(lease, after=0, lake_version=5)
    assert version_vector(shop.store, quiet.boundary_id)[shop.orders.table_id] == 4
    assert version_vector(shop.store, still.boundary_id)[shop.orders.table_id] == 5


def test_a_boundary_before_slices_that_are_deleted_has_no_version(shop: Shop) -> None:
    """A quiet table keeps its boundary for as long as it has no newer slice.

    The sixth slice is of the same claim as the seventh, the newest one of the base.
    """
    orders, customers = shop.orders.table_id, shop.customers.table_id
    lease = shop.acquire()
    shop.publish(lease, 0)
    shop.register_orders(1)
    run_sql(shop.url, "UPDATE cdc.slice SET truncated_at = end_offset WHERE number = 1")
    quiet = shop.register(shop.cut(1, 2, {(orders, 0): 5, (customers, 0): 5}))
    last = shop.register_orders(3, start=2)
    for version, after in enumerate((0, 2, 3, 5, 7), start=2):
        shop.apply(lease, after=after, most_slices=1, lake_version=version)
    assert version_vector(shop.store, quiet.boundary_id)[orders] == 3
    retention = shop.store.retention
    base = retention.base({orders: 9, customers: 1}, last.registered_at)
    assert base is not None
    kept = retention.keep(base, {})
    for kind in OF_CUTS:
        retention.delete(kind, kept.parameters())
    assert query(shop.url, f"SELECT number FROM cdc.slice WHERE table_id = {orders} ORDER BY 1") == [
        (1,),
        (6,),
        (7,),
        (8,),
        (9,),
    ]
    assert version_vector(shop.store, quiet.boundary_id)[orders] is None
    assert version_vector(shop.store, last.boundary_id)[orders] == 6
