"""Quarantined events that a rebuild puts back."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cdc_pipeline.metadata_store.ledger.cut import QuarantinedEvent
from cdc_pipeline.metadata_store.operations.restored_events import restore_events
from cdc_pipeline.metadata_store.snapshots.quarantined_rows import QuarantinedRow, columns_of
from cdc_pipeline.metadata_store.states import QuarantineState
from cdc_pipeline.record import encode_position
from tests.support.metadata_store import Shop, opened_shop

AWKWARD = {"order_id": "1", "note": "\udcff \u0000 'é", "other": None}


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    with opened_shop(database) as shop:
        yield shop


def event(shop: Shop, quarantine_id: int, **changed: Any) -> dict[str, Any]:
    """As the base of a chain has it."""
    return {
        "quarantine_id": quarantine_id,
        "table_id": shop.orders.table_id,
        "stream_partition": 0,
        "version": f"{encode_position(1)}-00000001",
        "start_offset": encode_position(0),
        "end_offset": encode_position(1),
        "reason": "out of range",
        "column": "note",
        "payload": AWKWARD,
        "state": "waiting",
        "created_at": "2024-01-01T08:01:00+00:00",
        "snapshot_id": None,
        "place": f"{encode_position(1)}-{quarantine_id}",
        "slice_number": None,
        "decision": None,
        "decided_at": None,
        **changed,
    }


def restore(shop: Shop, *rows: dict[str, Any]) -> None:
    with shop.store.quarantine.database.transaction("test.restore") as connection:
        restore_events(connection, rows)


def test_an_event_keeps_number_payload_and_decision_and_is_restored_once(shop: Shop) -> None:
    dropped = event(shop, 9, state="dropped", decision="no use", decided_at="2024-01-02T08:00:00+00:00")
    for _ in range(2):
        restore(shop, event(shop, 7), dropped)
    waiting, decided = shop.store.quarantine.entries()
    assert (waiting.quarantine_id, waiting.payload, waiting.state) == (7, AWKWARD, QuarantineState.WAITING)
    assert (decided.quarantine_id, decided.state, decided.decision) == (9, QuarantineState.DROPPED, "no use")


def test_an_event_whose_number_is_taken_gets_another_and_new_events_come_behind_all(shop: Shop) -> None:
    restore(shop, event(shop, 7))
    restore(shop, event(shop, 7, place="another"))
    first, second = shop.store.quarantine.entries()
    assert (first.quarantine_id, second.place) == (7, "another")
    assert second.quarantine_id > 7
    quarantined = QuarantinedEvent(
        table_id=shop.orders.table_id,
        stream_partition=0,
        version=f"{encode_position(1)}-00000001",
        reason="out of range",
        column="note",
        payload={},
    )
    cut = shop.cut(0, 1, {(shop.orders.table_id, 0): 1})
    shop.register(replace(cut, quarantined=(quarantined,)))
    assert shop.store.quarantine.entries()[-1].quarantine_id > second.quarantine_id


def test_a_row_of_a_snapshot_that_waits_gets_its_decision_and_one_of_an_unknown_snapshot_is_left_out(
    shop: Shop,
) -> None:
    snapshot = shop.store.snapshots.create_snapshot(shop.new_snapshot(1))
    shop.store.quarantined_rows.add(snapshot, 0, [QuarantinedRow(column="note", reason="r", payload=AWKWARD)])
    (known,) = shop.store.quarantine.entries()
    of_snapshot = columns_of(snapshot) | {"place": known.place}
    restore(
        shop,
        event(shop, 70, **of_snapshot, state="dropped", decision="no use", decided_at="2024-01-02T08:00:00+00:00"),
        event(shop, 71, **of_snapshot | {"snapshot_id": "unknown"}),
    )
    (entry,) = shop.store.quarantine.entries()
    assert (entry.quarantine_id, entry.state, entry.decision) == (
        known.quarantine_id,
        QuarantineState.DROPPED,
        "no use",
    )


def test_an_event_of_the_stream_that_waits_gets_its_decision_and_a_decided_one_keeps_its_own(shop: Shop) -> None:
    restore(shop, event(shop, 7), event(shop, 8, state="dropped", decision="first"), event(shop, 9))
    late = {"state": "replayed", "slice_number": 3, "decided_at": "2024-01-02T08:00:00+00:00"}
    restore(shop, event(shop, 7, **late), event(shop, 8, state="dropped", decision="second"), event(shop, 9))
    replayed, dropped, waiting = shop.store.quarantine.entries()
    assert (replayed.state, replayed.slice_number) == (QuarantineState.REPLAYED, 3)
    assert (dropped.state, dropped.decision) == (QuarantineState.DROPPED, "first")
    assert waiting.state is QuarantineState.WAITING
