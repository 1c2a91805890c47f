"""The snapshot (Arrow) and the lake (Spark) name a row's data partition by the same text."""

from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from cdc_pipeline.lake.columns import partition_expression, partition_label
from cdc_pipeline.settings import PartitionBy
from snapshot.snapshot_to_staging import partition_values

UNITS: tuple[Literal["year", "month", "day", "hour"], ...] = ("year", "month", "day", "hour")
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
EDGES = [
    FIRST,
    LAST,
    datetime(999, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(1582, 10, 4, 12, tzinfo=UTC),
    datetime(1582, 10, 15, tzinfo=UTC),
    datetime(1900, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2000, 2, 29, tzinfo=UTC),
]
VALUES: dict[str, pa.Array] = {
    "flag": pa.array([True, False, None]),
    "small": pa.array([-32768, 0, None], pa.int16()),
    "big": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
    "country": pa.array(["", " é\n", None]),
    "day": pa.array([date(33, 4, 3), date(9999, 12, 31), None]),
}


def spark_texts(spark: SparkSession, columns: dict[str, pa.Array], parts: list[PartitionBy]) -> list[list[Any]]:
    """One list per part, in the order of the rows; one call of Spark for all."""
    count = len(next(iter(columns.values())))
    frame = spark.createDataFrame(pa.table({"place": pa.array(range(count), pa.int64()), **columns}))
    shown = frame.selectExpr("place", *(partition_expression(part, part.column) for part in parts)).toArrow()
    in_order = shown.sort_by("place")
    return [in_order.column(number + 1).to_pylist() for number in range(len(parts))]


def test_moments_have_the_same_names_in_both(spark: SparkSession) -> None:
    chance, span = Random(4), (LAST - FIRST) // timedelta(microseconds=1)
    moments = [*EDGES, *(FIRST + timedelta(microseconds=chance.randint(0, span)) for _ in range(2000)), None]
    zoned = pa.array(moments, pa.timestamp("us", "UTC"))
    columns = {"zoned": zoned, "plain": zoned.cast(pa.timestamp("us")), "day": zoned.cast(pa.date32())}
    parts = [
        PartitionBy(column=name, unit=unit) for name in columns for unit in UNITS if (name, unit) != ("day", "hour")
    ]
    for part, named in zip(parts, spark_texts(spark, columns, parts), strict=True):
        assert partition_values(pa.chunked_array([columns[part.column]]), part).to_pylist() == named, part


def test_values_have_the_same_names_in_both(spark: SparkSession) -> None:
    parts = [PartitionBy(column=name) for name in VALUES]
    for part, named in zip(parts, spark_texts(spark, VALUES, parts), strict=True):
        assert partition_values(pa.chunked_array([VALUES[part.column]]), part).to_pylist() == named, part


def test_long_values_have_the_same_labels_in_both(spark: SparkSession) -> None:
    texts = [character * count for character in "a%é\U0001f600" for count in (15, 16, 30, 31, 60, 61, 300)]
    texts += ["\0", "a\0b", "ab", "ab\0", f"{'a' * 39}\0bc", "\0" * 61]
    (named,) = spark_texts(spark, {"text": pa.array(texts)}, [PartitionBy(column="text")])
    assert [partition_label(text) for text in texts] == named
    fits = [len(text.encode()) <= 60 and "\0" not in text for text in texts]
    assert [label == text for label, text in zip(named, texts, strict=True)] == fits
    assert not any("\0" in label for label in named)
    assert len(set(named)) == len(texts)
