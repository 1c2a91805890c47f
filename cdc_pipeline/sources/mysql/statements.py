"""Says what a statement that the binary log has as text does to tables. Pure.

With `binlog_format = ROW` these are statements that change tables themselves. Rows that such a statement changes have
no event, so the consumer has to know which tables it names. In doubt a statement counts as one that changes the rows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from cdc_pipeline.sources.mysql.altered_tables import alteration_of
from cdc_pipeline.sources.mysql.tokens import TableInText, Words, tokens

_FLAGS = re.IGNORECASE | re.DOTALL
_BEGIN = re.compile(r"\s*(?:BEGIN|START\s+TRANSACTION|XA\s+START)\b", _FLAGS)
_COMMIT = re.compile(r"\s*COMMIT\b", _FLAGS)
_ROLLBACK = re.compile(r"\s*ROLLBACK\b", _FLAGS)
_ROLLBACK_TO = re.compile(r"\s*ROLLBACK\s+(?:WORK\s+)?TO\b", _FLAGS)
_UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""Stands in a statement for bytes that cannot be decoded."""
_TABLE_WORDS = ("TABLE", "TABLES")
_TABLES = tuple((before, "TABLES") for before in ("DROP", "RENAME", "TEMPORARY"))
"""Elsewhere the word may be a name, unlike TABLE."""
_FEW = 4
"""Among so many words at its beginning, a statement that changes tables has the word TABLE."""
_INTO = ("INSERT", "REPLACE", "LOAD")
_ROWS = (*_INTO, "UPDATE", "DELETE", "MERGE", "CALL")
_PRIORITIES = ("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE")
_FUNCTIONS = ("SELECT", "DO")
"""The log has these only if they called a stored function that changed rows, of whatever table."""


class Effect(StrEnum):
    """TRUNCATED: no row is left. CHANGED: columns or rows may have changed. ANOTHER: the name has another table now.

    REPLACED: a column has a name that another one had, or rows went or changed; the catalogue may look as before.
    ROWS: the statement changes rows that have no events. CASCADES: from now on the engine changes rows without events.
    COLUMN_CASCADES: so it does if the server makes a foreign key of the REFERENCES of a column.
    """

    TRUNCATED = "truncated"
    CHANGED = "changed"
    REPLACED = "replaced"
    ANOTHER = "another"
    ROWS = "rows"
    CASCADES = "cascades"
    COLUMN_CASCADES = "column_cascades"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEffect:
    """What a statement does to one table. `table` None: every table of `database`; if that is "", every table."""

    effect: Effect
    database: str
    table: str | None

    def concerns(self, database: str, table: str, *, in_any_case: bool = False) -> bool:
        """Returns whether the effect is on this table. `in_any_case`: names that differ in capitals alone are one."""
        own_database, own_table = self.database, self.table
        if in_any_case:
            database, table = database.lower(), table.lower()
            own_database, own_table = own_database.lower(), own_table and own_table.lower()
        return own_database in ("", database) and own_table in (None, table)


_ANY_CHANGED = TableEffect(effect=Effect.CHANGED, database="", table=None)


def begins_transaction(statement: str) -> bool:
    """Returns whether rows and other statements may follow in the same transaction. Else it is a transaction alone."""
    return _BEGIN.match(statement) is not None


def commits(statement: str) -> bool:
    return _COMMIT.match(statement) is not None


def takes_back(statement: str) -> bool:
    """Returns whether the statement takes back what its transaction changed in tables with transactions.

    The log has such a transaction if it changed tables without them. MariaDB logs it also if it made or dropped a
    temporary table: with the rows that it changed before, and those of an XA ROLLBACK.
    """
    return _ROLLBACK.match(statement) is not None and not is_partial_rollback(statement)


def is_partial_rollback(statement: str) -> bool:
    """Returns whether the statement takes back a part of the rows that the log has just shown."""
    return _ROLLBACK_TO.match(statement) is not None


def effects_of(statement: str, database: str, *, sql_mode: int | None = None) -> tuple[TableEffect, ...]:
    """Returns what the statement does to tables. `database`: the one in which it ran, for names without one.

    `sql_mode`: the mode in which it ran, None if that is not known.
    """
    return tuple(map(_in_doubt, _Statement(statement, database, sql_mode).effects()))


def _in_doubt(found: TableEffect) -> TableEffect:
    """Returns the effect, on every table if the name of its own cannot be read."""
    if _UNKNOWN_CHARACTER not in found.database + (found.table or ""):
        return found
    return TableEffect(effect=Effect.ROWS, database="", table=None) if found.effect is Effect.ROWS else _ANY_CHANGED


class _Statement:
    """A statement that is read from left to right."""

    def __init__(self, statement: str, database: str, sql_mode: int | None) -> None:
        self._words = Words(tokens(statement, sql_mode))
        self._database = database

    def effects(self) -> Iterator[TableEffect]:
        words = self._words
        if words.take("SET", "STATEMENT"):
            words.skip_to(("FOR",))
        first = words.peek().word
        few = [words.peek(number).word for number in range(_FEW)]
        names_table = "TABLE" in few or any(pair in _TABLES for pair in pairwise(few))
        if first in ("ANALYZE", "WITH") and not names_table:
            first = words.skip_to((*_ROWS, "SELECT"))
        else:
            words.take(first)
        match first:
            case "TRUNCATE":
                yield from self._of_truncate()
            case "ALTER" if names_table:
                yield from self._of_alter()
            case "DROP" | "CREATE" | "RENAME":
                yield from self._of_name(first, names_table=names_table)
            case _ if first in _ROWS:
                yield from self._of_rows(first)
            case _ if first in _FUNCTIONS:
                yield TableEffect(effect=Effect.ROWS, database="", table=None)

    def _of_truncate(self) -> Iterator[TableEffect]:
        self._words.take("TABLE")
        table = self._words.take_table()
        yield _ANY_CHANGED if table is None else self._effect(Effect.TRUNCATED, table)

    def _of_alter(self) -> Iterator[TableEffect]:
        words = self._words
        is_ignoring = False
        while modifier := words.take_any(("ONLINE", "IGNORE")):
            is_ignoring |= modifier == "IGNORE"
        table = self._table_behind() if words.take("TABLE") else None
        if table is None:
            yield _ANY_CHANGED
            return
        found = alteration_of(words.rest())
        if found.is_harmless and not is_ignoring:
            return
        # MariaDB's IGNORE deletes rows and changes values wherever a clause does not fit them
        replaces = is_ignoring or found.takes_names or found.loses_rows
        if found.cascades:
            yield self._effect(Effect.CASCADES, table)
        if found.column_cascades:
            yield self._effect(Effect.COLUMN_CASCADES, table)
        yield self._effect(Effect.REPLACED if replaces else Effect.CHANGED, table)
        for name in found.new_names:
            yield self._effect(Effect.ANOTHER, table)
            yield self._effect(Effect.ANOTHER, name)
        for name in found.exchanged:
            yield self._effect(Effect.ANOTHER, name)

    def _of_name(self, first: str, *, names_table: bool) -> Iterator[TableEffect]:
        """Yields what a DROP, a CREATE OR REPLACE or a RENAME takes from a table or gives to another one."""
        words = self._words
        if first == "CREATE" and not words.take("OR", "REPLACE"):
            return
        if words.take_any(("DATABASE", "SCHEMA")):
            words.take_exists()
            yield TableEffect(effect=Effect.ANOTHER, database=words.take_name() or "", table=None)
        elif first == "DROP" and words.take("INDEX"):
            words.take_exists()
            is_primary = (words.take_name() or "").upper() == "PRIMARY"
            words.take("ON")
            table = self._table_behind()
            if is_primary:
                yield _ANY_CHANGED if table is None else self._effect(Effect.CHANGED, table)
        elif names_table and not words.take("TEMPORARY"):
            named = list(self._named(first)) if words.take_any(_TABLE_WORDS) else [None]
            for name in named:
                yield _ANY_CHANGED if name is None else self._effect(Effect.ANOTHER, name)

    def _named(self, first: str) -> Iterator[TableInText | None]:
        """Yields the tables of a list, and None where it cannot be read."""
        yield self._table_behind()
        while first == "RENAME" and self._words.take("TO"):
            yield self._words.take_table()
            if self._words.take_sign(","):
                yield self._table_behind()
        while first == "DROP" and self._words.take_sign(","):
            yield self._table_behind()
        self._words.take_any(("RESTRICT", "CASCADE"))
        self._words.take_sign(";")
        if first != "CREATE" and not self._words.is_over:
            yield None

    def _table_behind(self) -> TableInText | None:
        self._words.take_exists()
        table = self._words.take_table()
        self._words.take_wait()
        return table

    def _of_rows(self, first: str) -> Iterator[TableEffect]:
        """Yields the table that an INSERT, a REPLACE or a LOAD writes to; of another statement, every name in it."""
        words = self._words
        if first == "LOAD":
            words.skip_to(("INTO",))
            words.take("TABLE")
        elif first in _INTO:
            while words.take_any(_PRIORITIES):
                pass
            words.take("INTO")
        table = words.take_table() if first in _INTO else None
        if table is not None:
            yield self._effect(Effect.ROWS, table)
            return
        for name in sorted(set(_names(words))):
            yield TableEffect(effect=Effect.ROWS, database="", table=name)

    def _effect(self, effect: Effect, table: TableInText) -> TableEffect:
        return TableEffect(effect=effect, database=table.database or self._database, table=table.table)


def _names(words: Words) -> Iterator[str]:
    """Yields what may be the name of a table: without quotes it is no number."""
    for token in words.rest():
        if token.is_name and not (token.word.isascii() and token.word.isdigit()):
            yield token.text
