"""The shortest part of a script that still fails."""

from collections.abc import Callable, Sequence


def shrunk(lines: Sequence[str], fails: Callable[[Sequence[str]], bool], *, most_runs: int) -> list[str]:
    """`lines` without every part that can be left out, largest parts first."""
    kept, size = list(lines), max(1, len(lines) // 2)
    while size:
        start = 0
        while start < len(kept) and most_runs:
            without = [*kept[:start], *kept[start + size :]]
            most_runs -= 1
            if fails(without):
                kept = without
            else:
                start += size
        size //= 2
    return kept
