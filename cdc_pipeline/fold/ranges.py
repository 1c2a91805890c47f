"""The ids of a claim as a few ranges: where they are apart, the files between them are spared."""

from collections.abc import Iterable
from itertools import pairwise


def cluster_ranges(intervals: Iterable[tuple[int, int]], *, most: int) -> list[tuple[int, int]]:
    """At most `most` ranges, ends included, that cover all `intervals`; the widest gaps stay open."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    gaps = sorted(range(1, len(merged)), key=lambda place: merged[place][0] - merged[place - 1][1], reverse=True)
    cuts = [0, *sorted(gaps[: most - 1]), len(merged)]
    return [(merged[start][0], merged[end - 1][1]) for start, end in pairwise(cuts) if start < end]
