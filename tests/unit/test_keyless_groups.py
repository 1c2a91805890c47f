"""Decoded rows of a table without a key: an update is the delete of the whole old row and the insert of the new one."""

from typing import Any

import pytest

from cdc_pipeline.errors import SourceChanged
from cdc_pipeline.record import ABSENT, OPERATION, VERSION, TableSchema, encode_version
from cdc_pipeline.slice_file import event_schema, write_slice_file
from cdc_pipeline.sources.protocol import TableEvents
from tests.support import pgoutput_encoder as encode
from tests.unit.sources.test_row_groups import ABSENT_NOTE, OID, POSITION, SCHEMA, events_of, row

BAG = TableSchema(columns=SCHEMA.columns, key=())


def shown(events: TableEvents) -> list[tuple[Any, ...]]:
    names = (OPERATION, VERSION, "id", "note", ABSENT)
    return [tuple(found[name] for name in names) for found in events.rows.to_pylist()]


def version(ordinal: int) -> str:
    return encode_version(POSITION, ordinal)


def test_events_hold_whole_rows_and_no_old_id() -> None:
    events = events_of(
        encode.insert(OID, row(1, encode.text("a"))),
        encode.delete(OID, "O", row(1, encode.text("a"))),
        schema=BAG,
    )
    assert events.rows.schema.equals(event_schema(BAG))
    assert shown(events) == [("i", version(1), 1, "a", None), ("d", version(2), 1, "a", None)]


def test_an_update_is_both_images_at_one_version_also_when_nothing_changed() -> None:
    events = events_of(
        encode.update(OID, row(1, encode.text("b")), "O", row(1, encode.text("a"))),
        encode.update(OID, row(1, encode.text("b")), "O", row(1, encode.text("b"))),
        schema=BAG,
    )
    assert shown(events) == [
        ("d", version(1), 1, "a", None),
        ("i", version(1), 1, "b", None),
        ("d", version(2), 1, "b", None),
        ("i", version(2), 1, "b", None),
    ]


def test_an_unchanged_large_text_of_the_new_image_is_that_of_the_old_one() -> None:
    events = events_of(encode.update(OID, row(2, ABSENT_NOTE), "O", row(1, encode.text("long"))), schema=BAG)
    assert shown(events) == [("d", version(1), 1, "long", None), ("i", version(1), 2, "long", None)]


def test_an_event_without_the_whole_old_row_is_refused_with_the_statement_that_mends_it() -> None:
    for message in (encode.update(OID, row(1)), encode.delete(OID, "K", row(1))):
        with pytest.raises(SourceChanged, match=r'ALTER TABLE "public"."orders" REPLICA IDENTITY FULL'):
            events_of(message, schema=BAG)


def test_events_are_spread_over_the_stream_partitions_by_a_stable_choice() -> None:
    inserts = [encode.insert(OID, row(number)) for number in range(40)]
    first, second = (events_of(*inserts, schema=BAG, stream_partitions=4).stream_partition.tolist() for _ in range(2))
    assert first == second
    assert set(first) == {0, 1, 2, 3}


def test_only_the_half_that_does_not_fit_is_quarantined() -> None:
    events = events_of(encode.update(OID, row(1, at="infinity"), "O", row(1, at="2024-01-01")), schema=BAG)
    assert shown(events) == [("d", version(1), 1, None, None)]
    assert [unfit.payload[OPERATION] for unfit in events.unfit] == ["i"]


def test_a_slice_file_keeps_them_in_the_order_of_their_versions_and_knows_no_range() -> None:
    events = events_of(
        encode.insert(OID, row(2)), encode.update(OID, row(1), "O", row(2)), encode.insert(OID, row(1)), schema=BAG
    )
    file = write_slice_file(events.rows, BAG)
    assert (file.rows, file.key_ranges, file.key_changes, file.partial_rows) == (4, (), 0, 0)
