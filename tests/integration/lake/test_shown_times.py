"""Times in what a comparison shows are those of the rows, whatever zone the host has."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.lake.comparison import compare
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import arrow_schema
from tests.support.lake import table_of

COLUMNS = (Column(name="at", type="timestamptz"), Column(name="n", type="int4"))
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.fixture
def in_tokyo() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    yield
    del os.environ["TZ"]
    os.environ |= {} if before is None else {"TZ": before}
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize("key", [(), ("at",)])
def test_the_first_and_the_last_time_are_shown_in_utc(
    session: SparkSession, tmp_path: Path, key: tuple[str, ...]
) -> None:
    schema = TableSchema(columns=COLUMNS, key=key)
    table = table_of(schema)
    rows = pa.table({"at": [FIRST, LAST], "n": [1, 2]}, arrow_schema(schema))
    pq.write_table(rows, tmp_path / "source.parquet")
    pq.write_table(rows.slice(0, 0), tmp_path / "lake.parquet")
    lake = session.read.parquet(str(tmp_path / "lake.parquet"))
    found = compare(session, table, str(tmp_path / "source.parquet"), lake)
    assert sorted(each.id["at"] for each in found.differences) == [FIRST, LAST]
