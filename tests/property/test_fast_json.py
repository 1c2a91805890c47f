"""The faster parser of JSON accepts only what the standard one accepts, and returns the same for it."""

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdc_pipeline.sources.debezium.one_line import (
    BLANK,
    DEEPEST,
    MOST_DIGITS,
    UNREAD,
    KnownSchemas,
    Undecodable,
    fast_json,
    fast_objects,
    json_of_line,
    parsed_json,
    slow_json,
)

PARTS = (
    *'{}[]",: \t\r\n\\',
    "0",
    "1",
    "-",
    "-0",
    ".5",
    "e5",
    "E+400",
    "1.50",
    "1e-3",
    "18446744073709551616",
    "-9223372036854775809",
    "9" * MOST_DIGITS,
    "9" * (MOST_DIGITS + 1),
    "1e99999999999",
    "NaN",
    "-Infinity",
    "null",
    "true",
    "nul",
    '"a"',
    '"a":',
    '"\\u0061":',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"\\udc00x"',
    '"\\u0000"',
    '"\\/\\n\\u00E9"',
    '"\x7f"',
    '"\x01"',
    "é",
    "\ufeff",
    "\x85",
    "\u3000",
    "[" * DEEPEST,
    "]" * DEEPEST,
    '{"a":' * (DEEPEST + 1),
    "}" * (DEEPEST + 1),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.integers(-(10**40), 10**40) | st.floats() | st.text()
DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
WRITTEN = st.builds(lambda document, ascii_: json.dumps(document, ensure_ascii=ascii_), DOCUMENTS, st.booleans())
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join) | WRITTEN
OBJECTS = st.dictionaries(st.text(), DOCUMENTS, max_size=3).map(json.dumps).map(str.encode)
OCTETS = TEXTS.map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=20)


def outcome(read: Any, given_text: Any) -> str:
    """What it returns, or why not. Unlike `==`, `repr` tells 1 from True and 1.0, and shows the order of keys."""
    try:
        found = read(given_text)
    except Undecodable as error:
        return f"refused: {error}"
    return "blank" if found is BLANK else repr(found)


def slowly(line: bytes) -> Any:
    """A line as the standard parser alone reads it."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"is no JSON: {error}"
        raise Undecodable(message) from error
    return slow_json(text) if text.strip() else BLANK


@settings(deadline=None, max_examples=300)
@given(text=TEXTS)
def test_a_text_is_parsed_as_the_standard_library_parses_it(text: str) -> None:
    assert outcome(parsed_json, text) == outcome(slow_json, text)


@settings(deadline=None, max_examples=300)
@given(before=OCTETS, inside=OCTETS, after=OCTETS)
@example(before=b"\xef\xbb\xbf", inside=b"{}", after=b"\r\n")
@example(before=b'"', inside=b"\xed\xa0\x80", after=b'"')
@example(before=b'{"a":1,', inside=b'"a":2', after=b',"b":3}')
def test_a_line_is_parsed_as_the_standard_library_parses_it(before: bytes, inside: bytes, after: bytes) -> None:
    line = before + inside + after
    assert outcome(json_of_line, line) == outcome(slowly, line)


@settings(deadline=None, max_examples=300)
@given(lines=st.lists(OBJECTS | OCTETS, min_size=1, max_size=5) | st.lists(OBJECTS, min_size=1, max_size=5))
@example(lines=[b'{"a":1},{"b":2}\n', b'{"c":[{}\n', b"{}]}\n"])
@example(lines=[b"{}\n", b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1)])
def test_lines_are_parsed_at_once_as_they_are_one_by_one(lines: list[bytes]) -> None:
    found = fast_objects(lines)
    assert found is None or repr(found) == repr([fast_json(line) for line in lines])


RECORDS = st.builds(
    lambda *parts: b"".join(parts),
    st.just(b'{"schema":'),
    st.sampled_from([b'{"type":"struct"}', b'{"name":"\\u00e9"}', b"[" * (DEEPEST - 2) + b"]" * (DEEPEST - 2)])
    | OCTETS,
    st.sampled_from([b',"payload":', b',"payload":', b', "payload":', b',"schema":1,"payload":']),
    st.sampled_from([b'{"op":"c"}', b'{"a":1,"payload":2}', b'{"a":' * (DEEPEST - 1) + b"1" + b"}" * (DEEPEST - 1)])
    | OCTETS,
    st.sampled_from([b"}", b"}", b"} \r\n", b"}\x0b", b"}}", b',"schema":2}', b""]),
)


@settings(deadline=None, max_examples=300)
@given(lines=st.lists(RECORDS, min_size=1, max_size=4))
def test_a_record_with_a_schema_is_parsed_as_the_standard_library_parses_it(lines: list[bytes]) -> None:
    schemas = KnownSchemas(most_bytes=60)  # room for one of them, or two
    for line in [*lines, *lines]:
        assert outcome(json_of_line, line) == outcome(slowly, line)
        found = schemas.document(line)
        assert found is UNREAD or repr(found) == outcome(slowly, line)


def test_records_of_one_table_share_their_schema() -> None:
    columns = [{"type": "int64", "field": f"column_{number}"} for number in range(2 * DEEPEST)]
    first, second = (fast_json(json.dumps(each, separators=(",", ":")).encode()) for each in _records(columns))
    assert (first["payload"], second["payload"]) == ({"id": 1}, {"id": 2})
    assert first["schema"] == {"type": "struct", "fields": columns}
    assert first["schema"] is second["schema"]


def _records(columns: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{"schema": {"type": "struct", "fields": columns}, "payload": {"id": number}} for number in (1, 2)]


def test_lines_with_one_object_each_are_parsed_at_once() -> None:
    assert fast_objects([b'{"a": 1.50}\n', b' {"b": [{}, []]} \r\n', b"{}"]) is not None


def test_what_events_are_made_of_is_parsed_by_the_faster_parser() -> None:
    line = (
        b'{"op": "u", "after": {"id": 1, "price": 0.10, "note": "\\u00e9\\n"}, "source": {"lsn": 18446744073709551616}}'
    )
    assert fast_json(line) is not UNREAD
    assert repr(fast_json(line)) == repr(slow_json(line.decode()))
