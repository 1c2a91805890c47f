"""Killed before or after any transaction, a consumer and a worker that start again end in the same state."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from cdc_pipeline.metadata_store.states import SliceState, SnapshotState
from cdc_pipeline.record import encode_position
from cdc_pipeline.steps import Moment
from tests.support.metadata_store import MINUTE, Shop, count_waiting, mark_applied, opened_shop


class Killed(BaseException):
    """The process is gone: no handler of the code under test may run."""


@dataclass(kw_only=True)
class Kill:
    """Lets `calls` steps pass and then kills, once; counts for ever when `calls` is None."""

    calls: int | None = None
    seen: list[tuple[str, Moment]] = field(default_factory=list)

    def __call__(self, name: str, moment: Moment) -> None:
        self.seen.append((name, moment))
        if self.calls is not None and len(self.seen) == self.calls:
            self.calls = None
            raise Killed


@pytest.fixture
def kill() -> Kill:
    return Kill()


@pytest.fixture
def shop(database: str, kill: Kill) -> Iterator[Shop]:
    with opened_shop(database, kill) as shop:
        yield shop


def one_run(shop: Shop, position: int) -> None:
    """Register one cut and apply it, as consumer and worker do it, whatever an earlier run left."""
    store, table_id = shop.store, shop.orders.table_id
    assignment = store.streams.take_stream("shop", owner="consumer", first_offset=encode_position(0))
    if assignment.next_offset[0] == encode_position(position - 1):
        rows = {(table_id, 0): 5, (table_id, 1): 0}
        store.registration.register(shop.cut(position - 1, position, rows), assignment)
    lease = store.leases.acquire(table_id, owner="worker", duration=-MINUTE)
    claim = store.claims.open_claim(table_id)
    if claim is not None:
        claim = store.claims.resume_claim(lease, claim)
    elif count_waiting(store, table_id):
        after = store.lake_positions.lake_position(table_id).applied_through
        slices = store.slices.next_slices(table_id, after_number=after, most_slices=10, most_rows=100)
        claim = store.claims.record_claim(lease, slices, claim_id=UUID(int=position))
    if claim is not None:
        mark_applied(store, lease, claim, lake_version=position)
    store.leases.release(lease)


def publish(shop: Shop, snapshot_id: str) -> None:
    lease = shop.store.leases.acquire(shop.orders.table_id, owner="worker", duration=-MINUTE)
    if shop.store.tables.table_by_id(shop.orders.table_id).cutoff_offset is None:
        shop.store.snapshots.create_snapshot(shop.new_snapshot(1, snapshot_id=snapshot_id))
        state = shop.store.snapshots.snapshot(snapshot_id).state
        assert state in (SnapshotState.EXPORTING, SnapshotState.PUBLISHING)
        shop.publish(lease, 1, snapshot_id=snapshot_id)


def steps_of(kill: Kill, run: Callable[[], None]) -> int:
    """How many moments an undisturbed run has."""
    before = len(kill.seen)
    run()
    return len(kill.seen) - before


def test_a_run_killed_at_any_moment_is_completed_by_the_next_one(shop: Shop, kill: Kill) -> None:
    moments = steps_of(kill, lambda: one_run(shop, 1))
    assert moments > 20
    for number in range(1, moments + 1):
        position = number + 1
        kill.calls = len(kill.seen) + number
        with pytest.raises(Killed):
            one_run(shop, position)
        one_run(shop, position)
        rows = shop.store.slices.slices(shop.orders.table_id, 1, 1000)
        assert [row.number for row in rows] == list(range(1, position + 1))
        assert {row.state for row in rows} == {SliceState.APPLIED}
        assert rows[-1].end_offset == encode_position(position)


def test_a_publication_killed_at_any_moment_is_completed_by_the_next_one(shop: Shop, kill: Kill) -> None:
    shop.register_orders(2)
    killed = 0
    while shop.store.tables.table_by_id(shop.orders.table_id).cutoff_offset is None:
        killed += 1
        kill.calls = len(kill.seen) + killed
        with pytest.raises(Killed):
            publish(shop, "first")
        kill.calls = None
    publish(shop, "first")
    assert killed > 10
    states = [row.state for row in shop.store.slices.slices(shop.orders.table_id, 1, 10)]
    assert states == [SliceState.SUPERSEDED] * 2 + [SliceState.REGISTERED] * 2


def test_every_operation_is_a_named_step(shop: Shop, kill: Kill) -> None:
    one_run(shop, 1)
    publish(shop, "first")
    names = {name for name, _ in kill.seen}
    assert {"registry.register", "lease.acquire", "claim.record", "claim.mark_applied", "snapshot.publish"} <= names
    assert all(len(name.split(".")) == 2 for name in names)
