"""Divides a statement into words, names, texts and signs, as the servers do. Pure.

Comments are left out, except those that the servers execute: their content is a part of the statement.
"""

import re
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
"""Of the SQL mode: double quotes enclose names; a backslash in a text is a character like any other."""


class TokenKind(StrEnum):
    """WORD: a keyword, a number, or a name without quotes. NAME: one in quotes. TEXT: a string. SIGN: one character."""

    WORD = "word"
    NAME = "name"
    TEXT = "text"
    SIGN = "sign"


@dataclass(frozen=True, slots=True)
class Token:
    """A part of a statement. `text` is without quotes; that of a string is empty, since it may hold anything."""

    kind: TokenKind
    text: str

    @property
    def word(self) -> str:
        """The word in capitals, "" for what is no word."""
        return self.text.upper() if self.kind is TokenKind.WORD else ""

    @property
    def is_name(self) -> bool:
        return self.kind in (TokenKind.WORD, TokenKind.NAME)

    def is_sign(self, sign: str) -> bool:
        return self.kind is TokenKind.SIGN and self.text == sign


_END = Token(TokenKind.SIGN, "")
"""Stands behind the last token."""


@dataclass(frozen=True, slots=True)
class TableInText:
    """A table as a statement names it. `database` is "" where it names none."""

    database: str
    table: str


def tokens(statement: str, sql_mode: int | None) -> Iterator[Token]:
    """Yields the parts of a statement. `sql_mode` None: not known, so double quotes may enclose a name."""
    pattern, place, is_inside = _pattern(sql_mode), 0, False
    while (found := pattern.match(statement, place)) is not None:
        place = found.end()
        match found.lastgroup:
            case "opened":
                is_inside = True
            case "closed" if is_inside:
                is_inside = False
            case "closed":
                place = found.start() + 1
                yield Token(TokenKind.SIGN, "*")
            case "back" | "double":
                yield Token(TokenKind.NAME, _unquoted(found[0]))
            case "text":
                yield Token(TokenKind.TEXT, "")
            case "word":
                yield Token(TokenKind.WORD, found[0])
            case "sign":
                yield Token(TokenKind.SIGN, found[0])


@lru_cache
def _pattern(sql_mode: int | None) -> re.Pattern[str]:
    mode = ANSI_QUOTES if sql_mode is None else sql_mode
    has_escapes, has_names = not mode & NO_BACKSLASH_ESCAPES, bool(mode & ANSI_QUOTES)
    escapes_in_names = has_escapes and sql_mode is None
    texts = [_quoted("'", has_escapes=has_escapes)]
    if not has_names:
        texts.append(_quoted('"', has_escapes=has_escapes))
    double = rf"|(?P<double>{_quoted(chr(34), has_escapes=escapes_in_names)})" if has_names else ""
    return re.compile(
        r"(?P<left_out>[\x00-\x20]++|--(?=[\x00-\x20]|\Z)[^\n]*+|\#[^\n]*+|/\*(?!M?!).*?(?:\*/|\Z))"
        r"|(?P<opened>/\*M?!\d*+)|(?P<closed>\*/)"
        rf"|(?P<back>{_quoted('`', has_escapes=False)}){double}|(?P<text>{'|'.join(texts)})"
        r"|(?P<word>[\w$\u0080-\U0010ffff]++)|(?P<sign>.)",
        re.DOTALL,
    )


def _quoted(quote: str, *, has_escapes: bool) -> str:
    part = rf"[^{quote}\\]++|\\.|{quote}{quote}" if has_escapes else rf"[^{quote}]++|{quote}{quote}"
    return f"{quote}(?:{part})*+{quote}"


def _unquoted(name: str) -> str:
    quote = name[0]
    return name[1:-1].replace(2 * quote, quote)


class Words:
    """Reads tokens from left to right. What it takes is gone; what it does not take is read next."""

    def __init__(self, parts: Iterator[Token]) -> None:
        self._parts = parts
        self._ahead: deque[Token] = deque()

    def peek(self, distance: int = 0) -> Token:
        """Returns a token without taking it: the next one, or one behind it."""
        while len(self._ahead) <= distance:
            self._ahead.append(next(self._parts, _END))
        return self._ahead[distance]

    @property
    def is_over(self) -> bool:
        return self.peek() is _END

    def pop(self) -> Token:
        found = self.peek()
        self._ahead.popleft()
        return found

    def take(self, *words: str) -> bool:
        """Takes these words if they come next, all of them."""
        if any(self.peek(number).word != word for number, word in enumerate(words)):
            return False
        for _ in words:
            self.pop()
        return True

    def take_any(self, words: Collection[str]) -> str:
        """Takes the next word if it is one of these. Returns it, "" for none."""
        word = self.peek().word
        return self.pop().word if word in words else ""

    def take_sign(self, sign: str) -> bool:
        is_next = self.peek().is_sign(sign)
        if is_next:
            self.pop()
        return is_next

    def take_name(self) -> str | None:
        return self.pop().text if self.peek().is_name else None

    def take_table(self) -> TableInText | None:
        """Takes the name of a table, with its database or without."""
        first = self.take_name()
        if first is None or not self.take_sign("."):
            return None if first is None else TableInText("", first)
        second = self.take_name()
        return None if second is None else TableInText(first, second)

    def take_exists(self) -> None:
        """Takes IF EXISTS, or IF NOT EXISTS."""
        if not self.take("IF", "EXISTS"):
            self.take("IF", "NOT", "EXISTS")

    def take_wait(self) -> None:
        """Takes how long MariaDB waits for a lock."""
        if not self.take("NOWAIT") and self.take("WAIT"):
            self.pop()

    def skip_to(self, words: Collection[str]) -> str:
        """Takes everything up to one of these words outside of parentheses, and that. Returns it, "" for none."""
        depth = 0
        while not self.is_over:
            found = self.pop()
            depth += found.is_sign("(") - found.is_sign(")")
            if not depth and found.word in words:
                return found.word
        return ""

    def rest(self) -> Iterator[Token]:
        """Yields everything that is left."""
        while not self.is_over:
            yield self.pop()
