"""A database in memory that writes its log as Debezium's PostgreSQL connector does.

A value is the text that PostgreSQL prints for it, or None. A statement is a list that begins with its verb:

    insert TABLE ROW; update TABLE KEY CHANGES; delete TABLE KEY; truncate TABLES; add TABLE COLUMN TYPE;
    drop TABLE COLUMN; early (first of its transaction: it wrote before the transaction that committed before it)
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from tests.support.debezium_json import Field, written
from tests.support.debezium_lines import PLACEHOLDER

Row = dict[str, str | None]
Statement = list[Any]
LARGE = "L"
"""Begins texts that PostgreSQL stores apart, and leaves out of an update that does not change them."""
DATABASE, SCHEMA = "shop", "public"
START_MS = 1_700_000_000_000
WIDTH = 1_000
"""Positions of the log between two commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """What a connector's settings make of an event.

    `schemas`: each line has its schema. `records`: lines are records with key, value and headers. `whole`: REPLICA
    IDENTITY FULL. `blocks`: events name their transaction and their place in it. `partitions`: of the stream.
    """

    schemas: bool
    records: bool
    whole: bool
    blocks: bool
    partitions: int

    @property
    def decimals(self) -> str:
        return "precise" if self.schemas else "string"


@dataclass(slots=True, kw_only=True)
class LoggedTable:
    """`key` is empty for a table without one: then its rows are told apart by all their values. `columns`: types."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, str]
    gone: set[str] = field(default_factory=set)
    rows: list[Row] = field(default_factory=list)

    def key_of(self, row: Row) -> list[str | None]:
        return [row[name] for name in self.key or self.columns]

    def change(self, op: str, row: Row, *, old: Row | None = None, new_key: Row | None = None) -> "_Change":
        return _Change(op, self, dict(self.columns), dict(row), old, new_key)

    def find(self, key: Sequence[str | None]) -> Row | None:
        return next((row for row in self.rows if self.key_of(row) == list(key)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """`repeats`: whether the lake is promised to bear that the log is sent again from its transaction on."""

    partition: int
    text: str
    transaction: int
    repeats: bool


@dataclass(slots=True, kw_only=True)
class EventLog:
    """Whatever a statement names that is not there any more, is not changed."""

    wording: Wording
    tables: dict[str, LoggedTable]
    transactions: int = 0
    touched: set[str] = field(default_factory=set)
    """What the last transaction changed: a row by table and key, a table as a whole by its name."""

    def run(self, statements: Sequence[Statement]) -> list[LogLine]:
        """One transaction, of which every statement commits."""
        early = statements[0] == ["early"]
        changes = [
            change
            for verb, *rest in (statements[1:] if early else statements)
            for change in getattr(self, f"_{verb}")(*rest)
        ]
        if not changes:
            return []
        self.transactions += 1
        touched = set[str]().union(*(change.touches for change in changes))
        began = self.transactions - (2 if early and not self._meets(touched) else 1)
        self.touched = touched
        position = began * WIDTH + (WIDTH // 2 if began == self.transactions - 1 else 0)
        lines = list[LogLine]()
        for place, change in enumerate(changes):
            position += not change.is_second_half
            lines += self._lines(change, position, place)
        return lines

    def reads(self) -> list[LogLine]:
        """The rows as the connector's own snapshot reads them, before all changes and at one position."""
        self.transactions += 1
        self.touched = set(self.tables)
        changes = [table.change("r", row) for table in self.tables.values() for row in table.rows]
        return [line for change in changes for line in self._lines(change, WIDTH // 2, 0)]

    def _meets(self, touched: set[str]) -> bool:
        """Whether a lock on a row or a table would have made one transaction wait for the other."""
        tables = {each.partition("/")[0] for each in touched} & {each.partition("/")[0] for each in self.touched}
        return bool(touched & self.touched) or any(name in touched | self.touched for name in tables)

    def _insert(self, name: str, row: Row) -> "Iterator[_Change]":
        table = self.tables[name]
        new = {column: row.get(column) for column in table.columns}
        if table.key and table.find(table.key_of(new)) is not None:
            return
        table.rows.append(new)
        yield table.change("c", new)

    def _update(self, name: str, key: list[str | None], sets: Row) -> "Iterator[_Change]":
        table = self.tables[name]
        row = table.find(key)
        if row is None:
            return
        old = dict(row)
        new = {column: sets.get(column, value) for column, value in row.items()}
        moved = bool(table.key) and table.key_of(new) != table.key_of(old)
        if moved and table.find(table.key_of(new)) is not None:
            return
        row |= new
        if moved:
            yield table.change("d", old, new_key={column: new[column] for column in table.key})
            yield table.change("c", new, old=old)
        else:
            yield table.change("u", new, old=old)

    def _delete(self, name: str, key: list[str | None]) -> "Iterator[_Change]":
        table = self.tables[name]
        row = table.find(key)
        if row is not None:
            table.rows.remove(row)
            yield table.change("d", row)

    def _truncate(self, names: list[str]) -> "Iterator[_Change]":
        for name in names:
            table = self.tables[name]
            table.rows.clear()
            yield table.change("t", {})

    def _add(self, name: str, column: str, type_: str) -> "Iterator[_Change]":
        table = self.tables[name]
        if column not in table.columns.keys() | table.gone:
            table.columns[column] = type_
            for row in table.rows:
                row[column] = None
        yield from ()

    def _drop(self, name: str, column: str) -> "Iterator[_Change]":
        table = self.tables[name]
        if table.columns.pop(column, None):
            table.gone.add(column)
            for row in table.rows:
                del row[column]
        yield from ()

    def _lines(self, change: "_Change", position: int, place: int) -> Iterator[LogLine]:
        """With the tombstone behind a delete."""
        table, op = change.table, change.op
        key = {name: change.row[name] for name in table.key} if op != "t" and table.key else None
        split = json.dumps([table.name, key]) if key else table.name
        line = LogLine(
            partition=0 if op == "t" else crc32(split.encode()) % self.wording.partitions,
            text=json.dumps(self._line(change, key, position, place)),
            transaction=self.transactions,
            repeats=not change.is_half and (op != "t" or self.wording.partitions == 1),
        )
        yield line
        if op == "d" and key and self.wording.records:
            yield replace(line, text=json.dumps({"key": self._key(change, key), "value": None, "headers": []}))

    def _line(self, change: "_Change", key: Row | None, position: int, place: int) -> dict[str, Any]:
        headers = []
        if change.new_key:
            headers = [["__debezium.newkey", json.dumps(self._key(change, change.new_key))]]
        elif change.is_second_half and change.old:
            old = {name: change.old[name] for name in change.table.key}
            headers = [["__debezium.oldkey", json.dumps(self._key(change, old))]]
        envelope = self._envelope(change, position, place)
        if self.wording.schemas:
            fields = self._fields(change, change.columns)
            parts = [{"type": "struct", "fields": fields, "field": part} for part in ("before", "after")]
            envelope = {"schema": {"type": "struct", "fields": parts}, "payload": envelope}
        if not self.wording.records:
            return envelope
        return {"key": self._key(change, key), "value": envelope, "headers": headers}

    def _envelope(self, change: "_Change", position: int, place: int) -> dict[str, Any]:
        before, after = self._images(change)
        commit = self.transactions * WIDTH
        at_ms = START_MS + self.transactions
        source = {
            "version": "3.4.0.Final",
            "connector": "postgresql",
            "name": "shops",
            "ts_ms": at_ms,
            "snapshot": "true" if change.op == "r" else "false",
            "db": DATABASE,
            "schema": SCHEMA,
            "table": change.table.name,
            "sequence": json.dumps([None if change.op == "r" else str(commit - WIDTH), str(position)]),
            "txId": 700 + self.transactions,
            "lsn": position,
        }
        block = None
        if self.wording.blocks and change.op != "r":
            block = {"id": f"{self.transactions}", "total_order": place + 1, "data_collection_order": place + 1}
        return {
            "before": before,
            "after": after,
            "source": source,
            "op": change.op,
            "ts_ms": at_ms,
            "transaction": block,
        }

    def _images(self, change: "_Change") -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        table, whole = change.table, self.wording.whole or not change.table.key
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

    def _values(self, change: "_Change", row: Row) -> dict[str, Any]:
        return {
            column: written(change.columns[column], [value], decimals=self.wording.decimals).values[0]
            for column, value in row.items()
        }

    def _fields(self, change: "_Change", columns: Iterable[str]) -> list[Field]:
        return [
            {
                **written(change.columns[column], [], decimals=self.wording.decimals).schema,
                "field": column,
                "optional": True,
            }
            for column in columns
        ]

    def _key(self, change: "_Change", key: Row | None) -> dict[str, Any] | None:
        if key is None:
            return None
        values = self._values(change, key)
        if not self.wording.schemas:
            return values
        return {"schema": {"type": "struct", "fields": self._fields(change, key)}, "payload": values}


@dataclass(frozen=True, slots=True)
class _Change:
    """`columns`: those of that time. `row`: the new one, of a delete the old one. `new_key`: it begins a key change."""

    op: str
    table: LoggedTable
    columns: dict[str, str]
    row: Row
    old: Row | None
    new_key: Row | None

    @property
    def is_second_half(self) -> bool:
        """Of a key change, at the position of the first one."""
        return self.op == "c" and self.old is not None

    @property
    def is_half(self) -> bool:
        return self.is_second_half or self.new_key is not None

    @property
    def touches(self) -> set[str]:
        if self.op == "t" or not self.table.key:
            return {self.table.name}
        return {f"{self.table.name}/{self.table.key_of(row)}" for row in (self.row, self.old) if row is not None}
