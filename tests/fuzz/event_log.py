"""A database in memory, and the log of its changes.

A value is the text that PostgreSQL prints for it, or None. A statement is a list that begins with its verb:

    insert TABLE ROW; update TABLE KEY CHANGES; delete TABLE KEY; truncate TABLES; add TABLE COLUMN TYPE;
    drop TABLE COLUMN; early (first of its transaction: it wrote before the transaction that committed before it)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Row = dict[str, str | None]
Statement = list[Any]
DATABASE, SCHEMA, KEYLESS = "shop", "public", "notes"
LARGE = "L"
"""Begins texts that PostgreSQL stores apart, and leaves out of an update that does not change them."""
WIDTH = 1_000
"""Positions of the log between two commits."""


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

    def change(self, op: str, row: Row, *, old: Row | None = None, new_key: Row | None = None) -> "Change":
        return Change(op, self, dict(self.columns), dict(row), old, new_key)

    def find(self, key: Sequence[str | None]) -> Row | None:
        return next((row for row in self.rows if self.key_of(row) == list(key)), None)


@dataclass(slots=True, kw_only=True)
class EventLog:
    """Whatever a statement names that is not there any more, is not changed."""

    tables: dict[str, LoggedTable]
    transactions: int = 0
    touched: set[str] = field(default_factory=set)
    """What the last transaction changed: a row by table and key, a table as a whole by its name."""

    def run(self, statements: Sequence[Statement]) -> "list[Change]":
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
        found = list[Change]()
        for place, change in enumerate(changes):
            position += not change.is_second_half
            found.append(replace(change, transaction=self.transactions, place=place, position=position))
        return found

    @property
    def settled(self) -> int:
        """A position below those of all transactions to come, of which all changes at or below it are done."""
        return max(0, self.transactions - 1) * WIDTH

    def reads(self) -> "list[Change]":
        """The rows as a snapshot reads them, before all changes and at one position."""
        self.transactions += 1
        self.touched = set(self.tables)
        changes = (table.change("r", row) for table in self.tables.values() for row in table.rows)
        return [replace(change, transaction=self.transactions, position=WIDTH // 2) for change in changes]

    def _meets(self, touched: set[str]) -> bool:
        """Whether a lock on a row or a table would have made one transaction wait for the other."""
        tables = {each.partition("/")[0] for each in touched} & {each.partition("/")[0] for each in self.touched}
        return bool(touched & self.touched) or any(name in touched | self.touched for name in tables)

    def _insert(self, name: str, row: Row) -> "Iterator[Change]":
        table = self.tables[name]
        new = {column: row.get(column) for column in table.columns}
        if table.key and table.find(table.key_of(new)) is not None:
            return
        table.rows.append(new)
        yield table.change("c", new)

    def _update(self, name: str, key: list[str | None], sets: Row) -> "Iterator[Change]":
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

    def _delete(self, name: str, key: list[str | None]) -> "Iterator[Change]":
        table = self.tables[name]
        row = table.find(key)
        if row is not None:
            table.rows.remove(row)
            yield table.change("d", row)

    def _truncate(self, names: list[str]) -> "Iterator[Change]":
        for name in names:
            table = self.tables[name]
            table.rows.clear()
            yield table.change("t", {})

    def _add(self, name: str, column: str, type_: str) -> "Iterator[Change]":
        table = self.tables[name]
        if column not in table.columns.keys() | table.gone:
            table.columns[column] = type_
            for row in table.rows:
                row[column] = None
        yield from ()

    def _drop(self, name: str, column: str) -> "Iterator[Change]":
        table = self.tables[name]
        if table.columns.pop(column, None):
            table.gone.add(column)
            for row in table.rows:
                del row[column]
        yield from ()


@dataclass(frozen=True, slots=True)
class Change:
    """`columns`: those of that time. `row`: the new one, of a delete the old one. `new_key`: it begins a key change.

    `transaction`: its number, from 1 on. `place`: in the transaction. `position`: in the log, the same for
    both halves of a key change.
    """

    op: str
    table: LoggedTable
    columns: dict[str, str]
    row: Row
    old: Row | None
    new_key: Row | None
    transaction: int = 0
    place: int = 0
    position: int = 0

    @property
    def is_second_half(self) -> bool:
        """Of a key change, at the position of the first one."""
        return self.op == "c" and self.old is not None

    @property
    def key(self) -> Row | None:
        """The id of the row; None for a truncate, and in a table without a key."""
        return {name: self.row[name] for name in self.table.key} if self.op != "t" and self.table.key else None

    @property
    def is_half(self) -> bool:
        return self.is_second_half or self.new_key is not None

    @property
    def touches(self) -> set[str]:
        if self.op == "t" or not self.table.key:
            return {self.table.name}
        return {f"{self.table.name}/{self.table.key_of(row)}" for row in (self.row, self.old) if row is not None}
