"""Promises of the columnar pgoutput decoder."""

import struct
from dataclasses import replace

import pytest

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.sources.pgoutput.decoder import PgOutputDecoder
from cdc_pipeline.sources.pgoutput.messages import OpenTransaction, Relation, RelationColumn
from tests.support import pgoutput_encoder as encode

OID = 16_400
TIME = 1_700_000_000_123_456


def relation(*names: str) -> Relation:
    columns = tuple(
        RelationColumn(name=name, type_oid=25, modifier=-1, is_key=number == 0) for number, name in enumerate(names)
    )
    return Relation(oid=OID, namespace="public", name="orders", replica_identity="d", columns=columns)


ORDERS = relation("id", "note")
BEGIN = encode.begin(100, TIME, 7)
COMMIT = encode.commit(100, 108, TIME)
RELATION = encode.relation(ORDERS)


def row(identifier: str, note: encode.Field = encode.NULL) -> list[encode.Field]:
    return [encode.text(identifier), note]


def test_rows_carry_the_position_time_and_ordinal_of_their_transaction() -> None:
    stream = [BEGIN, RELATION, encode.insert(OID, row("1")), encode.update(OID, row("2")), COMMIT]
    batch = PgOutputDecoder().feed(stream)
    (group,) = batch.groups
    assert bytes(group.op) == b"iu"
    assert group.commit_lsn.tolist() == [100, 100]
    assert group.ordinal.tolist() == [1, 2]
    assert group.commit_time.tolist() == [TIME, TIME]
    assert group.xid.tolist() == [7, 7]
    closed = batch.transactions
    assert (closed.commit_position.tolist(), closed.end_position.tolist()) == ([100], [108])


def test_a_transaction_goes_on_in_the_next_feed_with_its_ordinal() -> None:
    decoder = PgOutputDecoder()
    decoder.feed([BEGIN, RELATION, encode.insert(OID, row("1"))])
    assert decoder.open_transaction == OpenTransaction(commit_lsn=100, commit_time=TIME, xid=7, ordinal=1)
    batch = decoder.feed([encode.insert(OID, row("2")), COMMIT])
    assert batch.groups[0].ordinal.tolist() == [2]
    assert batch.transactions.commit_position.tolist() == [100]
    assert decoder.open_transaction is None


def test_an_unchanged_toast_value_is_absent_and_not_only_null() -> None:
    stream = [BEGIN, RELATION, encode.update(OID, row("1", encode.UNCHANGED)), encode.update(OID, row("1")), COMMIT]
    (group,) = PgOutputDecoder().feed(stream).groups
    identifier, note = group.new
    assert identifier.absent is None
    assert note.absent is not None
    assert note.absent.tolist() == [True, False]
    assert note.values.to_pylist() == [None, None]


def test_old_images_say_whether_they_are_a_key_or_a_whole_row() -> None:
    stream = [
        BEGIN,
        RELATION,
        encode.insert(OID, row("1")),
        encode.update(OID, row("2"), "K", row("1")),
        encode.update(OID, row("3"), "O", row("2", encode.text("whole"))),
        encode.delete(OID, "K", row("3")),
        COMMIT,
    ]
    (group,) = PgOutputDecoder().feed(stream).groups
    assert bytes(group.old_kind) == b"\0KOK"
    assert group.old is not None
    assert group.old[0].values.to_pylist() == [None, "1", "2", "3"]
    assert group.old[1].values.to_pylist() == [None, None, "whole", None]
    assert group.new[0].values.to_pylist() == ["1", "2", "3", None]


def test_a_changed_relation_starts_a_new_group_and_says_where() -> None:
    wider = relation("id", "note", "more")
    stream = [
        BEGIN,
        RELATION,
        encode.insert(OID, row("1")),
        RELATION,
        encode.insert(OID, row("2")),
        encode.relation(wider),
        encode.insert(OID, [*row("3"), encode.text("x")]),
        COMMIT,
    ]
    decoder = PgOutputDecoder()
    batch = decoder.feed(stream)
    assert [(change.relation, change.commit_lsn, change.ordinal) for change in batch.relations] == [
        (ORDERS, 100, 0),
        (wider, 100, 2),
    ]
    assert [group.ordinal.tolist() for group in batch.groups] == [[1, 2], [3]]
    assert decoder.relations == {OID: wider}


def test_a_relation_shows_which_other_one_was_described_right_before_it() -> None:
    leaf = encode.relation(replace(ORDERS, oid=OID + 1, name="orders_low"))
    other = encode.relation(replace(ORDERS, oid=OID + 2, name="others"))
    named = encode.type_name(77, "public", "mood")
    decoder = PgOutputDecoder()
    batch = decoder.feed([BEGIN, RELATION, named, leaf, encode.insert(OID, row("1")), other, COMMIT, BEGIN, RELATION])
    assert [change.described_after for change in batch.relations] == [None, OID, None]
    later = decoder.feed([encode.relation(replace(ORDERS, oid=OID + 3, name="orders_high")), COMMIT])
    assert [change.described_after for change in later.relations] == [OID]


def test_texts_of_every_length_around_the_inline_limit_come_through() -> None:
    texts = ["x" * length for length in range(40)]
    inserts = [encode.insert(OID, row(text, encode.text(text))) for text in texts]
    (group,) = PgOutputDecoder().feed([BEGIN, RELATION, *inserts, COMMIT]).groups
    for column in group.new:
        column.values.validate(full=True)
        assert column.values.to_pylist() == texts


def test_truncates_and_messages_count_and_come_with_their_place() -> None:
    stream = [
        encode.logical_message(90, "beat", b"now", transactional=False),
        BEGIN,
        encode.logical_message(95, "note", b"hi", transactional=True),
        RELATION,
        encode.insert(OID, row("1")),
        encode.truncate([OID, 9], 3),
        encode.insert(OID, row("2")),
        COMMIT,
    ]
    batch = PgOutputDecoder().feed(stream)
    assert [(said.prefix, said.content, said.commit_lsn) for said in batch.messages] == [
        ("beat", b"now", None),
        ("note", b"hi", 100),
    ]
    (cut,) = batch.truncates
    assert (cut.relation_oids, cut.ordinal) == ((OID, 9), 2)
    assert batch.groups[0].ordinal.tolist() == [1, 3]


def test_an_empty_feed_changes_nothing() -> None:
    decoder = PgOutputDecoder()
    decoder.feed([BEGIN])
    before = decoder.open_transaction
    batch = decoder.feed([])
    assert (batch.groups, batch.transactions.commit_position.tolist(), decoder.open_transaction) == ((), [], before)


INSERT = encode.insert(OID, row("1", encode.text("note")))


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        ([b""], "a message of 0 bytes"),
        ([b"S"], "a message of kind b'S'"),
        ([BEGIN[:-1]], "a message B of 20 bytes"),
        ([BEGIN, BEGIN], "a message B inside of a transaction"),
        ([COMMIT], "a message C outside of any transaction"),
        ([BEGIN, encode.commit(99, 108, TIME)], "a commit at position 63; expected 64"),
        ([INSERT], "a message I outside of any transaction"),
        ([RELATION], "a message R outside of any transaction"),
        ([BEGIN, INSERT], "a row event of the unknown relation 16400"),
        ([BEGIN, RELATION[:-1]], "a R message of"),
        ([BEGIN, RELATION + b"x"], "1 bytes after the end of a R message"),
        ([BEGIN, RELATION, INSERT[:7]], "a row event that ends before its tuple"),
        ([BEGIN, RELATION, INSERT[:-1]], "a message that ends inside of a tuple; expected 1 more bytes"),
        ([BEGIN, RELATION, INSERT + b"x"], "1 bytes after the last tuple"),
        ([BEGIN, RELATION, INSERT.replace(b"N", b"X", 1)], "a message b'I' whose first tuple is marked b'X'"),
        ([BEGIN, RELATION, INSERT.replace(b"t", b"z", 1)], "a tuple field of kind b'z'"),
        ([BEGIN, RELATION, INSERT.replace(b"t", b"b", 1)], "a tuple field of kind b'b'; expected one of n, u, t"),
        ([BEGIN, RELATION, encode.insert(OID, row("1")[:1])], "a tuple of 1 columns; expected 2 columns"),
        ([BEGIN, RELATION, b"D" + INSERT[1:]], "a message b'D' whose first tuple is marked b'N'"),
        ([BEGIN, RELATION, b"T" + struct.pack(">IB", 1 << 31, 0)], "a T message of 6 bytes"),
    ],
)
def test_bytes_that_do_not_follow_the_protocol_are_named_and_change_nothing(stream: list[bytes], found: str) -> None:
    decoder = PgOutputDecoder()
    with pytest.raises(DecodeError) as caught:
        decoder.feed(stream)
    assert found in str(caught.value)
    assert (decoder.open_transaction, decoder.relations) == (None, {})
