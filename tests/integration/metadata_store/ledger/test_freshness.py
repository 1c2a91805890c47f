"""The position stands still for every reason that there is, and `seconds_behind` alone finds each of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cdc_pipeline.metadata_store.ledger.cut import QuarantinedEvent
from cdc_pipeline.metadata_store.ledger.records import LakePosition
from cdc_pipeline.metadata_store.snapshots.quarantined_rows import QuarantinedRow
from cdc_pipeline.metadata_store.states import QuarantineState, SnapshotState
from cdc_pipeline.record import encode_position, encode_version
from cdc_pipeline.settings.retry_policy import RetryPolicy
from tests.support.command_line import query
from tests.support.metadata_store import MINUTE, MORNING, Shop, opened_shop
from tests.support.streams import run_sql
from tests.support.version_vector import version_vector

AT = 3
"""Everything of the orders is applied up to here when the damage is done."""


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    """Orders are live and applied up to AT."""
    with opened_shop(database) as shop:
        shop.register_orders(AT)
        lease = shop.acquire()
        shop.publish(lease, 0)
        shop.apply(lease, after=0, lake_version=2)
        shop.store.leases.release(lease)
        yield shop


def position(shop: Shop) -> LakePosition:
    return shop.store.lake_positions.lake_position(shop.orders.table_id)


def the_stream_goes_on(shop: Shop, *, reads_orders: bool) -> None:
    """Two more cuts without events; the consumer reads the orders, or leaves the table out."""
    last = shop.store.lake_positions.last_boundary("shop")
    assert last is not None
    start = int(last.position, 16)
    table_id = shop.orders.table_id if reads_orders else shop.customers.table_id
    for end in (start + 1, start + 2):
        shop.register(shop.cut(end - 1, end, {(table_id, 0): 0}))


def mark_stale(shop: Shop) -> None:
    shop.store.stale_tables.mark(shop.orders.table_id, "it was dropped")


def ask_for_a_snapshot(shop: Shop) -> None:
    mark_stale(shop)
    run_sql(shop.url, "UPDATE cdc.source_table SET snapshot_wanted = true WHERE table_name = 'orders'")


def begin_again(shop: Shop) -> None:
    """The consumer reads the table again, for a snapshot that is still to come."""
    mark_stale(shop)
    shop.store.stale_tables.begin_again(shop.orders.table_id, source_oid=7, settings={}, published_as="m")


def take_the_new_snapshot(shop: Shop) -> None:
    begin_again(shop)
    shop.store.snapshots.create_snapshot(shop.new_snapshot(9, snapshot_id="second"))


def fail(shop: Shop) -> None:
    lease = shop.acquire()
    shop.store.failures.record(lease, "lake and metadata store disagree", retry_policy=RetryPolicy(), is_outage=False)
    shop.store.leases.release(lease)


def park(shop: Shop) -> None:
    fail(shop)
    run_sql(shop.url, "UPDATE cdc.failing_table SET failing_since = failing_since - interval '1 day'")
    fail(shop)


def remove(shop: Shop) -> None:
    """Taken out of pipeline.yml: nobody tells the store; the cuts are made without it."""
    the_stream_goes_on(shop, reads_orders=False)


def withhold_an_event(shop: Shop) -> None:
    event = QuarantinedEvent(
        table_id=shop.orders.table_id,
        stream_partition=1,
        version=encode_version(AT + 1, 1),
        reason="infinity is no date",
        column="note",
        payload={"order_id": "1"},
    )
    cut = shop.cut(AT, AT + 1, {(shop.orders.table_id, 0): 0, (shop.orders.table_id, 1): 0})
    shop.register(replace(cut, quarantined=(event,)))


def leave_a_slice_unapplied(shop: Shop) -> None:
    shop.register_orders(1, start=AT)


CASES: dict[str, tuple[Callable[[Shop], None], bool, str]] = {
    "stale": (mark_stale, False, "it was dropped"),
    "a snapshot is wanted": (ask_for_a_snapshot, False, "it was dropped"),
    "read again before its snapshot": (begin_again, True, "it was dropped"),
    "its new snapshot is being taken": (take_the_new_snapshot, True, "it was dropped; a new snapshot is being taken"),
    "failing": (fail, True, "lake and metadata store disagree"),
    "parked": (park, True, "lake and metadata store disagree"),
    "removed": (remove, False, "it is not read any more: the stream goes on without it"),
    "an event withheld": (withhold_an_event, True, "rows of it wait in quarantine"),
}


@pytest.mark.parametrize("kind", CASES)
def test_the_position_stands_still_while_the_stream_goes_on(shop: Shop, kind: str) -> None:
    damage, is_read, reason = CASES[kind]
    before = position(shop)
    assert (before.position, before.reason) == (encode_position(AT), None)
    damage(shop)
    the_stream_goes_on(shop, reads_orders=is_read)
    found = position(shop)
    assert (found.position, found.as_of) == (before.position, before.as_of)
    assert found.reason is not None
    assert reason in found.reason
    (row,) = shop.store.inspection.run("lag", {"table": "shop.public.orders"})
    assert (row["lake_as_of"], row["reason"]) == (before.as_of, found.reason)
    assert row["seconds_behind"] > 0


def test_a_slice_that_waits_holds_the_position_without_a_reason_of_its_own(shop: Shop) -> None:
    leave_a_slice_unapplied(shop)
    assert (position(shop).position, position(shop).reason) == (encode_position(AT), None)


def test_a_table_without_a_snapshot_is_behind_since_it_was_registered(shop: Shop) -> None:
    run_sql(shop.url, "UPDATE cdc.source_table SET registered_at = registered_at - interval '1 hour'")
    (row,) = shop.store.inspection.run("lag", {"table": "shop.public.customers"})
    assert (row["lake_as_of"], row["reason"]) == (None, "it has no snapshot yet")
    assert 3600 <= row["seconds_behind"] < 3700


def test_an_alarm_of_the_stream_is_the_reason_of_every_table(shop: Shop) -> None:
    shop.store.streams.raise_alarm("shop", "the slot is gone")
    rows = shop.store.inspection.run("position")
    assert [row["reason"].split(";")[0] for row in rows] == ["the stream stopped: the slot is gone"] * 2
    assert position(shop).position == encode_position(AT)
    the_stream_goes_on(shop, reads_orders=True)
    assert (position(shop).position, position(shop).reason) == (encode_position(AT + 2), None)


def test_a_stream_partition_that_was_read_to_its_end_gets_no_alarm_since_nothing_would_clear_it(shop: Shop) -> None:
    run_sql(shop.url, """UPDATE cdc.stream_partition SET last_position = '{"ended": ""}' WHERE stream_partition = 1""")
    shop.store.streams.raise_alarm("shop", "the credentials have expired")
    alarms = "SELECT stream_partition FROM cdc.stream_partition WHERE alarm IS NOT NULL"
    assert query(shop.url, alarms) == [(0,)]


def test_a_table_that_became_stale_again_stands_where_it_stood_first(shop: Shop) -> None:
    begin_again(shop)
    the_stream_goes_on(shop, reads_orders=True)
    shop.store.stale_tables.mark(shop.orders.table_id, "it was dropped again")
    assert position(shop).position == encode_position(AT)
    assert position(shop).reason == "it was dropped again"


def test_a_new_snapshot_lets_the_position_go_on(shop: Shop) -> None:
    begin_again(shop)
    the_stream_goes_on(shop, reads_orders=True)
    shop.publish(shop.acquire(), AT + 2, snapshot_id="second")
    the_stream_goes_on(shop, reads_orders=True)
    assert (position(shop).position, position(shop).reason) == (encode_position(AT + 4), None)


def test_a_success_lets_the_position_of_a_failing_table_go_on(shop: Shop) -> None:
    park(shop)
    the_stream_goes_on(shop, reads_orders=True)
    shop.store.failures.clear(shop.acquire())
    assert (position(shop).position, position(shop).reason) == (encode_position(AT + 2), None)


def test_a_success_does_not_mend_a_stale_table(shop: Shop) -> None:
    fail(shop)
    mark_stale(shop)
    shop.store.failures.clear(shop.acquire())
    the_stream_goes_on(shop, reads_orders=True)
    assert position(shop).position == encode_position(AT)


def test_a_withheld_event_counts_until_its_late_slice_is_applied_or_it_is_dropped(shop: Shop) -> None:
    withhold_an_event(shop)
    the_stream_goes_on(shop, reads_orders=True)
    (entry,) = shop.store.quarantine.entries(state=QuarantineState.WAITING)
    kept = shop.store.quarantine
    new = replace(shop.slice(shop.orders.table_id, 1, 1, 0, "late"), late=True)
    kept.replay(kept.late_slice(new, [entry.quarantine_id]), shop.store.streams.chain_position("shop"), None)
    (row,) = shop.store.inspection.run("lag", {"table": "shop.public.orders"})
    assert (row["events_quarantined"], row["rows_withheld"]) == (0, 1)
    assert position(shop).position == encode_position(AT)
    shop.apply(shop.acquire(), after=6, lake_version=3)
    assert position(shop).position == encode_position(AT + 3)
    (row,) = shop.store.inspection.run("lag", {"table": "shop.public.orders"})
    assert (row["rows_withheld"], row["reason"]) == (0, None)


def test_a_table_whose_snapshot_lacks_a_row_equals_its_source_nowhere_until_the_row_is_decided_on(shop: Shop) -> None:
    shop.store.snapshots.create_snapshot(shop.new_snapshot(AT + 1, snapshot_id="second"))
    snapshot = shop.store.snapshots.snapshot("second")
    row = QuarantinedRow(column="note", reason="infinity is no date", payload={"order_id": "1"})
    shop.store.quarantined_rows.add(snapshot, 0, [row])
    assert position(shop).position == encode_position(AT), "the lake is still made of the first one"
    shop.store.snapshots.set_snapshot_state("second", SnapshotState.PUBLISHING)
    lease = shop.acquire()
    shop.publish(lease, AT + 1, snapshot_id="second")
    assert (position(shop).position, position(shop).as_of) == (None, None)
    assert position(shop).reason == "rows of it wait in quarantine"
    assert shop.store.snapshot_history.withheld("second") == 1
    (progress, _) = shop.store.inspection.run("snapshots", {"table": "shop.public.orders"})
    assert progress["rows_withheld"] == 1
    (entry,) = shop.store.quarantine.entries(state=QuarantineState.WAITING)
    shop.store.quarantine.drop(lease, [entry.quarantine_id], "a test account")
    assert position(shop).position == encode_position(AT + 1)


def test_a_table_that_comes_back_behind_cuts_without_it_is_stale(shop: Shop) -> None:
    remove(shop)
    the_stream_goes_on(shop, reads_orders=True)
    row = shop.store.tables.table(shop.orders.name)
    assert (row.state, row.halted_at, row.published_as) == ("stale", encode_position(AT), None)
    assert row.state_reason == (
        f"its changes from {encode_position(AT)} to {encode_position(AT + 2)} were not read:"
        " the stream continued without it; run cdc snapshot on it"
    )
    assert position(shop).position == encode_position(AT)


def test_a_table_that_is_first_read_behind_the_cutoff_of_its_snapshot_is_stale(shop: Shop) -> None:
    """A consumer that did not know the table yet has read past the cutoff."""
    shop.store.snapshots.create_snapshot(
        replace(shop.new_snapshot(AT + 1), snapshot_id="c", table_id=shop.customers.table_id)
    )
    the_stream_goes_on(shop, reads_orders=True)
    shop.register(shop.cut(AT + 2, AT + 3, {(shop.customers.table_id, 0): 5}))
    assert shop.store.tables.table(shop.customers.name).state == "stale"
    assert shop.store.snapshots.snapshot("c").state is SnapshotState.ABANDONED


def test_a_table_without_a_snapshot_may_begin_anywhere(shop: Shop) -> None:
    the_stream_goes_on(shop, reads_orders=True)
    shop.register(shop.cut(AT + 2, AT + 3, {(shop.customers.table_id, 0): 5}))
    assert shop.store.tables.table(shop.customers.name).state == "registered"


def test_no_version_of_a_table_that_is_not_followed_belongs_to_a_later_boundary(shop: Shop) -> None:
    before = shop.store.lake_positions.last_boundary("shop")
    remove(shop)
    after = shop.store.lake_positions.last_boundary("shop")
    assert before is not None
    assert after is not None
    versions = [version_vector(shop.store, each.boundary_id) for each in (before, after)]
    assert [version[shop.orders.table_id] for version in versions] == [2, None]


def test_incomplete_rows_are_counted_since_the_snapshot(shop: Shop) -> None:
    run_sql(shop.url, "UPDATE cdc.claim SET rows_incomplete = 4")
    (row,) = shop.store.inspection.run("lag", {"table": "shop.public.orders"})
    assert row["rows_incomplete"] == 4
    shop.publish(shop.acquire(), AT, snapshot_id="second")
    (row,) = shop.store.inspection.run("lag", {"table": "shop.public.orders"})
    assert (row["rows_incomplete"], row["lake_as_of"]) == (0, MORNING + AT * MINUTE)


def test_a_killed_consumer_holds_nothing_back_once_another_one_reads_the_whole_stream(shop: Shop) -> None:
    def shown() -> set[str | None]:
        return {row["held_back"] for row in shop.store.inspection.run("partitions")}

    streams, consumers, first = shop.store.streams, shop.store.consumers, encode_position(0)
    consumers.take_share("shop", owner="killed", lifetime=MINUTE, first_offset=first)
    assert shown() == {None}
    run_sql(shop.url, "UPDATE cdc.consumer SET expires_at = clock_timestamp()")
    assert shown() == {"its consumer killed is gone"}
    streams.take_stream("shop", owner="alone", first_offset=first)
    assert shown() == {None}
    consumers.beat("shop", owner="newcomer", lifetime=MINUTE)
    assert shown() == {"its consumer alone is gone"}
