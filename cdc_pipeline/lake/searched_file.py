"""Where the ids of a claim may be in one data file, by its footer and by its column of ids."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_pipeline.lake.file_bounds import Rows
from cdc_pipeline.lake.key_ranges import lies_between

_REPEATED_BYTES = 4
"""A column of texts with fewer bytes a row has a dictionary. Versions of a claim differ; those of a snapshot do not."""


def repeats(metadata: pq.FileMetaData, column: str) -> bool:
    """Returns whether few different values of a column are in the file, so that it is read by its dictionary."""
    place = place_of(metadata, column)
    groups = (metadata.row_group(group).column(place) for group in range(metadata.num_row_groups))
    return bool(sum(group.total_uncompressed_size for group in groups) < _REPEATED_BYTES * metadata.num_rows)


def place_of(metadata: pq.FileMetaData, column: str) -> int:
    """Returns the number of a column in the file."""
    return next(number for number in range(metadata.num_columns) if metadata.schema.column(number).path == column)


def places_of(wanted: pa.Array, ids: pa.Array) -> Rows:
    """Returns at which places of `ids` one of the values `wanted` is, which rise.

    Lake files are sorted by id, so whole numbers are looked up by bisection: it costs a tenth of a look at each row.
    """
    if pa.types.is_integer(wanted.type) and not ids.null_count and len(ids):
        values = ids.to_numpy()
        if (values[1:] >= values[:-1]).all():
            looked_for = wanted.to_numpy()
            first, last = (np.searchsorted(values, looked_for, side) for side in ("left", "right"))
            counts = last - first
            starts = np.repeat(first - np.concatenate(([0], counts.cumsum()[:-1])), counts)
            places: Rows = starts + np.arange(counts.sum())
            return places
    return np.flatnonzero(pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False))


def groups_with(metadata: pq.FileMetaData, column: str, wanted: pa.Array) -> Iterator[tuple[int, int]]:
    """Yields the row groups that may have one of the values `wanted`, which rise, and the number of their first row.

    Bounds are compared of integers, decimals and texts alone; other groups, and those without bounds, are all searched.
    """
    place = place_of(metadata, column)
    is_compared = any(is_it(wanted.type) for is_it in (pa.types.is_integer, pa.types.is_decimal, pa.types.is_string))
    values, first = wanted.to_pylist() if is_compared else [], 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        bounds = rows.column(place).statistics if is_compared else None
        if bounds is None or not bounds.has_min_max or lies_between(values, bounds.min, bounds.max):
            yield group, first
        first += rows.num_rows
