"""Ranges of values of a table's key."""

from collections.abc import Iterable
from typing import Any


def joined(spans: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Sorts (low, high) spans and joins those that overlap or share an end."""
    found: list[tuple[Any, Any]] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found
