"""Versions of Debezium events, which decide the newer one: by position in log and files, or by fields of the events."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_pipeline.sources.copied_rows import TEXT
from cdc_pipeline.sources.debezium.envelope import EnvelopeEvent, Fields
from cdc_pipeline.sources.debezium.one_line import LineRefused, Undecodable, parsed_json
from cdc_pipeline.sources.version_text import prefixed_texts

_POSTGRES = "postgresql"
_HALF_BITS = 64
_ROW_BITS = 32
_POSITION_DIGITS = 32
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_WITH_EXPONENT = re.compile(r"-?[0-9](?:\.[0-9]+[eE][+-]?|[eE][+-])[0-9]{1,3}")
"""Floats as programs print them: `9e+16`, `1.0E17`. Not `1E5`, which may be hexadecimal."""
_COMMIT_LSN = re.compile(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8}:(?:[0-9A-Fa-f]{4}|[0-9A-Fa-f]{16})")
"""Of SQL Server, and with longer numbers of Db2."""
_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}(?::\d{2})?)(?:\.(\d{1,9}))?(Z|[+-]\d{2}(?::?\d{2})?)?", re.ASCII
)
_NANOSECOND_DIGITS = 9
_SEQUENCE = re.compile(r'\["([0-9]{1,20})","[0-9]{1,20}"\]')
_LOG_FILE = re.compile(r"[^\s/]*[A-Za-z_-][^\s/]*\.([0-9]{3,})")
_LOG_FILE_ANYWHERE = re.compile(r"[^\s/:]*[A-Za-z_-]\.([0-9]{6,})")
"""In a field that may hold something else: neither a time nor the version of a program has this form."""
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_LSN_DIGITS = 8
_END, _NEGATIVE_END = "!", ":"
_COUNT_DIGITS = 4
_FIELD = re.compile(rf"([pn{TEXT}])([0-9a-f.]*)[{_END}{_NEGATIVE_END}]")
_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_HASH_DIGITS = 16
_WHOLE_DIGITS = 20
_MOST_WHOLE = 1 << _HALF_BITS
_FILE_NUMBERS, _LAST_ROW = 1 << 32, (1 << 32) - 1
_LONGEST_TEXT = 1_000
DELETE_RANK, UPSERT_RANK = 0, 1
_CONTENT = json.JSONEncoder(default=str, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


class Unordered(LineRefused):
    """An event that lacks a field that would order it; the text says which."""


def encode_place(position: int, place: int) -> str:
    """Encodes (position in the source's log, offset in the files) as 32-16 hex digits that sort like the pair."""
    return "%032x-%016x" % (position, place)  # noqa: UP031 - by a third faster, and called for each event


def place_versions(position: int, places: npt.NDArray[np.int64]) -> pa.Array:
    """Returns what `encode_place` returns, for many offsets at one position."""
    return prefixed_texts(f"{position:0{_POSITION_DIGITS}x}-", places)


def source_position(event: EnvelopeEvent) -> int:
    """Returns the event's position in its source's log, comparable between stream partitions; 0 if it has none.

    PostgreSQL: (last commit before it, its own LSN), since transactions come in the order of their commits, not of
    their writes; a row of an incremental snapshot has those of the last change. Oracle: (SCN of the commit, its own
    SCN). SQL Server and Db2: the LSN of the commit. Sources with log files: (file number, position, row). MongoDB:
    (time, order in the second). AWS DMS: (time in milliseconds, microsecond in it). Others: the time in milliseconds.
    """
    source = event.source
    if "scn" in source or "commit_scn" in source or "commit_lsn" in source:
        of_commit = _commit_position(source)
        if of_commit is not None:
            return of_commit
    own = _whole(source.get("lsn"))
    if own is None and source.get("connector") == _POSTGRES:
        own = _lsn_before(source.get("sequence"))
    if own is not None:
        committed = _last_commit(source.get("sequence"))
        return (own if committed is None else committed) << _HALF_BITS | own
    file, position = source.get("file"), _whole(source.get("pos"))
    # The pattern takes quadratic time in the length of the name.
    name = file if isinstance(file, str) and len(file) <= _LONGEST_TEXT else ""
    numbered = _LOG_FILE.fullmatch(name)
    number = None if numbered is None else _whole(numbered[1])
    if number is not None and number < _FILE_NUMBERS and position is not None:
        row = min(_whole(source.get("row")) or 0, _LAST_ROW)
        return (number << _HALF_BITS | position) << _ROW_BITS | row
    time = _whole(source.get("ts_ms")) or 0
    return time << _ROW_BITS | min(_whole(source["ord"]) or 0, _LAST_ROW) if "ord" in source else time


def _commit_position(source: Fields) -> int | None:
    """Returns the position of the commit of Oracle, SQL Server and Db2; None for other sources, and for a snapshot."""
    scn, commit_scn, commit_lsn = (source.get(name) for name in ("scn", "commit_scn", "commit_lsn"))
    if _whole(commit_scn) is not None or _whole(scn) is not None:
        own = _whole(scn) or 0
        return (_whole(commit_scn) or own) << _HALF_BITS | own
    if isinstance(commit_lsn, str) and _COMMIT_LSN.fullmatch(commit_lsn):
        return int(commit_lsn.replace(":", ""), 16)
    return None


def is_exact(event: EnvelopeEvent) -> bool:
    """Returns whether `source_position` rises with every transaction. If it does not rise, the event was sent twice."""
    source = event.source
    return _last_commit(source.get("sequence")) is not None or (
        source.get("file") is not None and source.get("pos") is not None
    )


def sequence_version(event: EnvelopeEvent, fields: Sequence[str], *, rank: int, content: Sequence[object]) -> str:
    """Returns `<sequence>~<rank><hash>`. At equal sequences an upsert beats a delete, else the greater hash wins."""
    return version_in_sequence(_sequence_of(event, fields), rank=rank, content=content)


def version_in_sequence(sequence_text: str, *, rank: int, content: Sequence[object]) -> str:
    """Returns the version of an event of this content, whose fields were encoded before."""
    digest = hashlib.sha256(_CONTENT.encode(content).encode()).hexdigest()[:_HASH_DIGITS]
    return f"{sequence_text}~{rank}{digest}"


def truncate_version(event: EnvelopeEvent, fields: Sequence[str]) -> str:
    """Returns the version of a truncate, which is above every event with the same sequence."""
    return f"{_sequence_of(event, fields)}~~"


def _sequence_of(event: EnvelopeEvent, fields: Sequence[str]) -> str:
    """Encodes the fields. A row that a snapshot read was not committed at a place of the log: what it lacks is 0."""
    if not event.is_of_snapshot:
        return sequence(event.value, fields)
    return "".join(encoded_field(_value(event.value, name) or 0, name) for name in fields)


def sequence(value: Fields, fields: Sequence[str]) -> str:
    """Encodes the fields as one text that sorts like their tuple. Raises Unordered if a field is missing or NULL."""
    return "".join(encoded_field(_found(value, name), name) for name in fields)


def _value(value: Fields, dotted: str) -> object:
    found: object = value
    for name in dotted.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _found(value: Fields, dotted: str) -> object:
    found = _value(value, dotted)
    if found is None:
        raise Unordered(f"has no version: {dotted} is missing or NULL")
    return found


def encoded_field(value: object, name: str) -> str:
    """Encodes one field. Numbers sort before texts. Raises Unordered for a value that is neither, or no UTF-8.

    A text that holds a JSON list, such as PostgreSQL's source.sequence, is encoded item by item.
    """
    if isinstance(value, int | Decimal) and not isinstance(value, bool) and Decimal(value).is_finite():
        return _number(format(Decimal(value), "f"))
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            raise Unordered(f"has no version: {name} has {len(value)} characters, more than {_LONGEST_TEXT}")
        if _NUMBER.fullmatch(value):
            return _number(value)
        if _WITH_EXPONENT.fullmatch(value):
            return _number(format(Decimal(value), "f"))
        numbered = (_LOG_FILE if name.endswith("file") else _LOG_FILE_ANYWHERE).fullmatch(value)
        if numbered is not None:
            return _number(numbered[1])
        items = _list_in(value)
        if items is not None:
            return "".join(encoded_field(item, name) for item in _filled(items))
        try:
            return f"{TEXT}{_comparable(value).encode().hex()}{_END}"
        except UnicodeEncodeError as error:
            raise Unordered(f"has no version: {name} is not UTF-8") from error
    raise Unordered(f"has no version: {name} is neither a number nor a text")


def _comparable(text: str) -> str:
    """Returns a time or an LSN of PostgreSQL in the one form that sorts like it. Another text stays as it is.

    A time is compared in UTC and to the nanosecond, also where writers leave out zeros. Without a zone it is in UTC.
    """
    lsn = _LSN.fullmatch(text)
    if lsn is not None:
        return "/".join(half.upper().zfill(_LSN_DIGITS) for half in lsn.groups())
    found = _TIME.fullmatch(text)
    if found is None:
        return text
    day, clock, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{zone or 'Z'}").astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    return f"{moment.replace(tzinfo=None).isoformat()}.{(fraction or '').ljust(_NANOSECOND_DIGITS, '0')}Z"


def _list_in(text: str) -> list[Any] | None:
    try:
        items = parsed_json(text) if text.startswith("[") else None
    except Undecodable:
        return None
    return items if isinstance(items, list) else None


def _filled(items: Sequence[object]) -> list[object]:
    """Fills a missing item with the first one that is there.

    PostgreSQL's source.sequence has no last commit right after a start; the event's own LSN takes its place.
    """
    present = [item for item in items if item is not None]
    return [present[0] if item is None and present else item for item in items]


def _number(text: str) -> str:
    """Encodes a number as sign, count of digits, digits: `p…`, or `n…` with complemented digits if it is negative."""
    whole, _, fraction = text.removeprefix("-").partition(".")
    digits, fraction = whole.lstrip("0"), fraction.rstrip("0")
    magnitude = f"{len(digits):0{_COUNT_DIGITS}}{digits}" + (f".{fraction}" if fraction else "")
    if text.startswith("-") and (digits or fraction):
        return f"n{magnitude.translate(_COMPLEMENT)}{_NEGATIVE_END}"
    return f"p{magnitude}{_END}"


def texts_in(version: str) -> tuple[bool, ...]:
    """Returns, for each field that a version encodes, whether it is a text and no number."""
    return tuple(kind == TEXT for kind, _ in _FIELD.findall(version))


def written_sequence(version: str) -> str:
    """Returns the values of the fields that a version encodes, as the events had them, separated by commas.

    A version that is a position in a log has none and stays as it is.
    """
    fields = _FIELD.findall(version)
    return ", ".join(_written(kind, text) for kind, text in fields) or version


def _written(kind: str, text: str) -> str:
    if kind == TEXT:
        return bytes.fromhex(text).decode(errors="backslashreplace")
    digits = text.translate(_COMPLEMENT) if kind == "n" else text
    number = digits[_COUNT_DIGITS:]
    whole = "0" + number if not number or number.startswith(".") else number
    return f"-{whole}" if kind == "n" else whole


def _last_commit(sequence_text: object) -> int | None:
    # What the connector writes is not parsed as JSON, which takes five times as long: for each event of PostgreSQL.
    found = _SEQUENCE.fullmatch(sequence_text) if isinstance(sequence_text, str) else None
    if found is not None:
        return _whole(found[1])
    items = _list_in(sequence_text) if isinstance(sequence_text, str) else None
    return _whole(items[0]) if items else None


def _lsn_before(sequence_text: object) -> int | None:
    """Returns the LSN of the last change, as `source.sequence` shows it in a row of an incremental snapshot."""
    items = _filled(_list_in(sequence_text) or []) if isinstance(sequence_text, str) else []
    return _whole(items[-1]) if items else None


def _whole(value: object) -> int | None:
    """Returns a whole number that is not negative and fits its part of a position, None for any other value."""
    if isinstance(value, str) and len(value) <= _WHOLE_DIGITS and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int and 0 <= value < _MOST_WHOLE else None
