"""A record of a broker as a line: its key, value and headers as they came, and its text once somebody asks for it."""

import json
from collections.abc import Mapping
from functools import partial

import msgspec

from cdc_pipeline.record import TableName
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Skipped, read_line, read_message
from cdc_pipeline.sources.debezium.one_line import LineRefused, attempt
from cdc_pipeline.sources.debezium.partition import Content, SourceLine, debezium_content

_RECORD_BYTES = 100


class RecordLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Implements `SourceLine`. Key and value stay apart, so that no content of one can be taken for the other.

    `headers`: None if they cannot be read. `deleted_rows`: the table of which a tombstone deletes a row, None if
    tombstones have no effect.
    """

    place: int
    file: str
    number: int
    written: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str | None] | None
    digest: str = ""
    deleted_rows: TableName | None = None

    @property
    def size_bytes(self) -> int:
        """About the memory that the record takes."""
        headers = sum(len(name) + len(content or "") for name, content in self.headers.items()) if self.headers else 0
        return _RECORD_BYTES + len(self.key or b"") + len(self.value or b"") + headers

    @property
    def message(self) -> dict[str, object]:
        """The record as `read_message` reads it. A tombstone that deletes a row becomes an event."""
        value: object = self.value
        if value is None and self.key is not None and self.deleted_rows is not None:
            of = self.deleted_rows
            table = {"db": of.database, "schema": of.schema, "table": of.table}
            value = {"op": "d", "before": None, "after": None, "source": table}
        return {"key": self.key, "value": value, "headers": self.headers}

    @property
    def text(self) -> bytes:
        """The record as one line of JSON, whose content is that of the record.

        A record with invalid UTF-8 becomes a line that is no JSON; it is quarantined with all its bytes.
        """
        try:
            return json.dumps(self.message, separators=(",", ":"), ensure_ascii=False, default=bytes.decode).encode()
        except UnicodeDecodeError:
            return b'{"key":' + (self.key or b"null") + b',"value":' + (self.value or b"null") + b"}"


def record_content(raw: SourceLine) -> Content:
    """Returns the content of a record, or why it cannot be read. A quarantined one is a line."""
    return attempt(partial(_read_record, raw)) if isinstance(raw, RecordLine) else debezium_content(raw)


def _read_record(record: RecordLine) -> EnvelopeEvent | Skipped | LineRefused:
    try:
        return read_message(record.message)
    except UnicodeDecodeError:
        return read_line(record.text)
