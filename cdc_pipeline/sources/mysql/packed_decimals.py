"""Reads the packed decimals of the binary log as the texts that a SELECT would give. Pure.

The format is that of MySQL's `decimal.c`.
"""

from cdc_pipeline.sources.mysql.packed_times import Reader, check_end

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
