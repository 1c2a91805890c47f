"""Writes MySQL's binary JSON as the text that a SELECT of the value gives. Pure.

The format is that of MySQL's `json_binary.h`; the text is that of `Json_wrapper::to_string`: members in their stored
order, a space behind each colon and comma, and the shortest digits of a DOUBLE that are read as the same number.
MariaDB's JSON is text and needs none of this.
"""

import base64
import re
import struct
from collections.abc import Iterator
from decimal import Decimal

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.sources.mysql.packed_values import decimal_reader

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = range(4)
_LITERAL, _STRING, _OPAQUE = 4, 12, 15
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q", 11: "<d"}
_LITERALS = (b"null", b"true", b"false")
_DOUBLE = 11
_INLINED, _INLINED_IN_LARGE = frozenset({4, 5, 6}), frozenset({4, 5, 6, 7, 8})
_DECIMAL, _DATE, _TIME = 246, 10, 11
_MOMENTS = frozenset({7, 12})
_MOST_WHOLE_DIGITS = 15
_DEEPEST = 100
_LINE = 76
_ESCAPED = re.compile(rb'["\\\x00-\x1f]')
_SHORT = {b'"': b'\\"', b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t"}


def json_text(octets: bytes) -> bytes:
    """Returns the text of a value. No bytes at all are the value null, as in the server.

    Raises IndexError, ValueError or struct.error for other bytes.
    """
    return _value(octets[0], memoryview(octets)[1:], 1) if octets else b"null"


def _value(kind: int, octets: memoryview, depth: int) -> bytes:
    """Returns the text of a value of this kind that begins at the first byte."""
    if kind <= _LARGE_ARRAY:
        return _container(kind, octets, depth)
    if kind == _LITERAL:
        return _LITERALS[octets[0]]
    if kind in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[kind], octets)
        return _double(number) if kind == _DOUBLE else b"%d" % number
    if kind == _STRING:
        return _quoted(_sized(octets))
    if kind == _OPAQUE:
        return _opaque(octets[0], _sized(octets[1:]))
    raise _unknown(f"the JSON type {kind}")


def _container(kind: int, octets: memoryview, depth: int) -> bytes:
    """Objects and arrays: the number of members and the size, places of the keys, places of the values, and both.

    A place is an offset from the first byte. In a small one, numbers have two bytes, else four.
    """
    if depth > _DEEPEST:
        raise _unknown(f"JSON deeper than {_DEEPEST}")
    is_large, is_object = kind in (_LARGE_OBJECT, _LARGE_ARRAY), kind in (_SMALL_OBJECT, _LARGE_OBJECT)
    width = 4 if is_large else 2
    count = _unsigned(octets, 0, width)
    keys_at = 2 * width
    values_at = keys_at + (count * (width + 2) if is_object else 0)
    inlined = _INLINED_IN_LARGE if is_large else _INLINED
    parts = []
    for index in range(count):
        at = values_at + index * (width + 1)
        of, place = octets[at], at + 1
        start = place if of in inlined else _unsigned(octets, place, width)
        text = _value(of, octets[start:], depth + 1)
        parts.append(_key(octets, keys_at + index * (width + 2), width) + text if is_object else text)
    return (b"{%s}" if is_object else b"[%s]") % b", ".join(parts)


def _key(octets: memoryview, at: int, width: int) -> bytes:
    start, size = _unsigned(octets, at, width), _unsigned(octets, at + width, 2)
    return _quoted(_exactly(octets, start, size)) + b": "


def _unsigned(octets: memoryview, at: int, width: int) -> int:
    return int.from_bytes(_exactly(octets, at, width), "little")


def _exactly(octets: memoryview, start: int, size: int) -> bytes:
    found = bytes(octets[start : start + size])
    if len(found) != size:
        message = f"a JSON value ends {size - len(found)} bytes behind its document"
        raise IndexError(message)
    return found


def _sized(octets: memoryview) -> bytes:
    """Returns the bytes behind a length of up to five bytes with seven bits each, the lowest first."""
    size = 0
    for index in range(5):
        size |= (octets[index] & 0x7F) << 7 * index
        if not octets[index] & 0x80:
            return _exactly(octets, index + 1, size)
    raise _unknown("a JSON length of six bytes")


def _quoted(text: bytes) -> bytes:
    return b'"' + _ESCAPED.sub(lambda found: _SHORT.get(found[0], b"\\u00%02x" % found[0][0]), text) + b'"'


def _double(value: float) -> bytes:
    """Writes the shortest digits, with an exponent for whole numbers of more than 15 digits, and below 1e-15."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    whole = len(digits) + int(exponent) if shown != "0" else 1
    if -_MOST_WHOLE_DIGITS < whole <= max(_MOST_WHOLE_DIGITS, len(shown) - 1):
        before = shown[:whole].ljust(whole, "0") if whole > 0 else "0"
        behind = shown[whole:] if whole > 0 else "0" * -whole + shown
        text = f"{before}.{behind or '0'}"
    else:
        text = f"{shown[0]}{'.' if shown[1:] else ''}{shown[1:]}e{whole - 1}"
    return b"-" * sign + text.encode()


def _opaque(kind: int, octets: bytes) -> bytes:
    """Returns values of SQL's own types: decimals as numbers, moments as quoted texts, other bytes in Base64."""
    if kind == _DECIMAL:
        return decimal_reader(octets[0], octets[1])(octets, 2)[0]
    if kind in (_DATE, _TIME, *_MOMENTS):
        return _quoted("".join(_moment(kind, int.from_bytes(octets[:8], "little", signed=True))).encode())
    encoded = base64.b64encode(octets)
    lines = b"\n".join(encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE))
    return _quoted(b"base64:type%d:%s" % (kind, lines))


def _moment(kind: int, packed: int) -> Iterator[str]:
    if packed < 0:
        yield "-"
    number, fraction = divmod(abs(packed), 1 << 24)
    day, clock = divmod(number, 1 << 17)
    if kind == _TIME:
        yield f"{number >> 12 & 0x3FF:02d}:{number >> 6 & 63:02d}:{number & 63:02d}.{fraction:06d}"
        return
    months, of_month = divmod(day, 32)
    yield "{:04d}-{:02d}-{:02d}".format(*divmod(months, 13), of_month)
    if kind != _DATE:
        yield f" {clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{fraction:06d}"


def _unknown(what: str) -> DecodeError:
    return DecodeError(
        f"the source's log has {what}",
        expected="JSON as MySQL 8.0 or newer writes it",
        remedy="run CHECK TABLE on the source, then cdc snapshot on the table",
    )
