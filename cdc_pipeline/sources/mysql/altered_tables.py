"""Says what an ALTER TABLE does to rows and columns, by its clauses, and finds foreign keys that cascade. Pure."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cdc_pipeline.sources.mysql.tokens import TableInText, Token, TokenKind, Words, tokens

_NAME = r"[^ ()=,.']+"
_TABLE = rf"{_NAME}(?: \. {_NAME})?"
_IF = r"(?: IF (?:NOT )?EXISTS)?"
_VALUE = r"(?: =)? [^ ()=,.]+"
_INDEX_OPTION = (
    rf"(?: (?:KEY_BLOCK_SIZE|COMMENT|CLUSTERING|(?:SECONDARY_)?ENGINE_ATTRIBUTE){_VALUE}| USING \w+"
    rf"| WITH PARSER {_NAME}| (?:IN)?VISIBLE| (?:NOT )?IGNORED)*"
)
_INDEX = rf"(?:(?:UNIQUE|FULLTEXT|SPATIAL)(?: (?:INDEX|KEY))?|INDEX|KEY){_IF}(?: {_NAME})?(?: USING \w+)? \(\)"
_FOREIGN_KEY = rf"FOREIGN KEY{_IF}(?: {_NAME})? \(\) REFERENCES {_TABLE} \(\)(?: MATCH \w+)?"
_TABLE_OPTION = (
    r"(?:(?:ALGORITHM|LOCK|AUTO_INCREMENT|AVG_ROW_LENGTH|CHECKSUM|COMMENT|COMPRESSION|DELAY_KEY_WRITE"
    r"|ENCRYPT(?:ION|ED|ION_KEY_ID)|(?:SECONDARY_)?ENGINE_ATTRIBUTE|INSERT_METHOD|KEY_BLOCK_SIZE|M(?:AX|IN)_ROWS|PACK_KEYS"
    r"|PAGE_(?:CHECKSUM|COMPRESSED|COMPRESSION_LEVEL)|ROW_FORMAT|STATS_\w+|TRANSACTIONAL"
    rf"|(?:DEFAULT )?(?:CHARACTER SET|CHARSET|COLLATE)){_VALUE}|ENGINE(?: =)? INNODB)"
)
"""A character set is only the default of columns that come later."""
_HARMLESS = re.compile(
    rf"ADD (?:CONSTRAINT{_IF}(?: (?!PRIMARY ){_NAME})? )?(?:{_INDEX}{_INDEX_OPTION}"
    rf"|{_FOREIGN_KEY}(?: ON (?:DELETE|UPDATE) (?:RESTRICT|NO ACTION))*|CHECK \(\)(?: (?:NOT )?ENFORCED)?)"
    rf"|DROP (?:INDEX|KEY|CONSTRAINT|CHECK|FOREIGN KEY){_IF} (?!`?PRIMARY`?$){_NAME}"
    rf"|RENAME (?:INDEX|KEY){_IF} {_NAME} TO {_NAME}"
    rf"|ALTER (?:INDEX|KEY){_IF} {_NAME} (?:(?:IN)?VISIBLE|(?:NOT )?IGNORED)"
    rf"|{_TABLE_OPTION}(?: {_TABLE_OPTION})*|(?:ENABLE|DISABLE) KEYS|FORCE"
    rf"|ADD PARTITION{_IF}(?: (?:NO_WRITE_TO_BINLOG|LOCAL))?(?: \(\)| PARTITIONS \d+)|ANALYZE PARTITION {_NAME}"
)
"""Clauses that leave rows and columns as they are, as `_shown` writes them, from their first word to their last."""
_LOSES_ROWS = re.compile(r"\b(?:DROP|TRUNCATE|EXCHANGE) PARTITION\b")
_CASCADE = re.compile(r"\b(FOREIGN KEY\b.*)?\bREFERENCES .*\bON (?:DELETE|UPDATE) (?:CASCADE|SET NULL)\b")
_NO_COLUMN = frozenset(
    {
        "CHECK",
        "CONSTRAINT",
        "FOREIGN",
        "FULLTEXT",
        "INDEX",
        "KEY",
        "PARTITION",
        "PRIMARY",
        "SPATIAL",
        "UNIQUE",
    }
)
"""Words behind ADD and DROP that are no column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """What the clauses of an ALTER TABLE do.

    `is_harmless`: rows and columns stay as they are. `takes_names`: a column gets a name that a column of the table had
    before, maybe itself. `loses_rows`: a partition loses its rows. `cascades`: by a foreign key the engine changes rows
    without events. `column_cascades`: so it does if the server makes a foreign key of the REFERENCES of a column.
    `new_names`: those that the table gets. `exchanged`: tables that get its rows, or whose rows it gets.
    """

    is_harmless: bool
    takes_names: bool
    loses_rows: bool
    cascades: bool
    column_cascades: bool
    new_names: tuple[TableInText, ...]
    exchanged: tuple[TableInText, ...]


def alteration_of(clauses: Iterable[Token]) -> Alteration:
    """Reads what an ALTER TABLE has behind the name of its table."""
    divided = list(_divided(clauses))
    shown = [_shown(clause) for clause in divided]
    keys = [bool(found[1]) for found in map(_CASCADE.search, shown) if found is not None]
    return Alteration(
        is_harmless=all(map(_HARMLESS.fullmatch, shown)),
        takes_names=_takes_names(divided),
        loses_rows=any(map(_LOSES_ROWS.search, shown)),
        cascades=True in keys,
        column_cascades=False in keys,
        new_names=tuple(_new_names(divided)),
        exchanged=tuple(_exchanged(divided)),
    )


def cascading_key(written: str) -> str | None:
    """Returns the name of the first foreign key with CASCADE or SET NULL in the text of SHOW CREATE TABLE."""
    words = Words(tokens(written, 0))
    words.skip_to(("TABLE",))
    words.take_table()
    words.take_sign("(")
    for clause in _divided(words.rest()):
        if _CASCADE.search(_shown(clause)):
            named = Words(iter(clause))
            return (named.take("CONSTRAINT") and named.take_name()) or "without a name"
    return None


def _divided(clauses: Iterable[Token]) -> Iterator[list[Token]]:
    """Yields the clauses, which commas outside of parentheses divide."""
    depth, clause = 0, list[Token]()
    for token in clauses:
        depth += token.is_sign("(") - token.is_sign(")")
        if token.is_sign(",") and not depth:
            yield clause
            clause = []
        else:
            clause.append(token)
    yield clause


def _shown(clause: Sequence[Token]) -> str:
    """Returns a clause in capitals, with one space between tokens, and without what texts and parentheses hold."""
    depth, parts = 0, list[str]()
    for token in clause:
        depth -= token.is_sign(")")
        if not depth:
            parts.append(_shown_token(token))
        depth += token.is_sign("(")
    return " ".join(parts).replace("( )", "()")


def _shown_token(token: Token) -> str:
    if token.kind is TokenKind.NAME:
        return "`" + re.sub(r"\W", "_", token.text).upper() + "`"
    return "''" if token.kind is TokenKind.TEXT else token.text.upper()


def _takes_names(clauses: Collection[Sequence[Token]]) -> bool:
    given, taken = set[str](), set[str]()
    for clause in clauses:
        words = Words(iter(clause))
        if words.take("RENAME", "COLUMN") or words.take("CHANGE"):
            words.take("COLUMN")
            words.take_exists()
            old = words.take_name() or ""
            words.take("TO")
            new = words.take_name() or ""
            if old.lower() != new.lower():
                taken.add(old.lower())
                given.add(new.lower())
        elif words.take("DROP") and words.peek().word not in _NO_COLUMN:
            words.take("COLUMN")
            words.take_exists()
            taken.add((words.take_name() or "").lower())
        elif words.take("ADD") and words.peek().word not in _NO_COLUMN:
            given |= {token.text.lower() for token in words.rest() if token.is_name}
    return not given.isdisjoint(taken)


def _new_names(clauses: Iterable[Sequence[Token]]) -> Iterator[TableInText]:
    for clause in clauses:
        words = Words(iter(clause))
        if words.take("RENAME") and words.peek().word not in ("COLUMN", "INDEX", "KEY"):
            _ = words.take_any(("TO", "AS")) or words.take_sign("=")
            if (table := words.take_table()) is not None:
                yield table


def _exchanged(clauses: Iterable[Sequence[Token]]) -> Iterator[TableInText]:
    for clause in clauses:
        words = Words(iter(clause))
        if words.take("EXCHANGE"):
            words.skip_to(("WITH",))
            is_named = words.take("TABLE")
        else:
            is_named = words.take("CONVERT", "TABLE")
        if is_named and (table := words.take_table()) is not None:
            yield table
