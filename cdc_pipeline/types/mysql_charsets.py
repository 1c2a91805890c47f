"""MySQL's character sets -> Python's codecs, for those whose texts both read alike."""

import codecs

_UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})
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
    "cp866": "cp866",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "gbk": "gbk",
    "gb2312": "gb2312",
    "euckr": "euc-kr",
    "cp932": "cp932",
    "eucjpms": "euc-jp",
}
LATIN1 = "latin1"
_LATIN1_CODEC = "mysql_latin1"
KNOWN = frozenset({*_UTF8, *_CODECS, LATIN1})


def codec_of(charset: str | None) -> str | None:
    """Returns Python's codec of a known character set, None for text that is UTF-8 already."""
    if charset is None or charset in _UTF8:
        return None
    return _LATIN1_CODEC if charset == LATIN1 else _CODECS[charset]


def decoded(value: bytes, codec: str) -> str:
    """Returns the text of a value. Raises UnicodeDecodeError for bytes that are no text.

    MySQL's latin1 is Windows-1252 with control characters in its five gaps.
    """
    if codec != _LATIN1_CODEC:
        return value.decode(codec)
    return codecs.charmap_decode(value, "strict", _LATIN1)[0]


def _latin1_characters() -> str:
    return "".join(bytes([octet]).decode("cp1252", errors="ignore") or chr(octet) for octet in range(256))


_LATIN1 = _latin1_characters()
