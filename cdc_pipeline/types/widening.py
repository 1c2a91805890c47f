"""Which types of the lake hold every value of another type."""

import re

_WIDER = {"SMALLINT": ("INT", "BIGINT"), "INT": ("BIGINT",), "FLOAT": ("DOUBLE",), "DATE": ("TIMESTAMP_NTZ",)}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def wider(narrow: str, wide: str) -> str | None:
    """Returns `wide` if it holds every value of `narrow`, converted as the source would convert it. Otherwise None.

    Both are types of Spark.
    """
    if narrow == wide or wide in _WIDER.get(narrow, ()):
        return wide
    one, other = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    if one is None or other is None:
        return None
    (digits, scale), (more_digits, more_scale) = map(int, one.groups()), map(int, other.groups())
    return wide if more_scale >= scale and more_digits - more_scale >= digits - scale else None
