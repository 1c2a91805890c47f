"""Events in quarantine: kept once, replayed once, dropped for a reason, gone with what they belong to."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from sqlalchemy import event
from sqlalchemy.sql import Insert

from cdc_pipeline.errors import RegistryError, UsageError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import BATCH_ROWS
from cdc_pipeline.metadata_store.ledger.cut import LateSlice, QuarantinedEvent, Slice
from cdc_pipeline.metadata_store.ledger.quarantine import QuarantineEntry
from cdc_pipeline.metadata_store.snapshots.quarantined_rows import QuarantinedRow
from cdc_pipeline.metadata_store.states import QuarantineState, SliceState, SnapshotState
from cdc_pipeline.record import encode_position, encode_version
from tests.support.command_line import query
from tests.support.metadata_store import Shop, opened_shop
from tests.support.version_vector import version_vector

MANY = 3_000
WITHHELD = """
    SELECT rows_withheld, since_position, position, reason
    FROM cdc.v_withheld JOIN cdc.v_lake_position USING (table_id) WHERE table_id = {}
    """
AWKWARD = {"order_id": "1", "note": "\udcff \u0000 'é", "other": None}


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        yield shop


def misfit(shop: Shop, end: int) -> QuarantinedEvent:
    return QuarantinedEvent(
        table_id=shop.orders.table_id,
        stream_partition=1,
        version=encode_version(end, 1),
        reason="it does not fit",
        column="note",
        payload=AWKWARD,
    )


def keep_event(shop: Shop, end: int) -> QuarantineEntry:
    """One quarantined event of a cut that ends at `end`, beside five rows in each stream partition."""
    table_id = shop.orders.table_id
    cut = shop.cut(end - 1, end, {(table_id, 0): 5, (table_id, 1): 5})
    for _ in range(2):
        shop.register(replace(cut, quarantined=(misfit(shop, end),)))
    return shop.store.quarantine.entries(table_id=table_id)[-1]


def late_slice(shop: Shop, salt: str = "late") -> Slice:
    return replace(shop.slice(shop.orders.table_id, 1, 1, 0, salt), late=True)


def replay(shop: Shop, new: Slice, quarantine_ids: Sequence[int]) -> int:
    kept = shop.store.quarantine
    return kept.replay(kept.late_slice(new, quarantine_ids), shop.store.streams.chain_position("shop"), None)


def test_an_event_is_kept_whole_and_once_however_often_its_cut_is_registered(shop: Shop) -> None:
    kept = keep_event(shop, 1)
    assert (kept.payload, kept.state, kept.version) == (AWKWARD, QuarantineState.WAITING, encode_version(1, 1))
    assert (kept.start_offset, kept.end_offset) == (encode_position(0), encode_position(1))
    assert len(shop.store.quarantine.entries()) == 1
    assert shop.store.slices.awaits_late(shop.orders.table_id)
    assert not shop.store.slices.awaits_late(shop.customers.table_id)


def test_a_cut_and_a_snapshot_quarantine_any_number_of_rows_with_short_pauses_between_statements(shop: Shop) -> None:
    """While one long list of rows becomes a statement, the server may end the session as idle in a transaction."""
    counts = counted_rows(shop)
    many = 2 * BATCH_ROWS + 1
    unfit = (misfit(shop, 1),) * many
    shop.register(replace(shop.cut(0, 1, {}), quarantined=unfit))
    shop.store.registration.register(replace(shop.cut(1, 2, {}), quarantined=unfit), None)
    shop.store.snapshots.create_snapshot(shop.new_snapshot(1))
    row = QuarantinedRow(column="note", reason="r", payload=AWKWARD)
    shop.store.quarantined_rows.add(shop.store.snapshots.snapshot("first"), 0, [row] * many)
    assert counts == [BATCH_ROWS, BATCH_ROWS, 1] * 3
    assert len({entry.place for entry in shop.store.quarantine.entries()}) == 3 * many


def counted_rows(shop: Shop) -> list[int]:
    """Counts, in the list that it returns, the rows of each later INSERT into cdc.quarantine."""
    counts: list[int] = []

    @event.listens_for(shop.engine, "before_execute")
    def count(_c: object, statement: object, many: Sequence[object], _one: object, _options: object) -> None:
        if isinstance(statement, Insert) and statement.table is models.quarantine:
            counts.append(len(many) or 1)

    return counts


def test_a_replay_registers_a_late_slice_and_marks_the_event_at_once(shop: Shop) -> None:
    kept = keep_event(shop, 1)
    keep_event(shop, 2)
    number = replay(shop, late_slice(shop), [kept.quarantine_id])
    assert number == 5
    (found,) = shop.store.slices.slices(shop.orders.table_id, 5, 5)
    assert (found.late, found.stream_partition, found.state) == (True, 1, SliceState.REGISTERED)
    assert found.start_offset == found.end_offset == found.position == encode_position(2)
    replayed = shop.store.quarantine.entry(kept.quarantine_id)
    assert (replayed.state, replayed.slice_number) == (QuarantineState.REPLAYED, 5)
    shop.register_orders(1, start=2)
    numbers = [row.number for row in shop.store.slices.slices(shop.orders.table_id, 1, 100)]
    assert numbers == [1, 2, 3, 4, 5, 6, 7]


def test_what_registers_a_late_slice_does_not_grow_with_its_events(shop: Shop) -> None:
    """While a long statement is built, the server may end the session: the slice would be decided, never registered."""
    shop.store.snapshots.create_snapshot(shop.new_snapshot(1))
    row = QuarantinedRow(column="note", reason="r", payload=AWKWARD)
    shop.store.quarantined_rows.add(shop.store.snapshots.snapshot("first"), 0, [row] * 3)
    shop.register(replace(shop.cut(0, 1, {}), quarantined=(misfit(shop, 1),) * MANY))
    events = tuple((entry.snapshot_id, entry.place) for entry in shop.store.quarantine.entries()[1:-1])
    late, lengths = LateSlice(slice=late_slice(shop), slice_id="late", events=events), statement_lengths(shop)
    lease = shop.acquire()
    assert shop.store.quarantine.number_or_open(late, lease) is None
    assert shop.store.quarantine.replay(late, shop.store.streams.chain_position("shop"), lease) == 1
    waiting = shop.store.quarantine.entries(state=QuarantineState.WAITING)
    assert [entry.quarantine_id for entry in waiting] == [1, MANY + 3]
    assert max(lengths) < MANY
    with pytest.raises(RegistryError, match="event 2 in quarantine is replayed"):
        shop.store.quarantine.number_or_open(replace(late, slice_id="other"), lease)


def statement_lengths(shop: Shop) -> list[int]:
    """Notes, in the list that it returns, the length of each later statement without its parameters."""
    lengths: list[int] = []

    @event.listens_for(shop.engine, "before_cursor_execute")
    def note(_c: object, _u: object, statement: str, _p: object, _o: object, _m: object) -> None:
        lengths.append(len(statement))

    return lengths


def test_the_base_of_the_chain_gets_any_number_of_events_in_one_transaction(shop: Shop) -> None:
    many = 2 * BATCH_ROWS + 1
    boundary = shop.register(replace(shop.cut(0, 1, {}), quarantined=(misfit(shop, 1),) * many))
    keep, begun = shop.store.retention.keep(boundary, {}), list[object]()
    event.listen(shop.engine, "begin", begun.append)
    rows = shop.store.base_rows.read(keep)["quarantine"]
    assert [row["quarantine_id"] for row in rows] == list(range(1, many + 1))
    assert len(begun) == 1


def test_the_same_replay_again_gives_the_same_slice_and_another_is_refused(shop: Shop) -> None:
    kept = keep_event(shop, 1)
    for _ in range(2):
        assert replay(shop, late_slice(shop), [kept.quarantine_id]) == 3
    with pytest.raises(RegistryError, match=f"event {kept.quarantine_id} in quarantine is replayed"):
        replay(shop, late_slice(shop, "other"), [kept.quarantine_id])
    with pytest.raises(RegistryError, match="is replayed"):
        shop.store.quarantine.drop(shop.acquire(), [kept.quarantine_id], "too late")


def test_a_cut_can_be_registered_again_beside_a_late_slice(shop: Shop) -> None:
    kept = keep_event(shop, 1)
    replay(shop, late_slice(shop), [kept.quarantine_id])
    keep_event(shop, 1)
    assert len(shop.store.slices.slices(shop.orders.table_id, 1, 100)) == 3


def test_many_replays_can_lie_at_one_boundary(shop: Shop) -> None:
    kept = [keep_event(shop, 1), keep_event(shop, 2)]
    numbers = [replay(shop, late_slice(shop, str(entry.quarantine_id)), [entry.quarantine_id]) for entry in kept]
    assert numbers == [5, 6]


def test_deletes_leave_tombstones_until_a_replayed_event_is_applied(shop: Shop) -> None:
    kept = keep_event(shop, 1)
    lease = shop.acquire()
    shop.publish(lease, 0)
    replay(shop, late_slice(shop), [kept.quarantine_id])
    assert shop.store.slices.awaits_late(shop.orders.table_id)
    shop.apply(lease, after=0, lake_version=2)
    assert not shop.store.slices.awaits_late(shop.orders.table_id)


def test_a_boundary_has_a_lake_version_when_nothing_waits_and_its_late_slice_is_applied(shop: Shop) -> None:
    kept = keep_event(shop, 1)
    lease = shop.acquire()
    shop.publish(lease, 0)
    shop.apply(lease, after=0, lake_version=2)
    boundary = shop.store.lake_positions.last_boundary("shop")
    assert boundary is not None
    versions = [version_vector(shop.store, boundary.boundary_id)[shop.orders.table_id]]
    replay(shop, late_slice(shop), [kept.quarantine_id])
    versions.append(version_vector(shop.store, boundary.boundary_id)[shop.orders.table_id])
    shop.apply(lease, after=2, lake_version=3)
    versions.append(version_vector(shop.store, boundary.boundary_id)[shop.orders.table_id])
    assert versions == [None, None, 3]


def test_a_replay_before_the_first_boundary_is_refused_with_what_to_do(shop: Shop) -> None:
    shop.store.snapshots.create_snapshot(shop.new_snapshot(1))
    snapshot = shop.store.snapshots.snapshot("first")
    shop.store.quarantined_rows.add(snapshot, 0, [QuarantinedRow(column="note", reason="r", payload=AWKWARD)])
    (kept,) = shop.store.quarantine.entries()
    with pytest.raises(RegistryError, match=r"no boundary yet.*cdc consume"):
        replay(shop, late_slice(shop), [kept.quarantine_id])
    assert shop.store.quarantine.entry(kept.quarantine_id).state is QuarantineState.WAITING


def test_rows_of_an_export_that_is_tried_again_are_kept_once_in_any_order(shop: Shop) -> None:
    shop.store.snapshots.create_snapshot(shop.new_snapshot(1))
    snapshot = shop.store.snapshots.snapshot("first")
    twins = [QuarantinedRow(column="note", reason="r", payload={"order_id": number}) for number in ("1", "2", "1")]
    for rows in (twins, twins[::-1]):
        shop.store.quarantined_rows.add(snapshot, 0, rows)
    assert sorted(kept.payload["order_id"] or "" for kept in shop.store.quarantine.entries()) == ["1", "1", "2"]
    shop.store.quarantined_rows.add(snapshot, 1, twins[:1])
    kept = shop.store.quarantine.entries()
    assert len(kept) == 4
    assert {(each.version, each.snapshot_id) for each in kept} == {(snapshot.cutoff_version, "first")}


def test_a_published_snapshot_drops_what_came_before_its_cutoff_and_keeps_the_rest(shop: Shop) -> None:
    before, after = keep_event(shop, 1), keep_event(shop, 2)
    lease = shop.acquire()
    shop.publish(lease, 2)
    found = {kept.quarantine_id: kept for kept in shop.store.quarantine.entries()}
    assert found[before.quarantine_id].state is QuarantineState.DROPPED
    assert found[before.quarantine_id].decision == "the snapshot first has a later cutoff"
    assert found[after.quarantine_id].state is QuarantineState.WAITING


@pytest.mark.parametrize("by", ["its consumer", "its cut file"])
@pytest.mark.parametrize("first", ["event", "snapshot"])
def test_an_event_that_the_published_snapshot_contains_is_dropped_whichever_came_first(
    shop: Shop, first: str, by: str
) -> None:
    """Waiting, it would hold the table's position, and keep tombstones, for a row that the lake has."""
    assignment, lease = shop.assignment if by == "its consumer" else None, shop.acquire()
    cut = replace(shop.cut(0, 1, {(shop.orders.table_id, 1): 5}), quarantined=(misfit(shop, 1),) * 2)
    shop.publish(lease, 0, snapshot_id="older")
    if first == "event":
        shop.store.registration.register(cut, assignment)
    shop.publish(lease, 2)
    if first == "snapshot":
        shop.store.registration.register(cut, assignment)
    kept = shop.store.quarantine.entries()
    assert [entry.state for entry in kept] == [QuarantineState.DROPPED] * 2
    assert {entry.decision for entry in kept} == {"the snapshot first has a later cutoff"}
    assert all(entry.decided_at is not None for entry in kept)
    assert not shop.store.slices.awaits_late(shop.orders.table_id)
    assert query(shop.url, WITHHELD.format(shop.orders.table_id)) == [(0, None, encode_position(2), None)]


def test_a_cut_behind_a_publication_drops_no_event_that_the_snapshot_may_lack(shop: Shop) -> None:
    lease, orders = shop.acquire(), shop.orders.table_id
    shop.publish(lease, 2)
    snapshot = shop.store.snapshots.create_snapshot(shop.new_snapshot(1, snapshot_id="of older files"))
    shop.store.quarantined_rows.add(snapshot, 0, [QuarantinedRow(column="note", reason="r", payload=AWKWARD)])
    unknown, behind = replace(misfit(shop, 1), version=""), misfit(shop, 2)
    other = replace(misfit(shop, 1), table_id=shop.customers.table_id)
    read = {(orders, 1): 0, (other.table_id, 1): 0}
    shop.register(replace(shop.cut(0, 3, read), quarantined=(misfit(shop, 1), unknown, behind, other)))
    waiting = shop.store.quarantine.entries(state=QuarantineState.WAITING)
    assert [(entry.table_id, entry.version) for entry in waiting] == [
        (orders, snapshot.cutoff_version),
        (orders, ""),
        (orders, behind.version),
        (other.table_id, other.version),
    ]


def test_rows_of_a_snapshot_that_never_was_published_go_with_it(shop: Shop) -> None:
    shop.store.snapshots.create_snapshot(shop.new_snapshot(1))
    snapshot = shop.store.snapshots.snapshot("first")
    shop.store.quarantined_rows.add(snapshot, 0, [QuarantinedRow(column="note", reason="r", payload=AWKWARD)])
    shop.store.snapshots.set_snapshot_state("first", SnapshotState.ABANDONED)
    (kept,) = shop.store.quarantine.entries()
    assert (kept.state, kept.decision) == (QuarantineState.DROPPED, "the snapshot first was not published")


def test_a_drop_keeps_the_event_with_its_reason(shop: Shop) -> None:
    kept, lease = keep_event(shop, 1), shop.acquire()
    for _ in range(2):
        shop.store.quarantine.drop(lease, [kept.quarantine_id], "a test account")
        dropped = shop.store.quarantine.entry(kept.quarantine_id)
        assert (dropped.state, dropped.decision, dropped.payload) == ("dropped", "a test account", AWKWARD)
    assert not shop.store.slices.awaits_late(shop.orders.table_id)
    with pytest.raises(RegistryError, match="is dropped"):
        replay(shop, late_slice(shop), [kept.quarantine_id])


def test_an_event_that_is_not_there_is_named(shop: Shop) -> None:
    lease = shop.acquire()
    for ask in (shop.store.quarantine.entry, lambda number: shop.store.quarantine.drop(lease, [number], "why")):
        with pytest.raises(UsageError, match="there is no event 7 in quarantine"):
            ask(7)
