"""Decodes the records that AWS DMS writes to a stream: JSON with data and metadata -> a change event."""

from collections.abc import Mapping
from typing import Any

from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Fields, Skipped
from cdc_pipeline.sources.debezium.one_line import LineRefused, Undecodable, attempt, printable
from cdc_pipeline.sources.debezium.partition import Content, SourceLine
from cdc_pipeline.sources.files.dms_octets import octet_columns, with_octets
from cdc_pipeline.sources.files.record_blocks import read_record
from cdc_pipeline.sources.files.row_format import shown_before, time_of

_OPERATIONS = {"load": "r", "insert": "c", "update": "u", "delete": "d"}
_TRUNCATE = "truncate-table"
_MICROSECONDS = 1_000
"""Per millisecond."""


Tables = Mapping[tuple[str, str], TableSettings]
"""The tables of pipeline.yml by their schema and name."""


def dms_content(raw: SourceLine, tables: Tables) -> Content:
    """Returns the content of a record, or why it cannot be read. Raises nothing for a damaged one."""
    found: EnvelopeEvent | Skipped | LineRefused = attempt(lambda: dms_event(raw.text, tables))
    return found


def dms_event(text: bytes, tables: Tables) -> EnvelopeEvent | Skipped:
    """Returns the event of one record. A record of a DMS task that changes no row is skipped. Raises Undecodable."""
    record = read_record(text)
    if record is None:
        return Skipped(kind="blank line")
    metadata = record.get("metadata")
    if not isinstance(metadata, dict):
        raise Undecodable("is no record of AWS DMS: it has no metadata")
    name, kind = metadata.get("operation"), metadata.get("record-type")
    time = time_of(metadata.get("commit-timestamp") or metadata.get("timestamp"), "timestamp")
    if kind == "control":
        return _event(metadata, "t", (None, None), time) if name == _TRUNCATE else Skipped(kind="control record")
    if kind != "data":
        raise Undecodable(f"has the unknown record-type {printable(repr(kind))}")
    operation = _OPERATIONS.get(str(name).lower())
    data = record.get("data")
    if operation is None:
        raise Undecodable(f"has the unknown operation {printable(repr(name))}")
    if not isinstance(data, dict):
        raise Undecodable("has no data: the row is missing")
    table = tables.get((str(metadata.get("schema-name")), str(metadata.get("table-name"))))
    names = () if table is None else octet_columns(table.columns, table.id if operation == "d" else ())
    before, data = record.get("before-image"), with_octets(data, names)
    old = shown_before(with_octets(before, names)) if isinstance(before, dict) else None
    images = ({**data, **(old or {})}, None) if operation == "d" else (old, data)
    return _event(metadata, operation, images, time)


def _event(
    metadata: Mapping[str, Any], operation: str, images: tuple[Fields | None, Fields | None], time: int | None
) -> EnvelopeEvent:
    before, after = images
    schema, table = metadata.get("schema-name"), metadata.get("table-name")
    written = time_of(metadata.get("timestamp"), "timestamp")
    if not isinstance(schema, str) or not isinstance(table, str) or not schema or not table:
        raise Undecodable("names no table: it has no schema-name or no table-name")
    transaction = metadata.get("transaction-id")
    return EnvelopeEvent(
        operation=operation,
        value={"op": operation, "before": before, "after": after},
        # DMS writes its records one after the other, so their times order those of several shards, to the microsecond.
        source={
            "schema": schema,
            "table": table,
            "connector": "dms",
            "ts_ms": None if written is None else written // _MICROSECONDS,
            "ord": None if written is None else written % _MICROSECONDS,
        },
        key=None,
        headers=None,
        fields=None,
        key_fields=None,
        transaction=None if transaction is None or operation == "r" else f"transaction-id {transaction}",
        commit_time=time,
    )
