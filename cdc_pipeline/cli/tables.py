"""Rows for people: a table that fits the terminal, with times, durations and sizes as people write them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cdc_pipeline.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

NARROW = 100
"""Columns of text: as wide as a table gets where nobody asked for more."""
_WIDEST_CELL = 36
_BORDERS = 3
_MOST_FIELDS_IN_A_LINE = 6
_SHORT_SECONDS = 10
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

Row = Mapping[str, Any]


def chosen_columns(rows: Sequence[Row], columns: str | None, *, wide: bool, width: int) -> list[str]:
    """The names that `columns` lists, parted by commas; all with `wide`, and of a single row.

    Otherwise the first that fit into `width`, without those that are empty in every row. Raises UsageError for a
    name that no row has.
    """
    names = list(rows[0]) if rows else []
    if columns is not None and names:
        asked = [name.strip() for name in columns.split(",")]
        unknown = [name for name in asked if name not in names]
        if unknown:
            raise UsageError(f"there is no column {', '.join(unknown)}", expected=f"some of {', '.join(names)}")
        return asked
    if wide or len(rows) == 1:
        return names
    chosen, taken = list[str](), 1
    for name in names:
        if all(row[name] is None for row in rows):
            continue
        taken += _BORDERS + min(_WIDEST_CELL, max(len(header(name)), *(len(cell(name, row[name])) for row in rows)))
        if chosen and taken > width:
            break
        chosen.append(name)
    return chosen


def table_of(rows: Sequence[Row], columns: Sequence[str], *, title: str = "") -> "Table":
    """One line per row; a single row with many columns has one line per column instead."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left")
    if len(rows) == 1 and len(columns) > _MOST_FIELDS_IN_A_LINE:
        table.add_column("field")
        table.add_column("value", overflow="fold")
        for name in columns:
            table.add_row(header(name), Text(cell(name, rows[0][name])))
        return table
    for name in columns:
        table.add_column(header(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(name, row[name])) for name in columns))
    return table


def header(name: str) -> str:
    """Without the unit that each cell names itself."""
    words = [word for word in name.split("_") if word not in ("seconds", "bytes")]
    return " ".join(words or name.split("_"))


def cell(name: str, value: object) -> str:
    """Seconds and bytes are known by the name of their column."""
    words = name.split("_")
    match value:
        case None:
            return ""
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        case int() | float() | Decimal() if "seconds" in words:
            return duration(float(value))
        case int() if "bytes" in words and not isinstance(value, bool):
            from cdc_pipeline.sources.known import shown_bytes

            return shown_bytes(value)
        case _:
            return str(value)


def duration(seconds: float) -> str:
    """`2 h 5 min`: its two largest units. Less than ten seconds to a hundredth."""
    if abs(seconds) < _SHORT_SECONDS:
        return f"{seconds:.2f} s"
    left, parts = round(abs(seconds)), list[str]()
    for length, unit in _UNITS:
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count} {unit}")
    shown = [part for part in parts[:2] if not part.startswith("0 ")]
    return f"{'-' if seconds < 0 else ''}{' '.join(shown)}"
