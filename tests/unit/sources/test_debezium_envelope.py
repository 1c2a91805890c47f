"""Lines of a file: Debezium's envelopes in every wrapping, and what stands between them."""

import json
from decimal import Decimal
from typing import Any

import pytest

from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Skipped, content_of, read_line
from cdc_pipeline.sources.debezium.one_line import Undecodable

ENVELOPE = {
    "before": None,
    "after": {"id": 1, "price": 0.1},
    "source": {"db": "shop", "table": "t", "ts_ms": 1_700_000_000_123, "txId": 9, "lsn": 50},
    "op": "c",
    "ts_ms": 1_800_000_000_000,
}
KEY_FIELDS = {"type": "struct", "fields": [{"field": "id", "type": "int32"}]}


def line(document: Any) -> bytes:
    return json.dumps(document).encode()


def event(document: Any) -> EnvelopeEvent:
    found = read_line(line(document))
    assert isinstance(found, EnvelopeEvent)
    return found


@pytest.mark.parametrize(
    "document",
    [
        ENVELOPE,
        {"schema": {"fields": []}, "payload": ENVELOPE},
        {"payload": ENVELOPE},
        {"key": None, "value": ENVELOPE},
        {"topic": "t", "partition": 0, "key": '{"id": 1}', "value": json.dumps(ENVELOPE), "headers": []},
        {"topic": "t", "partition": 0, "key": '{"id": 1}', "payload": json.dumps(ENVELOPE), "headers": []},
    ],
)
def test_an_envelope_is_the_same_in_every_wrapping(document: dict[str, Any]) -> None:
    found = event(document)
    assert (found.operation, found.before, found.after) == ("c", None, {"id": 1, "price": Decimal("0.1")})
    assert (found.commit_time, found.transaction) == (1_700_000_000_123_000, "txId 9")


def test_a_mark_of_byte_order_before_the_first_line_is_no_part_of_it() -> None:
    assert isinstance(read_line(b"\xef\xbb\xbf" + line(ENVELOPE) + b"\r\n"), EnvelopeEvent)


def test_keys_and_their_schemas_are_unwrapped() -> None:
    plain = event({"key": {"id": 1}, "value": ENVELOPE})
    assert (plain.key, plain.key_fields, plain.headers) == ({"id": 1}, None, None)
    wrapped = event({"key": {"schema": KEY_FIELDS, "payload": {"id": 1}}, "value": ENVELOPE, "headers": {}})
    assert (wrapped.key, wrapped.key_fields, wrapped.headers) == ({"id": 1}, KEY_FIELDS, {})


@pytest.mark.parametrize("key", [{"payload": 1}, {"payload": 1, "id": 2}, {"payload": 1, "schema": "public"}])
def test_columns_of_a_key_may_be_called_like_parts_of_its_wrapping(key: dict[str, Any]) -> None:
    found = event({"key": key, "value": ENVELOPE, "headers": {"__debezium.oldkey": key}})
    assert (found.key, found.key_fields, found.old_key) == (key, None, key)


@pytest.mark.parametrize(
    "headers",
    [
        {"__debezium.oldkey": {"id": 4}},
        {"__debezium.oldkey": '{"id": 4}'},
        [["__debezium.oldkey", '{"id": 4}']],
        ["trace", None, "__debezium.oldkey", '{"id": 4}'],
        [{"trace": None}, {"__debezium.oldkey": '{"id": 4}'}],
        [{"key": "__debezium.oldkey", "value": '{"schema": {}, "payload": {"id": 4}}'}],
    ],
)
def test_headers_tell_the_key_before(headers: Any) -> None:
    found = event({"key": {"id": 1}, "value": ENVELOPE, "headers": headers})
    assert (found.old_key, found.new_key) == ({"id": 4}, None)


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (None, "tombstone"),
        ({"key": {"id": 1}, "value": None}, "tombstone"),
        ({"schema": None, "payload": None}, "tombstone"),
        ({"topic": "t", "key": '{"id": 1}', "payload": None}, "tombstone"),
        ({"ts_ms": 5}, "heartbeat"),
        ({"schema": {}, "payload": {"ts_ms": 5}}, "heartbeat"),
        ({"status": "BEGIN", "id": "7:8", "event_count": None, "ts_ms": 5}, "transaction metadata"),
        ({"source": {}, "position": {}, "ddl": "create table t", "tableChanges": []}, "schema change"),
        (
            {"source": {}, "ts_ms": 5, "databaseName": "shop", "schemaName": None, "ddl": "", "tableChanges": []},
            "schema change",
        ),
        (
            {"status": "END", "id": "7:8", "event_count": 1, "data_collections": [], "ts_ms": 5},
            "transaction metadata",
        ),
        ({"op": "m", "message": {"prefix": "p"}, "source": {}}, "logical message"),
    ],
)
def test_what_changes_no_row_is_skipped_by_kind(document: Any, kind: str) -> None:
    found = read_line(line(document))
    assert isinstance(found, Skipped)
    assert found.kind == kind


@pytest.mark.parametrize(
    "row",
    [
        {"id": 5, "status": "BEGIN"},
        {"id": 5, "status": "END", "event_count": 1, "v": 1},
        {"id": 5, "ddl": "x"},
        {"id": 5, "tableChanges": 1},
        {},
        {"payload": {}},
        {"key": {"id": 5}, "value": {}},
    ],
)
def test_a_flattened_row_is_no_message_whose_fields_it_has(row: Any) -> None:
    found = content_of(line(row))
    assert isinstance(found, Undecodable)
    assert "flattened" in str(found)


def test_a_record_of_kcat_has_its_key() -> None:
    found = event({"topic": "t", "headers": ["a", "b"], "key": '{"id": 1}', "payload": json.dumps(ENVELOPE)})
    assert (found.key, found.headers) == ({"id": 1}, {"a": "b"})


def test_an_empty_line_is_skipped() -> None:
    assert read_line(b"\n") == Skipped(kind="blank line")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"op": "c", "after"', "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[1]", "is no JSON object"),
        (b'{"id": 1, "name": "flat"}', "flattened"),
        (b'{"op": "x"}', "unknown operation 'x'"),
        (b'{"value": 7}', "a value that is no JSON object"),
        (b'{"value": "no json"}', "holds a text that is no JSON"),
        (b'{"payload": 7}', "a payload that is no JSON object"),
        (b'{"value": {"op": "c"}, "headers": 7}', "headers"),
        (b'{"value": {"op": "c"}, "headers": [7]}', "a header that is no pair"),
        (b'{"value": {"op": "c"}, "headers": ["a", "b", "c"]}', "a header that is no pair"),
        (b'{"value": {"op": "c"}, "headers": [{"key": "a"}]}', "a header that is no pair"),
        (b'{"payload": "{}"}', "a payload that is no JSON object"),
        (b'{"topic": "t", "payload": "no json"}', "holds a text that is no JSON"),
    ],
)
def test_a_line_that_nobody_can_read_says_why(text: bytes, why: str) -> None:
    with pytest.raises(Undecodable, match=why):
        read_line(text)


@pytest.mark.parametrize(
    ("change", "transaction"),
    [
        ({"op": "r"}, None),
        ({"source": {"txId": 9, "snapshot": "first"}}, None),
        ({"source": {"txId": 9, "snapshot": "false"}}, "txId 9"),
        ({"source": {"gtid": "0-1-2", "file": "bin.000001", "pos": 3}}, "gtid 0-1-2"),
        ({"source": {"file": "bin.000001", "pos": 3}}, "log bin.000001 3"),
        ({"source": {"lsn": 5}}, "lsn 5"),
        ({"source": {}, "transaction": {"id": "t7"}}, "transaction t7"),
        ({"source": {}}, None),
    ],
)
def test_what_was_committed_together_has_one_name(change: dict[str, Any], transaction: str | None) -> None:
    assert event(ENVELOPE | change).transaction == transaction
