"""Decoded rows become change events: a key change is the delete of the old id and the move to the new one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdc_pipeline.errors import TableStale
from cdc_pipeline.record import (
    ABSENT,
    COMMIT_TIME,
    OLD_ID_PREFIX,
    OPERATION,
    OWN_PREFIX,
    TRANSACTION,
    VERSION,
    Column,
    TableName,
    TableSchema,
    encode_version,
)
from cdc_pipeline.slice_file import event_schema
from cdc_pipeline.sources.pgoutput.decoder import PgOutputDecoder
from cdc_pipeline.sources.pgoutput.messages import Relation, RelationColumn
from cdc_pipeline.sources.pgoutput.row_groups import group_events
from cdc_pipeline.sources.pgoutput.rows import RowGroup
from cdc_pipeline.sources.protocol import TableEvents
from tests.support import pgoutput_encoder as encode

OID = 16_400
POSITION = 100
TIME = 1_700_000_000_123_456
ORDERS = TableName(database="shop", schema="public", table="orders")
SCHEMA = TableSchema(
    columns=(Column(name="id", type="int8"), Column(name="note", type="text"), Column(name="at", type="date")),
    key=("id",),
)
RELATION = Relation(
    oid=OID,
    namespace="public",
    name="orders",
    replica_identity="d",
    columns=tuple(
        RelationColumn(name=column.name, type_oid=25, modifier=-1, is_key=column.name == "id")
        for column in SCHEMA.columns
    ),
)
ABSENT_NOTE = encode.UNCHANGED


def row(id_: int, note: encode.Field = encode.NULL, at: str | None = None) -> list[encode.Field]:
    return [encode.text(str(id_)), note, encode.NULL if at is None else encode.text(at)]


def transactions_at(*positions: int, messages: Sequence[bytes]) -> RowGroup:
    """One transaction at each position, with these messages."""
    stream = [encode.begin(positions[0], TIME, 7), encode.relation(RELATION)]
    for number, position in enumerate(positions):
        stream += [encode.begin(position, TIME + number, 7 + number)] if number else []
        stream += [*messages, encode.commit(position, position + 8, TIME + number)]
    (group,) = PgOutputDecoder().feed(stream).groups
    return group


def events_of(*messages: bytes, schema: TableSchema = SCHEMA, stream_partitions: int = 1) -> TableEvents:
    stream = [
        encode.begin(POSITION, TIME, 7),
        encode.relation(RELATION),
        *messages,
        encode.commit(POSITION, POSITION + 8, TIME),
    ]
    (group,) = PgOutputDecoder().feed(stream).groups
    return group_events(group, ORDERS, schema, stream_partitions)


def shown(events: TableEvents) -> list[tuple[Any, ...]]:
    names = (OPERATION, "id", "note", OLD_ID_PREFIX + "id", ABSENT)
    return [tuple(found[name] for name in names) for found in events.rows.to_pylist()]


def test_rows_have_the_columns_of_a_slice_file() -> None:
    events = events_of(encode.insert(OID, row(1, encode.text("a"), "2024-01-01")))
    assert events.rows.schema.equals(event_schema(SCHEMA))
    (found,) = events.rows.to_pylist()
    assert found[VERSION] == encode_version(POSITION, 1)
    assert found[TRANSACTION] == 7
    assert int(found[COMMIT_TIME].timestamp() * 1_000_000) == TIME
    assert events.commit_position.tolist() == [POSITION]


def test_insert_update_and_delete_keep_their_order() -> None:
    events = events_of(
        encode.insert(OID, row(1, encode.text("a"))),
        encode.update(OID, row(1, encode.text("b"))),
        encode.delete(OID, "K", [encode.text("1"), encode.NULL, encode.NULL]),
    )
    assert shown(events) == [("i", 1, "a", None, None), ("u", 1, "b", None, None), ("d", 1, None, None, None)]


def test_an_unchanged_large_text_is_absent_and_not_null() -> None:
    events = events_of(encode.update(OID, row(1, ABSENT_NOTE)), encode.update(OID, row(1)))
    assert shown(events) == [("u", 1, None, None, ["note"]), ("u", 1, None, None, None)]


def test_an_unchanged_large_text_is_filled_up_from_a_whole_old_row() -> None:
    events = events_of(encode.update(OID, row(1, ABSENT_NOTE), "O", row(1, encode.text("long"))))
    assert shown(events) == [("u", 1, "long", None, None)]


def test_a_key_change_is_a_delete_and_a_move_at_one_version() -> None:
    events = events_of(encode.update(OID, row(2, encode.text("a")), "K", row(1)))
    assert shown(events) == [("d", 1, None, None, None), ("m", 2, "a", 1, None)]
    assert events.rows[VERSION].to_pylist() == [encode_version(POSITION, 1)] * 2


def test_a_key_change_that_leaves_a_large_text_out_says_so_in_the_move_only() -> None:
    events = events_of(encode.update(OID, row(2, ABSENT_NOTE), "K", row(1)))
    assert shown(events) == [("d", 1, None, None, None), ("m", 2, None, 1, ["note"])]


@pytest.mark.parametrize("kind", ["K", "O"])
def test_an_old_row_with_the_same_id_is_an_update(kind: str) -> None:
    events = events_of(encode.update(OID, row(1, encode.text("b")), kind, row(1, encode.text("a"))))
    assert shown(events) == [("u", 1, "b", None, None)]


def test_minus_zero_and_zero_are_one_id() -> None:
    floats = replace(SCHEMA, columns=(replace(SCHEMA.columns[0], type="float8"), *SCHEMA.columns[1:]))
    minus_zero, zero = ([encode.text(text), encode.NULL, encode.NULL] for text in ("-0", "0"))
    for old, new in ((minus_zero, zero), (zero, minus_zero)):
        events = events_of(encode.update(OID, new, "K", old), schema=floats)
        assert shown(events) == [("u", 0.0, None, None, None)]
    assert len(events_of(encode.update(OID, row(1), "K", minus_zero), schema=floats).rows) == 2


def test_events_of_one_id_share_a_stream_partition_and_both_halves_of_a_key_change_follow_their_id() -> None:
    inserts = [encode.insert(OID, row(number)) for number in range(20)]
    alone = dict(enumerate(events_of(*inserts, stream_partitions=4).stream_partition.tolist()))
    assert set(alone.values()) == {0, 1, 2, 3}
    events = events_of(
        *(encode.update(OID, row(number + 1), "K", row(number)) for number in range(19)), stream_partitions=4
    )
    ids = events.rows["id"].to_pylist()
    assert [alone[id_] for id_ in ids] == events.stream_partition.tolist()


def test_an_event_that_does_not_fit_its_type_is_quarantined_whole() -> None:
    events = events_of(
        encode.insert(OID, row(1, encode.text("a"), "infinity")), encode.insert(OID, row(2, at="2024-01-01"))
    )
    assert shown(events) == [("i", 2, None, None, None)]
    assert events.commit_position.tolist() == [POSITION]
    (unfit,) = events.unfit
    assert (unfit.column, unfit.version, unfit.commit_position) == ("at", encode_version(POSITION, 1), POSITION)
    assert unfit.reason == "the value of at does not fit the lake's date"
    source = {name: text for name, text in unfit.payload.items() if not name.startswith(OWN_PREFIX)}
    assert source == {"id": "1", "note": "a", "at": "infinity"}


def test_an_event_without_an_id_is_quarantined_and_its_neighbours_arrive() -> None:
    events = events_of(
        encode.insert(OID, [encode.NULL, encode.text("a"), encode.NULL]), encode.insert(OID, row(2, encode.text("b")))
    )
    assert shown(events) == [("i", 2, "b", None, None)]
    assert [(unfit.column, unfit.reason) for unfit in events.unfit] == [("id", "the id column id is NULL")]


def test_a_text_that_is_none_of_its_type_is_quarantined_and_its_neighbours_arrive() -> None:
    events = events_of(encode.insert(OID, row(1, at="yesterday")), encode.insert(OID, row(2, at="2024-01-01")))
    assert [event[1] for event in shown(events)] == [2]
    assert [unfit.reason for unfit in events.unfit] == ["the value of at is no text of the type date"]


def test_an_id_that_becomes_null_is_the_delete_of_the_old_row_and_a_move_that_is_quarantined() -> None:
    emptied = [encode.NULL, encode.text("a"), encode.NULL]
    events = events_of(encode.update(OID, emptied, "O", row(1, encode.text("a"))))
    assert shown(events) == [("d", 1, None, None, None)]
    assert [(unfit.column, unfit.payload[OPERATION]) for unfit in events.unfit] == [("id", "m")]


def test_an_id_that_is_too_large_to_be_sent_again_is_taken_from_the_old_key() -> None:
    events = events_of(
        encode.update(OID, [ABSENT_NOTE, encode.text("b"), encode.NULL], "K", [encode.text("1"), *[encode.NULL] * 2])
    )
    assert shown(events) == [("u", 1, "b", None, None)]


def test_an_old_row_that_lacks_a_value_leaves_it_absent() -> None:
    """As of a partition that shows its key alone, while its table shows whole rows."""
    events = events_of(encode.update(OID, row(2, ABSENT_NOTE), "O", row(1)))
    assert shown(events) == [("d", 1, None, None, None), ("m", 2, None, 1, ["note"])]


@pytest.mark.parametrize("message", ["update", "delete"])
def test_an_old_key_without_the_id_stops_the_table(message: str) -> None:
    hidden = [encode.NULL, encode.text("a"), encode.NULL]
    sent = encode.delete(OID, "K", hidden) if message == "delete" else encode.update(OID, row(2), "K", hidden)
    with pytest.raises(TableStale, match="came without id"):
        events_of(sent)


@pytest.mark.parametrize("old", [(), ("O", row(1, encode.text("a long text that did not change")))], ids=["new", "old"])
def test_the_events_since_a_position_are_those_of_a_group_that_begins_there(old: tuple[Any, ...]) -> None:
    long = encode.text("a text that is not inline")
    messages = [encode.update(OID, row(2, ABSENT_NOTE, "2024-01-01"), *old), encode.update(OID, row(1, long), *old)]
    both, last = (transactions_at(*at, messages=messages) for at in ((100, 200), (200,)))
    (since, alone) = (group_events(group, ORDERS, SCHEMA, 1) for group in (both.since(150), last))
    names = (OPERATION, VERSION, "id", "note", "at", OLD_ID_PREFIX + "id", ABSENT)
    assert since.rows.select(names).equals(alone.rows.select(names))
    assert since.commit_position.tolist() == alone.commit_position.tolist()
    assert {moment.microsecond for moment in since.rows[COMMIT_TIME].to_pylist()} == {TIME % 1_000_000 + 1}
    assert set(since.rows[TRANSACTION].to_pylist()) == {8}
    assert both.since(200).op.tobytes() == b"uu"
    assert both.since(201).op.tobytes() == b""
    assert both.since(100) is both
