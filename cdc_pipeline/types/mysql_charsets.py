"""MySQL's character sets -> Python's codecs, for those whose texts both read alike."""

import codecs
import re
from collections.abc import Mapping

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})
_CODECS = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp850": "cp850",
    "cp852": "cp852",
    "koi8r": "koi8-r",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "euckr": "cp949",
    "cp932": "cp932",
}
LATIN1, _EUCJPMS = "latin1", "eucjpms"


def _characters(codec: str, differing: Mapping[int, str]) -> str:
    """Returns the character of each byte: that of Python's codec, else a control character, unless MySQL's differs."""
    known = (bytes([octet]).decode(codec, errors="ignore") or chr(octet) for octet in range(256))
    return "".join(differing.get(octet, character) for octet, character in enumerate(known))


_TABLES = {
    LATIN1: _characters("cp1252", {}),
    "cp866": _characters("cp866", {0xFC: "ⁿ", 0xFD: "²"}),
    "koi8u": _characters("koi8-u", {0x95: "•"}),
}
"""MySQL's latin1 is Windows-1252 with control characters in its five gaps."""
KNOWN = frozenset({*UTF8, *_CODECS, *_TABLES, _EUCJPMS})
_EUC_PART = re.compile(rb"(?P<pair>[\xa1-\xfe]{2})|(?:[\x00-\x7f]|\x8e[\xa1-\xdf]|\x8f[\xa1-\xfe]{2})+")
_CELLS, _CELLS_BELOW_GAP, _ROWS_BELOW_GAP = 94, 63, 62
_FIRST_OWN_ROW, _FIRST_OWN = 85, 0xE000
"""Rows for characters of one's own, which Unicode has as private ones."""


def codec_of(charset: str | None) -> str | None:
    """Returns the codec of a known character set, for `decoded`; None for text that is UTF-8 already."""
    if charset is None or charset in UTF8:
        return None
    return _CODECS.get(charset, charset)


def decoded(value: bytes, codec: str) -> str:
    """Returns the text of a value. Raises UnicodeDecodeError for bytes that are no text."""
    if codec in _TABLES:
        return codecs.charmap_decode(value, "strict", _TABLES[codec])[0]
    return _from_eucjpms(value) if codec == _EUCJPMS else value.decode(codec)


def _from_eucjpms(value: bytes) -> str:
    """Returns the text, whose pairs of bytes are the rows and cells of cp932 in the places of EUC-JP."""
    shown, end = list[str](), 0
    while end < len(value):
        found = _EUC_PART.match(value, end)
        if found is None:
            raise UnicodeDecodeError(_EUCJPMS, value, end, len(value), "is no character")
        pair = found["pair"]
        shown.append(found[0].decode("euc-jp") if pair is None else _at_cell(pair[0] - 0xA0, pair[1] - 0xA0))
        end = found.end()
    return "".join(shown)


def _at_cell(row: int, cell: int) -> str:
    """Returns the character of a row and a cell, which count from 1. Shift JIS has two rows behind each first byte."""
    if row >= _FIRST_OWN_ROW:
        return chr(_FIRST_OWN + (row - _FIRST_OWN_ROW) * _CELLS + cell - 1)
    first = (row - 1) // 2 + (0x81 if row <= _ROWS_BELOW_GAP else 0xC1)
    second = cell + 0x9E if row % 2 == 0 else cell + (0x3F if cell <= _CELLS_BELOW_GAP else 0x40)
    return bytes([first, second]).decode("cp932")
