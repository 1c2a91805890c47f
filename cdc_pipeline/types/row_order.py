"""The order of rows by some of their columns, whatever the columns are called."""

from collections.abc import Iterable

import pyarrow as pa


def ascending(rows: pa.Table, names: Iterable[str]) -> list[tuple[int, str]]:
    """Returns Arrow's sort keys for these columns.

    They are numbers of columns, because Arrow reads a name that begins with a dot as the path of a nested column.
    """
    return [(rows.schema.names.index(name), "ascending") for name in names]
