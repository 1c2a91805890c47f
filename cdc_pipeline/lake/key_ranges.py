"""Ranges of values of a table's key."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from cdc_pipeline.lake.protocol import KeyRange
from cdc_pipeline.slice_file import key_ranges


def joined(spans: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Sorts (low, high) spans and joins those that overlap or share an end."""
    found: list[tuple[Any, Any]] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def ranges_of(ids: pa.ChunkedArray) -> tuple[KeyRange, ...]:
    """Returns ranges that hold all of these values of the first id column; none for a type without a usable order."""
    return tuple(KeyRange(low, high) for low, high in key_ranges(ids))


def lies_between(values: Sequence[Any], low: Any, high: Any) -> bool:
    """Returns whether one of the values, which rise, is between the bounds, inclusive."""
    place = bisect_left(values, low)
    return place < len(values) and values[place] <= high
