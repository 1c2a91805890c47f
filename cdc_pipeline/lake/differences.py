"""What a comparison of a lake table with its source found, as values."""

from dataclasses import dataclass
from typing import Any

MOST_SHOWN = 100
"""Most rows that a comparison shows one by one. It counts all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One row that differs.

    `kind`: missing (only the source has it), extra (only the lake has it), doubled (the lake has its id more than once)
    or different (`columns` names the columns whose values differ). `id`: key column -> value; in a keyless table, all
    columns.
    """

    id: dict[str, Any]
    kind: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`differing_rows` counts every row that differs; `differences` holds the first MOST_SHOWN of them, by id.

    In a table with a key, an id counts once, however many rows of it the lake has. In a keyless table equal rows are
    counted per content: surplus copies are missing or extra.
    """

    source_rows: int
    lake_rows: int
    differing_rows: int
    differences: tuple[Difference, ...]

    @property
    def is_cut(self) -> bool:
        """Whether `differences` may lack rows: it has as many as it may, and more rows differ."""
        return self.differing_rows > len(self.differences) >= MOST_SHOWN
