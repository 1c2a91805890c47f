"""Says what a statement that the binary log has as text does to tables. Pure.

With `binlog_format = ROW` these are statements that change tables themselves. Rows that such a statement changes have
no event, so the consumer has to know which tables it names. In doubt a statement counts as one that changes the rows.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

_COMMENT = re.compile(r"/\*(?![!M]).*?\*/|--\s[^\n]*|#[^\n]*", re.DOTALL)
_EXECUTED_COMMENT = re.compile(r"/\*M?!\d*(.*?)\*/", re.DOTALL)
_STRING = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$]+)"
_TABLE = rf"(?:{_NAME}\s*\.\s*)?{_NAME}"
_IF = r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
_WAIT = r"(?:(?:NOWAIT|WAIT\s+\d+)\s+)?"
_FLAGS = re.IGNORECASE | re.DOTALL
_TRANSACTION = re.compile(r"\s*(BEGIN|START\s+TRANSACTION|COMMIT|ROLLBACK|SAVEPOINT|RELEASE\s+SAVEPOINT|XA)\b", _FLAGS)
_BEGIN = re.compile(r"\s*(?:BEGIN|START\s+TRANSACTION|XA\s+START)\b", _FLAGS)
_WITH_VARIABLES = re.compile(r"^\s*SET\s+STATEMENT\b.*?\bFOR\b", _FLAGS)
_ROLLBACK_TO = re.compile(r"\s*ROLLBACK\s+(?:WORK\s+)?TO\b", _FLAGS)
_TRUNCATE = re.compile(rf"\s*TRUNCATE\s+(?:TABLE\s+)?(?P<table>{_TABLE})", _FLAGS)
_ALTER = re.compile(
    rf"\s*ALTER\s+(?:ONLINE\s+)?(?P<ignore>IGNORE\s+)?TABLE\s+{_IF}(?P<table>{_TABLE})(?P<rest>.*)", _FLAGS
)
_DROP = re.compile(rf"\s*DROP\s+TABLES?\s+{_IF}(?P<tables>{_TABLE}(?:\s*,\s*{_TABLE})*)", _FLAGS)
_REPLACE = re.compile(rf"\s*CREATE\s+OR\s+REPLACE\s+TABLE\s+(?P<table>{_TABLE})", _FLAGS)
_OF_A_TABLE = re.compile(r"\s*(?:ALTER|DROP|RENAME|TRUNCATE|CREATE\s+OR\s+REPLACE)\s+(?:\w+\s+){0,2}TABLES?\b", _FLAGS)
_OF_A_TEMPORARY_TABLE = re.compile(r"\s*(?:DROP|CREATE\s+OR\s+REPLACE)\s+TEMPORARY\b", _FLAGS)
_RENAME = re.compile(r"\s*RENAME\s+TABLES?\s+(?P<rest>.*)", _FLAGS)
_RENAMED = re.compile(rf"{_IF}(?P<old>{_TABLE})\s+{_WAIT}TO\s+(?P<new>{_TABLE})", _FLAGS)
_NAMES_AFTER_RENAME = re.compile(rf"\bRENAME\s+(?:TO\s+|AS\s+)?(?P<new>{_TABLE})", _FLAGS)
_DATABASE = re.compile(rf"\s*DROP\s+(?:DATABASE|SCHEMA)\s+{_IF}(?P<database>{_NAME})", _FLAGS)
_ROWS = re.compile(r"\s*(?:WITH\b.*?\)\s*)?(INSERT|UPDATE|DELETE|REPLACE|LOAD|MERGE|CALL)\b", _FLAGS)
_INTO = re.compile(
    rf"\s*(?:(?:INSERT|REPLACE)\s+(?:(?:LOW_PRIORITY|HIGH_PRIORITY|DELAYED|IGNORE)\s+)*(?:INTO\s+)?"
    rf"|LOAD\s.*?\bINTO\s+TABLE\s+)(?P<table>{_TABLE})",
    _FLAGS,
)
_HARMLESS_CLAUSE = re.compile(
    r"\s*(?:"
    r"(?:ADD|DROP|RENAME|ALTER)\s+(?:(?:UNIQUE|FULLTEXT|SPATIAL)\s+)?(?:INDEX|KEY)\b"
    r"|(?:ADD|DROP)\s+(?:CONSTRAINT|FOREIGN\s+KEY|CHECK)\b|ADD\s+(?:UNIQUE|FULLTEXT|SPATIAL)\b"
    r"|AUTO_INCREMENT\b|COMMENT\b|(?:ENABLE|DISABLE)\s+KEYS|FORCE\s*$|ENGINE\s*=?\s*INNODB\s*$"
    r"|ROW_FORMAT\b|STATS_\w+\b|ALGORITHM\b|LOCK\b|NOWAIT\b|WAIT\b|ADD\s+PARTITION\b|ANALYZE\s+PARTITION\b"
    r")",
    _FLAGS,
)
_RENAMED_COLUMN = re.compile(rf"\s*RENAME\s+COLUMN\s+{_IF}(?P<old>{_NAME})\s+TO\s+(?P<new>{_NAME})", _FLAGS)
_CHANGED_COLUMN = re.compile(rf"\s*CHANGE\s+(?:COLUMN\s+)?{_IF}(?P<old>{_NAME})\s+(?P<new>{_NAME})", _FLAGS)
_DROPPED_COLUMN = re.compile(rf"\s*DROP\s+(?:COLUMN\s+)?{_IF}(?P<name>{_NAME})", _FLAGS)
_ADDED = re.compile(
    r"\s*ADD\b(?!\s+(?:UNIQUE|FULLTEXT|SPATIAL|PRIMARY|INDEX|KEY|CONSTRAINT|FOREIGN|CHECK|PARTITION)\b)", _FLAGS
)
_FILLS_NULLS = re.compile(r"\s*(?:MODIFY|CHANGE)\b.*\bNOT\s+NULL\b", _FLAGS)


class Effect(StrEnum):
    """TRUNCATED: no row is left. CHANGED: columns or rows may have changed. ANOTHER: the name has another table now.

    REPLACED: a column has a name that another one had, or values that no event shows; the catalogue may look as before.
    ROWS: the statement changes rows that have no events.
    """

    TRUNCATED = "truncated"
    CHANGED = "changed"
    REPLACED = "replaced"
    ANOTHER = "another"
    ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEffect:
    """What a statement does to one table. `table` None: every table of `database`; if that is "", every table."""

    effect: Effect
    database: str
    table: str | None

    def concerns(self, database: str, table: str) -> bool:
        return self.database in ("", database) and self.table in (None, table)


def begins_transaction(statement: str) -> bool:
    """Returns whether rows and other statements may follow in the same transaction. Else it is a transaction alone."""
    return _BEGIN.match(statement) is not None


def ends_transaction(statement: str) -> bool:
    """Returns whether the statement ends a transaction: COMMIT, or ROLLBACK.

    The log has a transaction with ROLLBACK only if it changed tables without transactions, whose changes stay.
    """
    words = statement.split(None, 1)
    first = words[0].upper() if words else ""
    return first == "COMMIT" or (first == "ROLLBACK" and not is_partial_rollback(statement))


def is_partial_rollback(statement: str) -> bool:
    """Returns whether the statement takes back a part of the rows that the log has just shown."""
    return _ROLLBACK_TO.match(statement) is not None


def effects_of(statement: str, database: str, *, is_strict: bool = True) -> tuple[TableEffect, ...]:
    """Returns what the statement does to tables. `database`: the one in which it ran, for names without one.

    `is_strict`: it ran in a strict SQL mode, in which the server changes no value that a column can no longer hold.
    """
    text = _COMMENT.sub(" ", _EXECUTED_COMMENT.sub(r" \1 ", _without_strings(statement)))
    if _TRANSACTION.match(text):
        return ()
    return tuple(_effects(_WITH_VARIABLES.sub("", text), database, is_strict=is_strict))


def _effects(text: str, database: str, *, is_strict: bool) -> Iterator[TableEffect]:
    if (found := _TRUNCATE.match(text)) is not None:
        yield _effect(Effect.TRUNCATED, found["table"], database)
    elif (found := _ALTER.match(text)) is not None:
        yield from _of_alter(found, database, is_strict=is_strict)
    elif (found := _DATABASE.match(text)) is not None:
        yield TableEffect(effect=Effect.ANOTHER, database=_unquoted(found["database"]), table=None)
    elif names := list(_made_again(text)):
        for name in names:
            yield _effect(Effect.ANOTHER, name, database)
    elif _ROWS.match(text):
        yield from _of_rows(text, database)
    elif _OF_A_TABLE.match(text) and not _OF_A_TEMPORARY_TABLE.match(text):
        yield TableEffect(effect=Effect.CHANGED, database="", table=None)


def _of_rows(text: str, database: str) -> Iterator[TableEffect]:
    """Yields the table that an INSERT, a REPLACE or a LOAD writes to; of another statement, every name in it."""
    into = _INTO.match(text)
    if into is not None:
        yield _effect(Effect.ROWS, into["table"], database)
        return
    for name in sorted({_unquoted(name) for name in re.findall(_NAME, text)}):
        yield TableEffect(effect=Effect.ROWS, database="", table=name)


def _made_again(text: str) -> Iterator[str]:
    """Yields the names that a DROP, a RENAME or a CREATE OR REPLACE takes from a table or gives to another one."""
    if (found := _DROP.match(text)) is not None:
        yield from re.findall(_TABLE, found["tables"])
    elif (found := _REPLACE.match(text)) is not None:
        yield found["table"]
    elif (found := _RENAME.match(text)) is not None:
        for pair in _RENAMED.finditer(found["rest"]):
            yield from (pair["old"], pair["new"])


def _of_alter(found: re.Match[str], database: str, *, is_strict: bool) -> Iterator[TableEffect]:
    clauses = list(_clauses(found["rest"]))
    if all(_HARMLESS_CLAUSE.match(clause) for clause in clauses):
        return
    is_lenient = not is_strict or found["ignore"] is not None
    if _takes_names(clauses) or (is_lenient and any(map(_FILLS_NULLS.match, clauses))):
        yield _effect(Effect.REPLACED, found["table"], database)
    else:
        yield _effect(Effect.CHANGED, found["table"], database)
    for clause in clauses:
        renamed = _NAMES_AFTER_RENAME.match(clause.strip())
        exchanged = re.search(rf"\bWITH\s+TABLE\s+(?P<new>{_TABLE})", clause, _FLAGS)
        if renamed is not None and not re.match(r"\s*RENAME\s+COLUMN\b", clause, _FLAGS):
            yield _effect(Effect.ANOTHER, found["table"], database)
            yield _effect(Effect.ANOTHER, renamed["new"], database)
        elif exchanged is not None:
            yield _effect(Effect.ANOTHER, exchanged["new"], database)


def _takes_names(clauses: Sequence[str]) -> bool:
    """Returns whether a column gets a name that a column of the table had before the statement, maybe itself."""
    given, taken = set[str](), set[str]()
    for clause in clauses:
        renamed = _RENAMED_COLUMN.match(clause) or _CHANGED_COLUMN.match(clause)
        dropped = _DROPPED_COLUMN.match(clause)
        if renamed is not None and _unquoted(renamed["old"]).lower() != _unquoted(renamed["new"]).lower():
            taken.add(_unquoted(renamed["old"]).lower())
            given.add(_unquoted(renamed["new"]).lower())
        elif dropped is not None:
            taken.add(_unquoted(dropped["name"]).lower())
        elif _ADDED.match(clause):
            given |= {_unquoted(name).lower() for name in re.findall(_NAME, clause)}
    return not given.isdisjoint(taken)


def _clauses(rest: str) -> Iterator[str]:
    """Yields the clauses of an ALTER TABLE, which commas outside of parentheses divide."""
    depth, start = 0, 0
    for place, character in enumerate(rest):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            yield rest[start:place]
            start = place + 1
    yield rest[start:]


def _effect(effect: Effect, name: str, database: str) -> TableEffect:
    parts = re.findall(_NAME, name)
    return TableEffect(
        effect=effect,
        database=_unquoted(parts[0]) if len(parts) > 1 else database,
        table=_unquoted(parts[-1]),
    )


def _without_strings(statement: str) -> str:
    """Returns the statement with empty strings: they may hold anything, such as the words of another statement.

    Double quotes stay, since they enclose names in the SQL mode ANSI_QUOTES.
    """
    return _STRING.sub("''", statement)


def _unquoted(name: str) -> str:
    quote = name[0]
    return name[1:-1].replace(2 * quote, quote) if quote in '`"' else name
