"""The limits of one line, and the boundary that turns every failure of a line into its refusal."""

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, TypeVar

import msgspec

from cdc_pipeline.errors import CdcError, storable
from cdc_pipeline.record import TableName

MOST_DIGITS = 4_300
"""Most digits of a number that is written out, before or after the point: Python's own limit for whole numbers."""
DEEPEST = 100
"""Most levels of nested objects and lists. A row of Debezium has about ten."""
_SHOWN_CHARACTERS = 300
_END_BYTES = 300
"""Of a schema, its end alone is looked up: there the connector writes the name of the table."""
BLANK: Final = object()
"""What `json_of_line` returns for a blank line."""
UNREAD: Final = object()
"""What `fast_json` returns for a text that is left to `slow_json`."""

Done = TypeVar("Done")


class LineRefused(ValueError):
    """A line that cannot be applied; the text says why.

    `version`: that of its event, None if it is not known. `table`: that of its file, None if it is not known.
    """

    version: str | None = None
    table: TableName | None = None


class TableRefused(LineRefused):
    """A line of a table for which pipeline.yml and the source do not agree."""


class Undecodable(LineRefused):
    """A line that cannot be read."""


def attempt(work: Callable[[], Done]) -> Done | LineRefused:
    """Runs `work`, which decodes lines, and returns its result, or why the lines are refused.

    `work` makes no call to the outside, so every failure is the fault of the lines. Streams of databases use it for the
    events of one table; there a failure is the fault of the table. MemoryError is raised: it is not the lines' fault.
    """
    try:
        return work()
    except LineRefused as refused:
        return refused
    except MemoryError:
        raise
    except CdcError as error:
        table = TableRefused(str(error))
        table.__cause__ = error
        return table
    except Exception as error:  # noqa: BLE001 - the one boundary: a line may hold anything, and must not end its stream
        refusal = Undecodable(f"cannot be read: {type(error).__name__}: {error}")
        refusal.__cause__ = error
        return refusal


def json_of_line(line: bytes) -> Any:
    """Parses a line of UTF-8 as `parsed_json` does. Returns BLANK for a blank line."""
    document = fast_json(line)
    if document is not UNREAD:
        return document
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Undecodable(f"is no JSON: {error}") from error
    return slow_json(text) if text.strip() else BLANK


def parsed_json(text: str | bytes, decoder: json.JSONDecoder | None = None) -> Any:
    """Parses JSON. Numbers keep every digit: those that are not whole become Decimals.

    Raises Undecodable for what is no JSON, and for a document beyond the limits of depth or digits. Raises
    UnicodeDecodeError for bytes that are no text.
    """
    document = fast_json(text)
    if document is not UNREAD:
        return document
    return slow_json(text if isinstance(text, str) else text.decode(), decoder)


def header_json(text: str | bytes) -> Any:
    """Parses JSON as `parsed_json` does, and accepts control characters in texts.

    Kafka Connect's default converter of headers escapes quotes and backslashes alone.
    """
    return parsed_json(text, _HEADER_JSON)


def fast_json(text: str | bytes) -> Any:
    """Parses JSON with msgspec, which accepts less than `slow_json` and returns the same for what it accepts.

    Returns UNREAD for what it refuses, and for a text that may be too deep.
    """
    if isinstance(text, bytes) and text.startswith(_SCHEMA):
        document = _SCHEMAS.document(text)
        if document is not UNREAD:
            return document
    if (_brackets(text) if isinstance(text, bytes) else text.count("{") + text.count("[")) > DEEPEST:
        return UNREAD
    try:
        return _FAST_JSON.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return UNREAD


def fast_objects(lines: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """Parses many lines in one call. Returns what `fast_json` returns for each; None if one of them may be no object.

    Joins the lines with numbers as separators. If each separator lies between two documents, each line is exactly one
    document. Returns None otherwise.
    """
    text = b"[" + _BETWEEN_LINES.join(lines) + b"]"
    if text.count(b"{") + text.count(b"[") > DEEPEST + len(lines) and max(map(_brackets, lines)) > DEEPEST:
        return None
    try:
        found = _FAST_JSON.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    documents, between = found[::2], found[1::2]
    is_one_each = len(documents) == len(lines) == between.count(_BETWEEN) + 1
    return documents if is_one_each and frozenset(map(type, documents)) == {dict} else None


def slow_json(text: str, decoder: json.JSONDecoder | None = None) -> Any:
    """Parses JSON with the standard library, whose messages name the place of a mistake. Raises Undecodable."""
    try:
        document = (decoder or _JSON).decode(text)
    except Undecodable:
        raise
    except RecursionError as error:
        raise Undecodable(f"is no JSON that can be read: it is nested deeper than {DEEPEST}") from error
    except json.JSONDecodeError as error:
        raise Undecodable(f"is no JSON: {error}") from error
    except ValueError as error:  # Python's own limit for whole numbers; it needs no call per number
        raise Undecodable(f"holds a number of more than {MOST_DIGITS} digits") from error
    if text.count("{") + text.count("[") > DEEPEST:
        _check_depth(document)
    return document


def is_spelled_alike(one: object, other: object) -> bool:
    """Returns whether two values of JSON are surely one in the lake, which keeps 1.0 and 1.00 apart in a text."""
    return type(one) is type(other) and str(one) == str(other)


def printable(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """Returns a text that every store and terminal accepts, shortened."""
    return storable(text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)")


def is_storable(name: object) -> bool:
    """Returns whether a value is a text that can name a column in every store."""
    return isinstance(name, str) and bool(name) and "\0" not in name and printable(name) == name


class KnownSchemas:
    """The schemas that Kafka Connect writes into each record, most of its text. Each is parsed once, and shared.

    A record is `{"schema":S,"payload":P}`. `_known`: by where S ends and how, the text before P and the parsed S.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._known: dict[tuple[int, bytes], tuple[bytes, Any]] = {}

    def document(self, text: bytes) -> Any:
        """Returns what `slow_json` returns; UNREAD for what is no such record, or may be too deep."""
        end = text.find(_PAYLOAD)
        place = end, text[max(end - _END_BYTES, 0) : end]
        before, schema = self._known.get(place, (b"", None))
        if not before or not text.startswith(before):
            before, schema = text[: end + len(_PAYLOAD)], self._parsed(text[len(_SCHEMA) : max(end, 0)])
            if schema is UNREAD:
                return UNREAD
            self._keep(place, before, schema)
        payload = text[len(before) :].rstrip(_BLANKS)
        if not payload.endswith(b"}") or _brackets(payload) >= DEEPEST:
            return UNREAD
        try:
            return {"schema": schema, "payload": _FAST_JSON.decode(payload[:-1])}
        except (msgspec.DecodeError, ValueError, RecursionError):
            return UNREAD

    def _parsed(self, schema: bytes) -> Any:
        try:
            document = slow_json(schema.decode())
            _check_depth([document])
        except (Undecodable, UnicodeDecodeError):
            return UNREAD
        return document

    def _keep(self, place: tuple[int, bytes], before: bytes, schema: Any) -> None:
        if self._bytes + len(before) > self._most_bytes:
            self._known.clear()
            self._bytes = 0
        if len(before) <= self._most_bytes:
            self._known[place] = before, schema
            self._bytes += len(before)


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def _decimal(digits: str) -> Decimal:
    if len(digits) > MOST_DIGITS:
        raise _too_long(len(digits))
    try:
        number = Decimal(digits)
    except ArithmeticError as error:
        raise Undecodable(f"holds a number whose exponent has {len(digits)} digits") from error
    if abs(number.adjusted()) > MOST_DIGITS:
        raise _too_long(abs(number.adjusted()))
    return number


def _too_long(digits: int) -> Undecodable:
    return Undecodable(f"holds a number of {digits} digits: more than {MOST_DIGITS}")


def _check_depth(document: object) -> None:
    """Checks the depth level by level: recursion would fail for a deep document."""
    level: list[object] = [document]
    for _ in range(DEEPEST + 1):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
        if not level:
            return
    raise Undecodable(f"is nested deeper than {DEEPEST}")


def _children(node: object) -> Iterable[object]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


_BETWEEN = secrets.randbits(62)
_BETWEEN_LINES = b",%d," % _BETWEEN
_JSON = json.JSONDecoder(parse_float=_decimal)
_HEADER_JSON = json.JSONDecoder(parse_float=_decimal, strict=False)
_FAST_JSON = msgspec.json.Decoder(float_hook=_decimal)
_SCHEMA, _PAYLOAD, _BLANKS = b'{"schema":', b',"payload":', b" \t\r\n"
_SCHEMAS = KnownSchemas(most_bytes=4 << 20)
