"""Results for people: tables that fit the terminal, with times, durations and sizes as people write them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from cdc_pipeline.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

NARROW = 100
"""Width of a table in characters where stdout is no terminal."""
WIDE = 200
"""The same where the caller chose the columns."""
_LONGEST_LINE = 36
_WRAPPED = 24
"""A cell of more than _LONGEST_LINE characters is wrapped into lines of at least _WRAPPED characters."""
_GAP = 2
_MOST_FIELDS_IN_A_LINE = 6
_SHORT_SECONDS = 10
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

Row = Mapping[str, Any]


def chosen_columns(
    rows: Sequence[Row], columns: str | None, *, wide: bool | None, width: int, known: Sequence[str] = ()
) -> list[str]:
    """Returns the names of the columns to print.

    `columns`: exactly these, separated by commas. Raises UsageError for a name that no row has, or that is not `known`
    where there are no rows.
    `wide=True`: all. A single row: all. Otherwise those with a value in any row; with `wide=False` only the first that
    fit into `width` characters.
    """
    names = list(rows[0] if rows else known)
    if columns is not None and names:
        wanted = [name.strip() for name in columns.split(",")]
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise UsageError(f"there is no column {', '.join(unknown)}", expected=f"some of {', '.join(names)}")
        return wanted
    if wide or len(rows) == 1:
        return names
    filled = [name for name in names if any(row[name] is not None for row in rows)]
    if wide is None:
        return filled
    ends = accumulate(_GAP + max(len(header(name)), _needed(rows, name, wrapped=_LONGEST_LINE)) for name in filled)
    return [name for number, (name, end) in enumerate(zip(filled, ends, strict=True)) if not number or end <= width]


def table_of(rows: Sequence[Row], columns: Sequence[str], *, title: str = "", width: int) -> "Group":
    """A table with one line per row, or one record per block: a list of fields for each row.

    Blocks are for a single row with many columns, and for rows that are wider than `width` characters.
    """
    from rich.console import Group
    from rich.text import Text

    is_wide = sum(_GAP + _needed(rows, name, wrapped=_WRAPPED) for name in columns) > width
    if is_wide or (len(rows) == 1 and len(columns) > _MOST_FIELDS_IN_A_LINE):
        blocks = [part for row in rows for part in (_block(row, columns), Text())][:-1]
    else:
        blocks = [_lines(rows, columns)]
    return Group(*([Text(title, style="bold"), Text()] if title else []), *blocks)


def _lines(rows: Sequence[Row], columns: Sequence[str]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, _GAP - 1, 0, 0))
    for name in columns:
        least = _needed(rows, name, wrapped=_WRAPPED)
        is_long = any(len(cell(name, row[name])) > _LONGEST_LINE for row in rows)
        is_number = all(isinstance(row[name], int | float | Decimal) for row in rows)
        table.add_column(
            "\n".join(wrap(header(name), least)),
            overflow="fold",
            no_wrap=not is_long,
            justify="right" if is_number else "left",
        )
    for row in rows:
        table.add_row(*(Text(cell(name, row[name])) for name in columns))
    return table


def _block(row: Row, columns: Sequence[str]) -> "Table":
    """The fields of one row that have a value."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, _GAP, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name in columns:
        if row[name] is not None:
            table.add_row(header(name), Text(cell(name, row[name])))
    return table


def _needed(rows: Sequence[Row], name: str, *, wrapped: int) -> int:
    """The least width of a column in characters; its header is wrapped between words."""
    longest = max(len(cell(name, row[name])) for row in rows)
    return max(wrapped if longest > _LONGEST_LINE else longest, *map(len, header(name).split()))


def header(name: str) -> str:
    """The column's name in words, without its unit: each cell shows its own."""
    words = [word for word in name.split("_") if word not in ("seconds", "bytes")]
    return " ".join(words or name.split("_"))


def cell(name: str, value: object) -> str:
    """The text of one value. Columns whose name contains `seconds` or `bytes` get a unit that fits the number."""
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
    """The two largest units, such as `2 h 5 min`; below ten seconds, hundredths of a second."""
    if abs(seconds) < _SHORT_SECONDS:
        return f"{seconds:.2f} s"
    left, parts = round(abs(seconds)), list[str]()
    for length, unit in _UNITS:
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count} {unit}")
    shown = [part for part in parts[:2] if not part.startswith("0 ")]
    return f"{'-' if seconds < 0 else ''}{' '.join(shown)}"
