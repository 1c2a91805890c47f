"""A cut becomes numbered slices exactly once, whoever tries again or comes too late."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text

from cdc_pipeline.errors import CdcError, RegistryError, SliceFork, SourceChanged, StaleEpoch, UsageError
from cdc_pipeline.metadata_store.ledger.cut import Cut, PartitionRange, QuarantinedEvent
from cdc_pipeline.metadata_store.ledger.records import Boundary, RegisteredSlice
from cdc_pipeline.record import encode_position
from cdc_pipeline.time_slice import label_of
from tests.support.metadata_store import MINUTE, MORNING, SCHEMA, STREAM, Shop, new_table, opened_shop


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        yield shop


def slices_of(shop: Shop, table_id: int) -> tuple[RegisteredSlice, ...]:
    return shop.store.slices.slices(table_id, 1, 1000)


def first_cut(shop: Shop) -> Cut:
    orders, customers = shop.orders.table_id, shop.customers.table_id
    return shop.cut(0, 5, {(orders, 0): 3, (orders, 1): 0, (customers, 1): 7})


def test_each_table_numbers_its_slices_without_a_gap_in_the_order_of_stream_partitions(shop: Shop) -> None:
    shop.register(first_cut(shop))
    shop.register_orders(1, start=5)
    orders = slices_of(shop, shop.orders.table_id)
    assert [(row.number, row.stream_partition, row.rows) for row in orders] == [
        (1, 0, 3),
        (2, 0, 5),
        (3, 1, 5),
    ]
    assert [row.number for row in slices_of(shop, shop.customers.table_id)] == [1]


def test_a_table_without_events_is_known_as_read_without_a_row_for_each_cut(shop: Shop) -> None:
    read = {(shop.orders.table_id, 0): 0}
    for end in range(1, 4):
        shop.register(shop.cut(end - 1, end, read))
    assert slices_of(shop, shop.orders.table_id) == ()
    assert shop.store.tables.table(shop.orders.name).followed_at == encode_position(3)
    assert shop.store.tables.table(shop.customers.name).followed_at is None


def test_only_tables_with_slices_are_numbered_and_claims_of_others_are_recorded_meanwhile(shop: Shop) -> None:
    """A cut names every table of the stream; a claim checks that its table exists by the lock FOR KEY SHARE."""
    ids = [shop.store.tables.register_table(new_table(f"table_{number}")).table_id for number in range(50)]
    other = create_engine(shop.engine.url)
    statements, numbered = list[str](), list[Any]()

    @event.listens_for(shop.engine, "before_cursor_execute")
    def note(_c: object, _cursor: object, statement: str, parameters: Any, _context: object, _many: object) -> None:
        statements.append(statement)
        if "next_slice_number=" in statement:
            numbered.append(parameters)
            with other.begin() as claiming:
                claiming.exec_driver_sql("SELECT FROM cdc.source_table FOR KEY SHARE NOWAIT")

    shop.register(shop.cut(0, 5, {(table_id, 0): 0 for table_id in ids} | {(shop.orders.table_id, 0): 3}))
    other.dispose()
    assert numbered == [{"of_table": shop.orders.table_id, "number": 2, "newest": shop.schema_id}]
    assert len(statements) < 20


def test_registering_moves_next_offset_watermark_and_label(shop: Shop) -> None:
    boundary = shop.register(first_cut(shop))
    assignment = shop.store.streams.take_stream("shop", owner="next", first_offset=encode_position(77))
    assert assignment.next_offset == {0: encode_position(5), 1: encode_position(5)}
    assert assignment.label == label_of(MORNING + 5 * MINUTE, MINUTE)
    watermarks = [row["watermark"] for row in shop.store.inspection.run("partitions")]
    assert watermarks == [MORNING + 5 * MINUTE] * 2
    assert boundary == shop.store.lake_positions.last_boundary("shop")


def test_the_same_cut_again_gives_the_same_boundary_and_no_second_slice(shop: Shop) -> None:
    first = shop.register(first_cut(shop))
    again = shop.register(first_cut(shop))
    assert again == first
    assert len(slices_of(shop, shop.orders.table_id)) == 1


def test_other_content_for_a_registered_range_is_an_alarm(shop: Shop) -> None:
    shop.register(first_cut(shop))
    other = replace(first_cut(shop), slices=shop.cut(0, 5, {(1, 0): 3, (1, 1): 0, (2, 1): 7}, salt="other").slices)
    before = slices_of(shop, shop.orders.table_id)
    with pytest.raises(SliceFork, match="registered with other content"):
        shop.register(other)
    assert slices_of(shop, shop.orders.table_id) == before


def test_events_where_none_were_registered_are_an_alarm_too(shop: Shop) -> None:
    shop.register(first_cut(shop))
    more = shop.cut(0, 5, {(1, 0): 3, (1, 1): 2, (2, 1): 7})
    with pytest.raises(SliceFork, match="registered with other content"):
        shop.register(more)
    with pytest.raises(SliceFork, match="registered with other content"):
        shop.register(replace(first_cut(shop), slices=()))


def test_a_consumer_that_lost_the_stream_registers_nothing(shop: Shop) -> None:
    shop.store.streams.take_stream("shop", owner="second", first_offset=encode_position(0))
    with pytest.raises(StaleEpoch, match="belongs to second with epoch 2; expected epoch 1"):
        shop.register(first_cut(shop))
    assert slices_of(shop, shop.orders.table_id) == ()


def test_a_cut_that_leaves_a_gap_names_both_offsets(shop: Shop) -> None:
    shop.register(first_cut(shop))
    with pytest.raises(RegistryError, match=f"{encode_position(6)}.*next offset {encode_position(5)}"):
        shop.register(shop.cut(6, 7, {}))


def test_a_cut_that_overlaps_is_refused(shop: Shop) -> None:
    shop.register(first_cut(shop))
    with pytest.raises(RegistryError, match="next offset"):
        shop.register(shop.cut(4, 7, {}))


def backwards_label(shop: Shop) -> Cut:
    return replace(shop.cut(5, 6, {}), label=label_of(MORNING, MINUTE))


def backwards_position(shop: Shop) -> Cut:
    return replace(shop.cut(5, 6, {}), position=encode_position(2))


def half_the_partitions(shop: Shop) -> Cut:
    cut = shop.cut(5, 6, {})
    return replace(cut, partitions=cut.partitions[:1])


def unknown_table(shop: Shop) -> Cut:
    return shop.cut(5, 6, {(999, 0): 1})


def slice_of_an_empty_range(shop: Shop) -> Cut:
    still = (PartitionRange(stream_partition=0, start_offset=encode_position(5), end_offset=encode_position(5)),)
    cut = shop.cut(5, 6, {(shop.orders.table_id, 0): 1})
    return replace(cut, partitions=(*still, cut.partitions[1]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (backwards_label, "or later"),
        (backwards_position, "a position after"),
        (half_the_partitions, "each once"),
        (unknown_table, "tables of the stream shop"),
        (slice_of_an_empty_range, "slice_range"),
    ],
)
def test_a_cut_that_contradicts_the_store_changes_nothing(shop: Shop, make: object, words: str) -> None:
    shop.register(first_cut(shop))
    before = shop.store.inspection.run("partitions", {"limit": 10})
    assert callable(make)
    with pytest.raises(RegistryError, match=words):
        shop.register(make(shop))
    after = shop.store.inspection.run("partitions", {"limit": 10})
    assert [row["next_offset"] for row in after] == [row["next_offset"] for row in before]
    assert len(slices_of(shop, shop.orders.table_id)) == 1


def test_a_watermark_never_steps_back_when_commit_times_do(shop: Shop) -> None:
    shop.register(first_cut(shop))
    earlier = replace(shop.cut(5, 6, {}), commit_time=MORNING)
    assert shop.register(earlier).commit_time == MORNING + 5 * MINUTE


OVERLAPPING = text("""
    INSERT INTO cdc.slice (table_id, number, slice_id, boundary_id, stream_partition, label_start, label_end,
                           start_offset, end_offset, path, sha256, schema_id)
    SELECT table_id, 99, 'x', :boundary_id, stream_partition, label_start, label_end, :start, :end,
           path, sha256, schema_id
    FROM cdc.slice WHERE table_id = :table_id AND number = 1
    """)


def insert_overlapping(shop: Shop, boundary: Boundary) -> None:
    parameters = {"start": encode_position(4), "end": encode_position(9), "table_id": shop.orders.table_id}
    with shop.store.registration.database.transaction("test.overlap") as connection:
        connection.execute(OVERLAPPING, {**parameters, "boundary_id": boundary.boundary_id})


def test_the_database_itself_refuses_overlapping_ranges_of_one_table(shop: Shop) -> None:
    shop.register(first_cut(shop))
    boundary = shop.register(shop.cut(5, 6, {}))
    with pytest.raises(RegistryError, match="slice_ranges_disjoint"):
        insert_overlapping(shop, boundary)


def test_of_two_consumers_that_register_at_once_exactly_one_wins(shop: Shop) -> None:
    barrier = Barrier(2)
    cuts = [first_cut(shop), shop.cut(0, 6, {(shop.orders.table_id, 0): 1})]

    def register(cut: Cut) -> Boundary | CdcError:
        barrier.wait()
        try:
            return shop.register(cut)
        except RegistryError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(register, cuts))
    assert sorted(isinstance(outcome, RegistryError) for outcome in outcomes) == [False, True]


def test_events_that_do_not_fit_are_kept_with_the_cut(shop: Shop) -> None:
    event = QuarantinedEvent(
        table_id=shop.orders.table_id,
        stream_partition=0,
        version="v",
        reason="infinity is no timestamp",
        column="created_at",
        payload={"order_id": "7", "created_at": "infinity"},
    )
    shop.register(replace(first_cut(shop), quarantined=(event,)))
    shop.register(replace(first_cut(shop), quarantined=(event,)))
    (row,) = shop.store.inspection.run("quarantine")
    assert (row["column"], row["end_offset"]) == ("created_at", encode_position(5))
    assert shop.store.inspection.run("lag", {"table": "shop.public.orders"})[0]["events_quarantined"] == 1


def test_another_server_behind_the_same_stream_is_refused(shop: Shop) -> None:
    with pytest.raises(SourceChanged, match=r"system 8000.*expected system 7000"):
        shop.store.streams.register_stream(replace(STREAM, source_system_identifier="8000"), stream_partitions=2)


def test_the_number_of_stream_partitions_cannot_change(shop: Shop) -> None:
    with pytest.raises(RegistryError, match=r"3 stream partitions.*expected 2"):
        shop.store.streams.register_stream(STREAM, stream_partitions=3)


def test_a_table_that_was_made_again_under_its_name_is_refused(shop: Shop) -> None:
    with pytest.raises(SourceChanged, match="oid 5"):
        shop.store.tables.register_table(new_table("orders", oid=5))


def test_registering_a_table_again_keeps_its_identity_and_takes_new_settings(shop: Shop) -> None:
    changed = replace(new_table("orders"), settings={**new_table("orders").settings, "update_time": "updated_at"})
    again = shop.store.tables.register_table(changed)
    assert (again.table_id, again.table_uuid) == (shop.orders.table_id, shop.orders.table_uuid)
    assert shop.store.tables.table(again.name).settings["update_time"] == "updated_at"


def test_settings_that_the_lake_was_written_by_cannot_change_after_a_snapshot_began(shop: Shop) -> None:
    shop.store.snapshots.create_snapshot(shop.new_snapshot(3))
    changed = replace(new_table("orders"), settings={**new_table("orders").settings, "deletes": "soft"})
    with pytest.raises(RegistryError, match="changed in deletes"):
        shop.store.tables.register_table(changed)


def test_a_schema_comes_back_as_it_was_recorded(shop: Shop) -> None:
    assert shop.store.tables.schema(shop.orders.table_id, shop.schema_id) == SCHEMA
    with pytest.raises(RegistryError, match="has no schema nothing"):
        shop.store.tables.schema(shop.orders.table_id, "nothing")


def test_names_that_do_not_exist_are_refused_by_name(shop: Shop) -> None:
    with pytest.raises(UsageError, match=r"shop\.public\.nothing"):
        shop.store.tables.table(new_table("nothing").name)
    with pytest.raises(UsageError, match="no stream nothing"):
        shop.store.streams.take_stream("nothing", owner="x", first_offset="0")


def test_a_boundary_that_somebody_asks_for_later_is_requested_from_then_on(shop: Shop) -> None:
    registered = shop.register(first_cut(shop))
    asked = shop.register(replace(shop.cut(5, 5, {}), requested=True))
    assert asked == replace(registered, requested=True)
    assert shop.store.lake_positions.boundary_at("shop", encode_position(5)) == asked
    assert len(slices_of(shop, shop.orders.table_id)) == 1


def test_a_boundary_is_made_where_the_stream_begins_if_somebody_asks_for_it(shop: Shop) -> None:
    asked = shop.register(replace(shop.cut(0, 0, {}), requested=True))
    assert (asked.position, asked.requested) == (encode_position(0), True)


def test_a_boundary_that_lies_behind_what_is_registered_cannot_be_asked_for(shop: Shop) -> None:
    shop.register(first_cut(shop))
    shop.register_orders(1, start=5)
    with pytest.raises(RegistryError, match="next offset"):
        shop.register(replace(shop.cut(5, 5, {}), requested=True))
