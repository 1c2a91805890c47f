"""Bits and times of an export of MySQL -> the texts that its stream and its snapshot have for them."""

import re
from base64 import b64decode

import pyarrow as pa

from cdc_pipeline.sources.files.record_values import Column, json_values
from cdc_pipeline.types import Parsed, parse_debezium
from cdc_pipeline.types.mysql import HEX_PREFIX, bit_text, time_text

_HOURS = r"(?:\d{2}|[1-7]\d{2}|8[0-2]\d|83[0-8])"
_TIME = re.compile(rf"-?{_HOURS}:[0-5]\d:[0-5]\d(?:\.\d{{1,6}})?", re.ASCII)
_HEXADECIMAL = HEX_PREFIX.decode()


def is_of_mysql(type_name: str) -> bool:
    """Whether MySQL's values of the type are others than those that a file has for it."""
    return type_name == "time" or type_name.partition("(")[0] == "bit"


def mysql_column(column: Column, type_name: str) -> Parsed:
    """Returns the values of a type of `is_of_mysql`. A time may be negative, or have up to 838 hours.

    Bits are binary digits, as many as the type says, or bytes, of which the first is the highest.
    """
    values = json_values(column)
    if type_name == "time":
        texts = [_time(value) for value in values]
        others = [value if text is None else None for value, text in zip(values, texts, strict=True)]
        found = parse_debezium(others, type_name, None)
        return Parsed(values=pa.array(texts, pa.string()).fill_null(found.values), unfit=found.unfit)
    count = int(type_name.removesuffix(")").partition("(")[2] or 1)
    bits = [_bits(value, count) for value in values]
    unfit = [value is not None and text is None for value, text in zip(values, bits, strict=True)]
    return Parsed(values=pa.array(bits, pa.string()), unfit=pa.array(unfit, pa.bool_()))


def _time(value: object) -> str | None:
    return time_text(value.encode()).decode() if isinstance(value, str) and _TIME.fullmatch(value) else None


def _bits(value: object, count: int) -> str | None:
    """Returns the binary digits, None for a value that is no bits, or too many."""
    if isinstance(value, bool):
        return bit_text(value, count).decode()
    if not isinstance(value, str):
        return None
    if len(value) == count and not value.strip("01"):
        return value  # base64 of as many letters would be more bytes than the type has
    number = _number(value)
    return None if number is None or number.bit_length() > count else bit_text(number, count).decode()


def _number(text: str) -> int | None:
    try:
        if text.startswith(_HEXADECIMAL):
            return int.from_bytes(bytes.fromhex(text.removeprefix(_HEXADECIMAL)))
        return int.from_bytes(b64decode(text, validate=True))
    except ValueError:
        return None
