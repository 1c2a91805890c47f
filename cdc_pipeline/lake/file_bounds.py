"""Finds the files whose statistics allow values within ranges, without looking at each file."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Bounds = tuple[Any, Any]
Rows = npt.NDArray[np.int64]
_BLOCK = 512


def bounds_reader(column: str, type_: type) -> Callable[[str | None], Bounds | None]:
    """Returns a function that reads minimum and maximum of a column from a file's statistics, and nothing else.

    The function returns None if the statistics do not have both of them, of this type and within 64 bits.
    """
    ends: Any = dict[str, Any]
    with suppress(ValueError):  # msgspec takes no name that JSON escapes; a dictionary takes twice the time
        ends = msgspec.defstruct("Ends", [("value", Any, None)], rename={"value": column})
    fields = [(name, ends | None, None) for name in ("minValues", "maxValues")]
    decoder = msgspec.json.Decoder(msgspec.defstruct("FileStats", fields))

    def bounds_of(stats: str | None) -> Bounds | None:
        if not stats:
            return None
        try:
            found: Any = decoder.decode(stats)
        except msgspec.DecodeError:
            return None
        parts = (found.minValues, found.maxValues)
        low, high = (part.get(column) if isinstance(part, dict) else getattr(part, "value", None) for part in parts)
        return (low, high) if type(low) is type(high) is type_ and _is_indexed(low, high) else None

    return bounds_of


def _is_indexed(low: Any, high: Any) -> bool:
    """Returns whether the bounds are texts, or numbers that the index can hold."""
    return isinstance(low, str) or (low <= high and has_64_bits(low) and has_64_bits(high))


def has_64_bits(number: int | Decimal) -> bool:
    """Returns whether a signed integer of 64 bits can hold the number."""
    return -(2**63) <= number < 2**63


class BoundsIndex:
    """An index over the bounds of numbered files.

    The files are sorted by their minimum and divided into blocks; each block knows its least minimum and its greatest
    maximum. A search looks at these, and then only at the files of blocks that may have matches.
    """

    def __init__(self, bounds: Iterable[Bounds | None], type_: type) -> None:
        known, unknown, lows, highs = list[int](), list[int](), list[Any](), list[Any]()
        for number, found in enumerate(bounds):
            if found is None:
                unknown.append(number)
                continue
            known.append(number)
            lows.append(found[0])
            highs.append(found[1])
        kind: npt.DTypeLike = np.int64 if type_ is int else np.object_
        order = np.argsort(np.array(lows, dtype=kind), kind="stable")
        self._unknown: Rows = np.array(unknown, dtype=np.int64)
        self._numbers: Rows = np.array(known, dtype=np.int64)[order]
        self._lows, self._highs = np.array(lows, dtype=kind)[order], np.array(highs, dtype=kind)[order]
        self._places: Rows = np.full(len(known) + len(unknown), -1, dtype=np.int64)
        self._places[self._numbers] = np.arange(len(order))
        starts = np.arange(0, len(order), _BLOCK)
        self._block_lows = self._lows[starts]
        self._block_highs = np.maximum.reduceat(self._highs, starts) if len(order) else self._highs

    def reaching(self, numbers: Rows, low: Any) -> Rows:
        """Returns which of these files have a maximum of at least `low`, or no bounds. Looks at no other file."""
        known = self._places[numbers] >= 0
        ended = numbers[known][self._highs[self._places[numbers[known]]] < low]
        return np.setdiff1d(numbers, ended)

    def within(self, spans: Sequence[Bounds]) -> Rows:
        """Returns the numbers of the files whose bounds meet one of the spans, and of those without bounds, sorted."""
        found = [self._unknown]
        for low, high in spans:
            for block in np.flatnonzero((self._block_lows <= high) & (self._block_highs >= low)):
                part = slice(block * _BLOCK, (block + 1) * _BLOCK)
                found.append(self._numbers[part][(self._lows[part] <= high) & (self._highs[part] >= low)])
        return np.unique(np.concatenate(found))
