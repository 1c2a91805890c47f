"""The log as Debezium's PostgreSQL connector writes it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from tests.fuzz.arriving import LogLine
from tests.fuzz.event_log import DATABASE, LARGE, SCHEMA, WIDTH, Change, Row
from tests.support.debezium_json import Field, written
from tests.support.debezium_lines import PLACEHOLDER

START_MS, SECOND_MS = 1_700_000_000_000, 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumWording:
    """Implements `Wording`: what the settings of Debezium's PostgreSQL connector make of an event.

    `schemas`: each line has its schema. `records`: lines are records with key, value and headers. `whole`: REPLICA
    IDENTITY FULL. `blocks`: events name their transaction and their place in it. `partitions`: of the stream.
    `names_table`: records name the table that has them.
    """

    schemas: bool
    records: bool
    whole: bool
    blocks: bool
    partitions: int
    names_table: bool = False

    @property
    def decimals(self) -> str:
        return "precise" if self.schemas else "string"

    def lines(self, change: Change) -> list[LogLine]:
        """With the tombstone behind a delete."""
        key, op, name = change.key, change.op, change.table.name
        split = json.dumps([name, key]) if key else name
        line = LogLine(
            partition=0 if op == "t" else crc32(split.encode()) % self.partitions,
            text=json.dumps(self._line(change)),
            transaction=change.transaction,
            repeats=not change.is_half and (op != "t" or self.partitions == 1),
        )
        if op != "d" or not key or not self.records:
            return [line]
        return [line, replace(line, text=json.dumps(self._record(change, key, None, [])))]

    def _line(self, change: Change) -> dict[str, Any]:
        headers = []
        if change.new_key:
            headers = [["__debezium.newkey", json.dumps(self._key(change, change.new_key))]]
        elif change.is_second_half and change.old:
            old = {name: change.old[name] for name in change.table.key}
            headers = [["__debezium.oldkey", json.dumps(self._key(change, old))]]
        envelope = self._envelope(change)
        if self.schemas:
            fields = self._fields(change, change.columns)
            parts = [{"type": "struct", "fields": fields, "field": part} for part in ("before", "after")]
            envelope = {"schema": {"type": "struct", "fields": parts}, "payload": envelope}
        if not self.records:
            return envelope
        return self._record(change, change.key, envelope, headers)

    def _record(
        self, change: Change, key: Row | None, value: dict[str, Any] | None, headers: list[list[str]]
    ) -> dict[str, Any]:
        table = {"table": change.table.name} if self.names_table else {}
        return {**table, "key": self._key(change, key), "value": value, "headers": headers}

    def _envelope(self, change: Change) -> dict[str, Any]:
        before, after = self._images(change)
        commit = change.transaction * WIDTH
        at_ms = START_MS + change.transaction * SECOND_MS
        source = {
            "version": "3.4.0.Final",
            "connector": "postgresql",
            "name": "shops",
            "ts_ms": at_ms,
            "snapshot": "true" if change.op == "r" else "false",
            "db": DATABASE,
            "schema": SCHEMA,
            "table": change.table.name,
            "sequence": json.dumps([None if change.op == "r" else str(commit - WIDTH), str(change.position)]),
            "txId": 700 + change.transaction,
            "lsn": change.position,
        }
        block = None
        if self.blocks and change.op != "r":
            block = {
                "id": f"{change.transaction}",
                "total_order": change.place + 1,
                "data_collection_order": change.place + 1,
            }
        return {
            "before": before,
            "after": after,
            "source": source,
            "op": change.op,
            "ts_ms": at_ms,
            "transaction": block,
        }

    def _images(self, change: Change) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        table, whole = change.table, self.whole or not change.table.key
        if change.op == "t":
            return None, None
        if change.op == "d":
            known = change.row if whole else {name: change.row[name] for name in table.key}
            return self._values(change, {column: known.get(column) for column in change.columns}), None
        after = self._values(change, change.row)
        if change.old is not None and not whole:
            for column, value in change.row.items():
                if column not in table.key and value == change.old[column] and (value or "").startswith(LARGE):
                    after[column] = PLACEHOLDER
        before = self._values(change, change.old) if change.op == "u" and whole and change.old else None
        return before, after

    def _values(self, change: Change, row: Row) -> dict[str, Any]:
        return {
            column: written(change.columns[column], [value], decimals=self.decimals).values[0]
            for column, value in row.items()
        }

    def _fields(self, change: Change, columns: Iterable[str]) -> list[Field]:
        return [
            {
                **written(change.columns[column], [], decimals=self.decimals).schema,
                "field": column,
                "optional": True,
            }
            for column in columns
        ]

    def _key(self, change: Change, key: Row | None) -> dict[str, Any] | None:
        if key is None:
            return None
        values = self._values(change, key)
        if not self.schemas:
            return values
        return {"schema": {"type": "struct", "fields": self._fields(change, key)}, "payload": values}
