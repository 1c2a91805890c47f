"""How much each row measures: `full`, `quick`, and `tiny` for tests. A size can be set: --set B4.rows=10000."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Scale = Literal["full", "quick", "tiny"]
SCALES: tuple[Scale, ...] = ("full", "quick", "tiny")
ROUNDS = {"full": 5, "quick": 3, "tiny": 1}
BUDGET_SECONDS = {"full": 150.0, "quick": 20.0, "tiny": 5.0}
"""Of one contest: then it begins no other round."""
SIZES: Mapping[str, Mapping[str, tuple[int, int, int]]] = {
    "B1": {"events": (500_000, 60_000, 1_000), "small_events": (100_000, 20_000, 500)},
    "B2": {"rows": (2_000_000, 300_000, 2_000), "memory_rows": (3_000_000, 300_000, 2_000), "memory_times": (10, 4, 2)},
    "B3": {
        "rows": (2_000_000, 300_000, 2_000),
        "tables": (100, 10, 2),
        "table_rows": (1_000, 1_000, 100),
    },
    "B4": {"rows": (10_000_000, 1_000_000, 2_000), "changes": (10_000, 10_000, 40)},
    "B5": {
        "small": (1_000_000, 200_000, 1_000),
        "large": (30_000_000, 2_000_000, 2_000),
        "changes": (10_000, 2_000, 20),
    },
    "B6": {
        "rows": (10_000_000, 200_000, 1_000),
        "claims": (1_000, 12, 4),
        "changes": (10_000, 2_000, 20),
        "minutes": (14, 1, 1),
    },
    "B7": {
        "tables": (100, 5, 1),
        "rows": (10_000, 10_000, 100),
        "changes": (1_000, 1_000, 60),
        "slice_seconds": (60, 60, 2),
        "minutes": (15, 3, 1),
    },
    "B8": {
        "rows": (1_000_000, 200_000, 1_000),
        "slices": (1_000, 50, 10),
        "changes": (10_000, 10_000, 20),
        "merges": (10, 3, 2),
    },
    "B9": {
        "rows": (100_000, 100_000, 500),
        "short_slice": (5, 5, 2),
        "long_slice": (60, 60, 4),
        "slow": (2_000, 2_000, 40),
        "fast": (20_000, 20_000, 200),
        # longer than a slice run goes on
        "short_slices": (66, 4, 1),
        "long_slices": (3, 2, 1),
    },
    "B10": {
        "tables": (4, 3, 1),
        "rows": (10_000, 10_000, 100),
        "changes": (1_000, 1_000, 20),
        "rounds": (5, 3, 1),
        "rest_seconds": (60, 30, 2),
    },
    "B11": {
        "rows": (1_000_000, 100_000, 500),
        "events": (500_000, 50_000, 200),
        "slice_rows": (10_000, 10_000, 100),
        "memory_rows": (3_000_000, 300_000, 2_000),
        "memory_times": (10, 4, 2),
    },
    "decoder": {"events": (500_000, 100_000, 2_000)},
    "files": {"rows": (200_000, 50_000, 500)},
    "lake-log": {"files": (100_000, 20_000, 200)},
    "lake-rows": {"rows": (1_000_000, 200_000, 1_000), "changes": (10_000, 5_000, 40), "columns": (200, 100, 10)},
    "large-transaction": {"changes": (500_000, 50_000, 500), "times": (10, 4, 2)},
    "rest": {"few": (8, 8, 1), "many": (100, 20, 2), "seconds": (300, 60, 1)},
    "streams": {
        "events": (50_000, 20_000, 200),
        "memory_events": (30_000, 10_000, 100),
        "memory_times": (4, 4, 2),
        "memory_slice_rows": (10_000, 5_000, 50),
    },
    "year": {"tables": (100, 20, 3), "busy": (10, 2, 1), "days": (365, 60, 3)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`row.name=value` of the command line."""

    row: str
    name: str
    value: int


def parse_setting(text: str) -> Setting:
    """Raises ValueError for a size that no row has."""
    path, _, value = text.partition("=")
    row, _, name = path.partition(".")
    if name not in SIZES.get(row, {}) or not value.replace("_", "").isdecimal():
        known = ", ".join(f"{row}.{name}" for row, names in SIZES.items() for name in names)
        message = f"{text!r} is no size; expected ROW.NAME=NUMBER with one of {known}"
        raise ValueError(message)
    return Setting(row=row, name=name, value=int(value))


def sizes_of(row: str, scale: Scale, settings: Sequence[Setting] = ()) -> dict[str, int]:
    sizes = {name: values[SCALES.index(scale)] for name, values in SIZES[row].items()}
    return sizes | {setting.name: setting.value for setting in settings if setting.row == row}
