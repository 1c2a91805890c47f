"""Reads one line of a file: a Debezium event, or another record that Debezium and Kafka write between events."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from cdc_pipeline.sources.debezium.mongodb import MONGODB, mongodb_key, mongodb_value
from cdc_pipeline.sources.debezium.one_line import (
    BLANK,
    LineRefused,
    Undecodable,
    attempt,
    header_json,
    json_of_line,
    parsed_json,
)

Fields = Mapping[str, Any]
Parse = Callable[[str | bytes], Any]
_OPERATIONS = frozenset("crudt")
_NO_SNAPSHOT = (None, "false", False)
_WRAPPING = frozenset({"schema", "payload"})
_TIMES = frozenset({"ts_ms", "ts_us", "ts_ns"})
_TRANSACTION = _TIMES | {"status", "id", "event_count", "data_collections"}
_SCHEMA_CHANGE = _TIMES | {"source", "position", "databaseName", "schemaName", "ddl", "tableChanges"}
"""All fields that these messages may have. A flattened row may have some of them, among others."""
OLD_KEY, _NEW_KEY = "__debezium.oldkey", "__debezium.newkey"
_MICROSECONDS = 1_000
_REGISTRY_BYTES = 5
"""A zero byte and the number of a schema, before what converters of a schema registry write."""
LAST_TIME = 221_845_392_000_000_000
"""The year 9000 in microseconds since 1970. Later time slices could end after the last year that Python can hold."""


class EnvelopeEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row event or a truncate.

    `value`: the envelope. `fields`: the envelope's schema, `key_fields`: the key's schema, None if the line carries
    none. `headers`: None if the file has none, so that nothing follows from their absence. `transaction`: equal for
    events that were committed together, None for an event on its own. `commit_time`: in microseconds since 1970.
    """

    operation: str
    value: Fields
    source: Fields
    key: Fields | None
    headers: Fields | None
    fields: Fields | None
    key_fields: Fields | None
    transaction: str | None
    commit_time: int | None

    @property
    def before(self) -> Fields | None:
        row = self.value.get("before")
        return row if isinstance(row, dict) else None

    @property
    def after(self) -> Fields | None:
        row = self.value.get("after")
        return row if isinstance(row, dict) else None

    @property
    def is_of_snapshot(self) -> bool:
        """Whether the event is a row that Debezium's snapshot read, and no change."""
        return self.operation == "r" or self.source.get("snapshot") not in _NO_SNAPSHOT

    @property
    def is_tombstone(self) -> bool:
        """Whether the event is a tombstone of a compacted topic, which says nothing but its key."""
        if self.operation != "d" or self.transaction is not None:
            return False
        return self.before is None and "connector" not in self.source

    @property
    def lacks_document(self) -> bool:
        """Whether an update of MongoDB has no document, which its connector looks up when it reads the update.

        Either the document was deleted by then, and its delete follows, or the connector does not look up any.
        """
        return self.after is None and self.source.get("connector") == MONGODB

    @property
    def old_key(self) -> Fields | None:
        """The old id of a key change, on its create event."""
        return self._key_header(OLD_KEY)

    @property
    def new_key(self) -> Fields | None:
        """The new id of a key change, on its delete event."""
        return self._key_header(_NEW_KEY)

    def _key_header(self, name: str) -> Fields | None:
        return _unwrapped(self.headers.get(name), header_json)[0] if self.headers else None


class Skipped(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A line that changes no row. `kind`: under which it is counted in the log."""

    kind: str
    commit_time: int | None = None


def content_of(line: bytes) -> EnvelopeEvent | Skipped | LineRefused:
    """Returns the content of a line, or why it cannot be read. Raises nothing for a damaged line."""
    return attempt(partial(read_line, line))


def read_line(line: bytes) -> EnvelopeEvent | Skipped:
    """Reads a line. Numbers keep every digit: those that are not whole become Decimals. Raises Undecodable."""
    document = json_of_line(line)
    if document is None or document is BLANK:
        return Skipped(kind="tombstone" if document is None else "blank line")
    if not isinstance(document, dict):
        raise Undecodable("is no JSON object")
    if "value" in document and "op" not in document:
        return read_message(document)
    if "topic" in document and isinstance(document.get("payload"), str):  # as kcat -J writes it
        return read_message({**document, "value": document["payload"]})
    return _read_value(document, key=None, key_fields=None, headers=None)


def read_message(document: Fields) -> EnvelopeEvent | Skipped:
    """Reads a record with key, value and headers, as a Kafka sink writes it.

    Key and value are JSON, or their text. Raises UnicodeDecodeError for bytes that are no text.
    """
    value = _parsed(document["value"])
    if value is None:
        return Skipped(kind="tombstone")
    if not isinstance(value, dict):
        raise Undecodable("has a value that is no JSON object")
    key, key_fields = _unwrapped(document.get("key"))
    headers = _headers(document["headers"]) if document.get("headers") is not None else None
    return _read_value(value, key=key, key_fields=key_fields, headers=headers)


def _read_value(
    document: Fields, *, key: Fields | None, key_fields: Fields | None, headers: Fields | None
) -> EnvelopeEvent | Skipped:
    value, fields = (document["payload"], document.get("schema")) if "payload" in document else (document, None)
    if value is None:
        return Skipped(kind="tombstone")
    if not isinstance(value, dict):
        raise Undecodable("has a payload that is no JSON object")
    if "op" not in value:
        return _other(value)
    source = value.get("source")
    if not isinstance(source, dict):
        source = {}
    if source.get("connector") == MONGODB:
        value, key = mongodb_value(value), mongodb_key(key)
        source = value["source"]
    elif "keyspace" in source and not source.get("db"):
        source = {**source, "db": source["keyspace"]}  # Vitess leaves db empty
    operation = value["op"]
    commit_time = _microseconds(source) or _microseconds(value)
    if operation == "m":
        return Skipped(kind="logical message", commit_time=commit_time)
    if not isinstance(operation, str) or operation not in _OPERATIONS:
        raise Undecodable(f"has the unknown operation {operation!r}")
    return EnvelopeEvent(
        operation=operation,
        value=value,
        source=source,
        key=key,
        headers=headers,
        fields=_mapping(fields),
        key_fields=key_fields,
        transaction=_transaction(operation, source, value),
        commit_time=commit_time,
    )


def _other(value: Fields) -> Skipped:
    commit_time = _microseconds(value)
    if value and value.keys() <= _TIMES:
        return Skipped(kind="heartbeat", commit_time=commit_time)
    is_named = isinstance(value.get("id"), str) and value.keys() <= _TRANSACTION
    if is_named and value.get("status") in ("BEGIN", "END"):
        return Skipped(kind="transaction metadata", commit_time=commit_time)
    if {"source", "ddl"} <= value.keys() <= _SCHEMA_CHANGE:
        return Skipped(kind="schema change", commit_time=commit_time)
    raise Undecodable("has no op: it is no Debezium envelope, or a flattened one")


def _transaction(operation: str, source: Fields, value: Fields) -> str | None:
    """Returns the name of the event's transaction, None for a snapshot's row, whatever transaction read it."""
    if operation == "r" or source.get("snapshot") not in _NO_SNAPSHOT:
        return None
    for name in ("txId", "gtid"):
        found = source.get(name)
        if found is not None:
            return f"{name} {found}"
    block = _mapping(value.get("transaction")) or {}
    if block.get("id") is not None:
        return f"transaction {block['id']}"
    for name in ("lsn", "commit_lsn"):
        if source.get(name) is not None:
            return f"{name} {source[name]}"
    if source.get("file") is not None and source.get("pos") is not None:
        return f"log {source['file']} {source['pos']}"
    return None


def _microseconds(value: Fields) -> int | None:
    name, factor = "ts_us", 1
    if type(number := value.get(name)) is not int:
        name, factor = "ts_ms", _MICROSECONDS
        if type(number := value.get(name)) is not int:
            return None
    if not 0 <= number * factor < LAST_TIME:
        raise Undecodable(f"has a {name} that is no time: {number} is not between the years 1970 and 9000")
    return number * factor


def _headers(headers: object) -> Fields:
    """Reads headers: one object, or a list of pairs, of names and values in turn, or of objects.

    An object of the list has key and value, or a name with its value.
    """
    if isinstance(headers, dict):
        return headers
    if not isinstance(headers, list):
        raise Undecodable("has headers that are neither an object nor a list")
    found: dict[str, Any] = {}
    in_turn = bool(headers) and isinstance(headers[0], str) and len(headers) % 2 == 0
    for header in zip(headers[::2], headers[1::2], strict=True) if in_turn else headers:
        match header:
            case [str(name), value]:
                found[name] = value
            case {"key": str(name), "value": value}:
                found[name] = value
            case dict() if len(header) == 1 and "key" not in header:
                found.update(header)
            case _:
                raise Undecodable("has a header that is no pair of key and value")
    return found


def _unwrapped(value: object, parse: Parse = parsed_json) -> tuple[Fields | None, Fields | None]:
    """Returns a key and its schema. The key is an object, or its JSON, with or without a schema around it."""
    parsed = _parsed(value, parse)
    # Columns may be called so, too: JsonConverter writes both, and a schema that is no text.
    if isinstance(parsed, dict) and parsed.keys() == _WRAPPING and isinstance(parsed["schema"], dict | None):
        return _mapping(parsed["payload"]), _mapping(parsed["schema"])
    return _mapping(parsed), None


def _parsed(value: object, parse: Parse = parsed_json) -> object:
    if not isinstance(value, str | bytes):
        return value
    if value[:1] in ("\0", b"\0") and len(value) > _REGISTRY_BYTES:
        raise Undecodable("is encoded by a schema registry's converter; set JsonConverter for key and value")
    try:
        parsed: object = parse(value)
    except Undecodable as error:
        raise Undecodable(f"holds a text that {error}") from error
    return parsed


def _mapping(value: object) -> Fields | None:
    return value if isinstance(value, dict) else None
