"""Converts a Parquet footer to the statistics by which Delta skips files."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.parquet

from cdc_pipeline.lake.file_bounds import has_64_bits

_LONGEST_TEXT = 256


def delta_stats(metadata: pyarrow.parquet.FileMetaData, names: tuple[str, ...]) -> str:
    """Returns JSON for `add.stats`: the number of rows; minimum, maximum and number of NULLs of the named columns.

    A column has no minimum and maximum if the footer has none or JSON would round them. Then Delta never skips the file
    by that column.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    filled = [group for group in range(metadata.num_row_groups) if metadata.row_group(group).num_rows]
    for number in range(metadata.num_columns):
        name = metadata.schema.column(number).path
        if name not in names:
            continue
        groups = [metadata.row_group(group).column(number).statistics for group in filled]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        bounded = [group for group in groups if group.null_count < group.num_values + group.null_count]
        if bounded and all(group.has_min_max for group in bounded):
            low = _lower(min(group.min for group in bounded))
            high = _upper(max(group.max for group in bounded))
            if low is not None and high is not None:
                least[name], greatest[name] = low, high
    document = {
        "numRecords": metadata.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
        "tightBounds": True,
    }
    return json.dumps(document, separators=(",", ":"))


def _lower(value: object) -> int | str | None:
    return _moment(value, math.floor) if isinstance(value, datetime) else _exact(value)


def _upper(value: object) -> int | str | None:
    return _moment(value, math.ceil) if isinstance(value, datetime) else _exact(value)


def _exact(value: object) -> int | str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, Decimal):
        # larger ones are left out: a reader of JSON may take them for floats
        return int(value) if value.as_tuple().exponent == 0 and has_64_bits(value) else None
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    return value.isoformat() if isinstance(value, date) else None


def _moment(value: datetime, rounded: Any) -> str | None:
    """Returns whole milliseconds, as Delta's statistics have them; a zoned value in UTC with its Z.

    Returns None if rounding reaches the next second.
    """
    milliseconds = rounded(value.microsecond / 1000)
    last_millisecond = 999
    if milliseconds > last_millisecond:
        return None
    text = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    zone = "Z" if value.tzinfo else ""
    return f"{text.replace(microsecond=0).isoformat()}.{milliseconds:03d}{zone}"
