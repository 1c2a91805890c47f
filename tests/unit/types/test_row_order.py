"""Rows are sorted by columns of any name."""

import pyarrow as pa

from cdc_pipeline.types.row_order import ascending


def test_rows_are_sorted_by_columns_whose_names_look_like_paths() -> None:
    rows = pa.table({"[0]": [1, 2, 3], ".id": [2, 1, 1], "a.b": ["x", "z", "y"], "id": [7, 8, 9]})
    found = rows.sort_by(ascending(rows, (".id", "a.b")))
    assert found.to_pylist() == [rows.to_pylist()[place] for place in (2, 1, 0)]
