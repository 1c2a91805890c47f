"""The log as rows with an operation: as AWS DMS, Google Datastream, DynamoDB and programs of one's own write it."""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

from tests.fuzz.arriving import LogLine
from tests.fuzz.event_log import SCHEMA, WIDTH, Change, Row

OPERATION, ORDER, BEFORE = "Op", "seq", "BI_"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of the position 0; each further one is a millisecond later."""
_CODES = {"r": "I", "c": "I", "u": "U", "d": "D", "t": "T"}
_DMS_NAMES = {"r": "load", "c": "insert", "u": "update", "d": "delete"}
_DATASTREAM_NAMES = {"r": None, "c": "INSERT", "u": "UPDATE", "d": "DELETE"}
_DYNAMODB_NAMES = {"r": "INSERT", "c": "INSERT", "u": "MODIFY", "d": "REMOVE"}


def time_at(position: float) -> str:
    return (EPOCH + timedelta(milliseconds=position)).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWording:
    """Implements `Wording` for change files. Each table is a partition; `names` are the tables.

    `whole`: rows show the old row, so that a key change is one row. `ordered`: without a column that orders them.
    """

    names: Sequence[str]
    whole: bool
    ordered: bool

    @property
    def partitions(self) -> int:
        return len(self.names)

    def lines(self, change: Change) -> list[LogLine]:
        shows_old = self.whole or not change.table.key
        if shows_old and change.new_key is not None:
            return []
        old = change.row if change.op == "d" else change.old if change.op == "u" or shows_old else None
        op = "U" if shows_old and change.is_second_half else _CODES[change.op]
        row = self._row(op, change, change.row, old if shows_old else None, shows_old=shows_old)
        rows = [row]
        if op == "U" and not change.table.key and not any(value is not None for value in (old or {}).values()):
            # An old row that is NULL in every column cannot be shown: it is a delete and an insert.
            rows = [
                self._row("D", change, old or {}, old, shows_old=True),
                self._row("I", change, change.row, None, shows_old=True),
            ]
        partition = list(self.names).index(change.table.name)
        return [_line(change, each, partition, repeats=bool(change.table.key)) for each in rows]

    def _row(self, op: str, change: Change, new: Row, old: Row | None, *, shows_old: bool) -> dict[str, Any]:
        order = {} if self.ordered else {ORDER: change.position}
        values = {column: new.get(column) for column in change.columns}
        before = {BEFORE + column: (old or {}).get(column) for column in change.columns} if shows_old else {}
        return {OPERATION: op, **order, **values, **before}


@dataclass(frozen=True, slots=True, kw_only=True)
class DmsWording:
    """Implements `Wording` for a stream that AWS DMS writes.

    `by_key`: changes of other ids are in other partitions; else those of other tables. `whole`: with before images, so
    that a key change is one record.
    """

    partitions: int
    by_key: bool
    whole: bool

    def lines(self, change: Change) -> list[LogLine]:
        if self.whole and change.new_key is not None:
            return []
        split = json.dumps([change.table.name, change.key]) if self.by_key else change.table.name
        metadata: dict[str, Any] = {
            "timestamp": time_at((change.transaction * WIDTH + change.place) / 1_000),  # each a microsecond later
            "commit-timestamp": time_at(change.position),
            "record-type": "control" if change.op == "t" else "data",
            "schema-name": SCHEMA,
            "table-name": change.table.name,
            "transaction-id": change.transaction,
        }
        record: dict[str, Any] = {"metadata": metadata}
        if change.op == "t":
            metadata["operation"] = "truncate-table"
        else:
            moves = self.whole and change.is_second_half
            metadata["operation"] = "update" if moves else _DMS_NAMES[change.op]
            record["data"] = typed(change, change.row)
            if self.whole and change.old is not None:
                record["before-image"] = typed(change, change.old)
        # What is sent again is applied again: only what cannot lead a row back may be.
        return [_line(change, record, crc32(split.encode()) % self.partitions, repeats=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatastreamWording:
    """Implements `Wording` for Google Datastream. Each table is a partition; `names` are the tables."""

    names: Sequence[str]

    @property
    def partitions(self) -> int:
        return len(self.names)

    def lines(self, change: Change) -> list[LogLine]:
        """Both halves of a key change are at one time, and at places of their own."""
        operation = _DATASTREAM_NAMES[change.op]
        if change.is_half:
            operation = "UPDATE-INSERT" if change.is_second_half else "UPDATE-DELETE"
        place = 2 * change.position + change.is_second_half
        metadata: dict[str, Any] = {
            "schema": SCHEMA,
            "table": change.table.name,
            "is_deleted": change.op == "d",
            "change_type": operation or "INSERT",
            "primary_keys": list(change.table.key),
        }
        is_logged = operation is not None
        record = {
            "read_method": "postgresql-cdc-wal" if is_logged else "postgresql-backfill",
            "source_timestamp": time_at(change.position),
            "source_metadata": metadata | ({"lsn": f"0/{place:X}", "tx_id": change.transaction} if is_logged else {}),
            "payload": typed(change, change.row),
        }
        return [_line(change, record, list(self.names).index(change.table.name), repeats=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbWording:
    """Implements `Wording` for streams of tables, each with `shards` of its own. `names`: the tables."""

    names: Sequence[str]
    shards: int

    @property
    def partitions(self) -> int:
        return len(self.names) * self.shards

    def lines(self, change: Change) -> list[LogLine]:
        shard = crc32(json.dumps(change.key).encode()) % self.shards
        old, new = (change.row, None) if change.op == "d" else (change.old, change.row)
        if change.is_second_half:
            old = None
        images = {"OldImage": old, "NewImage": new}
        body = {name: _attributes(change, row) for name, row in images.items() if row is not None}
        more = {"Keys": _attributes(change, change.key or {}), "ApproximateCreationDateTime": time_at(change.position)}
        record = {"eventName": _DYNAMODB_NAMES[change.op], "dynamodb": body | more}
        table = list(self.names).index(change.table.name)
        return [_line(change, record, table * self.shards + shard, repeats=False)]


def typed(change: Change, row: Row) -> dict[str, Any]:
    """The values as programs write them that know JSON's types."""
    return {column: _value(change.columns[column], text) for column, text in row.items()}


def _value(type_: str, text: str | None) -> Any:
    if text is None:
        return None
    return int(text) if type_ == "int8" else text == "t" if type_ == "boolean" else text


def _attributes(change: Change, row: Row) -> dict[str, Any]:
    """Attribute values of an item, which has no attribute for a NULL."""
    return {column: _attribute(change.columns[column], text) for column, text in row.items() if text is not None}


def _attribute(type_: str, text: str) -> dict[str, Any]:
    match type_:
        case "int8" | "numeric(10,2)":
            return {"N": text}
        case "boolean":
            return {"BOOL": text == "t"}
        case "bytea":
            return {"B": b64encode(bytes.fromhex(text[2:])).decode()}
        case _:
            return {"S": text}


def _line(change: Change, content: dict[str, Any], partition: int, *, repeats: bool) -> LogLine:
    return LogLine(partition=partition, text=json.dumps(content), transaction=change.transaction, repeats=repeats)
