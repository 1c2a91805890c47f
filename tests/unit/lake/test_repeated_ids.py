"""Which staged ids are compared without Spark."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_pipeline.lake.repeated_ids import repeated_of_few
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import arrow_schema


@pytest.mark.parametrize(
    ("kind", "ids", "found"),
    [
        ("int8", [1, 2, 1], [(1,)]),
        ("int8", [1, 2, 3], []),
        ("float8", [0.0, -0.0], None),
        ("float4", [0.0, -0.0], None),
        ("int8[]", [[1], [1]], None),
    ],
)
def test_ids_that_the_lake_compares_otherwise_are_left_to_spark(
    tmp_path: Path, kind: str, ids: list[object], found: list[tuple[object, ...]] | None
) -> None:
    """It takes 0.0 and -0.0 for one value."""
    schema = TableSchema(columns=(Column(name="id", type=kind),), key=("id",))
    pq.write_table(pa.table({"id": ids}, arrow_schema(schema)), tmp_path / "staged.parquet")
    assert repeated_of_few(LocalObjectStore(tmp_path), schema, ["staged.parquet"]) == found
