"""Reads the packed times and decimals of the binary log as the texts that `types.mysql` makes of a SELECT's. Pure.

The formats are those of MySQL's `my_time.cc`, big-endian numbers whose bits are the parts of a moment, and `decimal.c`.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from cdc_pipeline.types.mysql import UTC_OFFSET, time_text

Reader = Callable[[bytes, int], tuple[bytes, int]]
"""Reads the value that begins at an index; returns its text and the index behind it."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR = 1900


def read_year(octets: bytes, at: int) -> tuple[bytes, int]:
    return b"%04d" % (octets[at] and octets[at] + _FIRST_YEAR), at + 1


def read_date(octets: bytes, at: int) -> tuple[bytes, int]:
    packed = int.from_bytes(octets[at : at + 3], "little")
    check_end(octets, at + 3)
    return b"%04d-%02d-%02d" % (packed >> 9, packed >> 5 & 15, packed & 31), at + 3


def _fraction(octets: bytes, at: int, decimals: int) -> tuple[int, int]:
    """Returns the fraction as a number with an even count of digits, and the index behind it."""
    size = (decimals + 1) // 2
    check_end(octets, at + size)
    return int.from_bytes(octets[at : at + size]), at + size


def _with_fraction(text: bytes, fraction: int, decimals: int) -> bytes:
    """Appends the fraction with as many digits as the column has."""
    if not decimals:
        return text
    return text + b"." + (b"%0*d" % (decimals + decimals % 2, fraction))[:decimals]


def time_reader(decimals: int) -> Reader:
    """Reads a TIME: seconds and fraction as one number, to which an offset is added so that it is never negative."""
    size = 3 + (decimals + 1) // 2

    def read(octets: bytes, at: int) -> tuple[bytes, int]:
        check_end(octets, at + size)
        packed = int.from_bytes(octets[at : at + size]) - (1 << (8 * size - 1))
        sign, packed = (b"-", -packed) if packed < 0 else (b"", packed)
        clock = packed >> (8 * (size - 3))
        fraction = packed & ((1 << (8 * (size - 3))) - 1)
        text = b"%s%02d:%02d:%02d" % (sign, clock >> 12 & 0x3FF, clock >> 6 & 63, clock & 63)
        return time_text(_with_fraction(text, fraction, decimals)), at + size

    return read


def datetime_reader(decimals: int) -> Reader:
    def read(octets: bytes, at: int) -> tuple[bytes, int]:
        packed = int.from_bytes(octets[at : at + 5]) - (1 << 39)
        fraction, end = _fraction(octets, at + 5, decimals)
        months, day, clock = packed >> 22, packed >> 17 & 31, packed & 0x1FFFF
        text = b"%04d-%02d-%02d %02d:%02d:%02d" % (
            *divmod(months, 13),
            day,
            clock >> 12,
            clock >> 6 & 63,
            clock & 63,
        )
        return _with_fraction(text, fraction, decimals), end

    return read


def timestamp_reader(decimals: int) -> Reader:
    """Seconds since 1970; the number 0 with fraction 0 is the zero timestamp, as the server shows it."""

    def read(octets: bytes, at: int) -> tuple[bytes, int]:
        seconds = int.from_bytes(octets[at : at + 4])
        fraction, end = _fraction(octets, at + 4, decimals)
        moment = f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}".encode()
        text = moment if seconds or fraction else b"0000-00-00 00:00:00"
        return _with_fraction(text, fraction, decimals) + UTC_OFFSET, end

    return read


def check_end(octets: bytes, end: int) -> None:
    """Raises IndexError for a value that passes the end of the event: a slice would be shorter."""
    if end > len(octets):
        message = f"a value ends {end - len(octets)} bytes behind the event"
        raise IndexError(message)


_GROUP_DIGITS = 9
_BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_reader(precision: int, scale: int) -> Reader:
    """Returns the function that reads one value.

    A DECIMAL is groups of nine digits in four bytes; the first and the last group may be shorter. The highest bit is
    set for a value that is not negative; of a negative value all bits are inverted.
    """
    whole, first = divmod(precision - scale, _GROUP_DIGITS)
    fraction, last = divmod(scale, _GROUP_DIGITS)
    groups = [first, *[_GROUP_DIGITS] * (whole + fraction), last]
    size = sum(_BYTES_OF_DIGITS[digits] for digits in groups)

    def read(octets: bytes, at: int) -> tuple[bytes, int]:
        check_end(octets, at + size)
        negative = not octets[at] & 0x80
        value = bytes((octets[at] ^ 0x80, *octets[at + 1 : at + size]))
        if negative:
            value = bytes(octet ^ 0xFF for octet in value)
        digits, place = [], 0
        for count in groups:
            end = place + _BYTES_OF_DIGITS[count]
            if count:
                digits.append(b"%0*d" % (count, int.from_bytes(value[place:end])))
            place = end
        text = b"".join(digits)
        before = text[: precision - scale].lstrip(b"0") or b"0"
        shown = before + (b"." + text[precision - scale :] if scale else b"")
        return (b"-" if negative else b"") + shown, at + size

    return read
