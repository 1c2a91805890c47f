"""The Spark Connect server as the tests and the stack start it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.session import connect


def arguments_of_all() -> Iterator[bytes]:
    """Of each process that there is. One that has ended since it was listed has none."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes()


@pytest.mark.parametrize("parameters", ["", "/;token=", "/;token=wrong", "/;user_id=cdc"])
def test_the_server_answers_nobody_without_its_token(spark_url: str, parameters: str) -> None:
    address, _, token = spark_url.partition("/;token=")
    with pytest.raises(LakeError, match=r"does not know the token.*token=\.\.\. in CDC_SPARK") as refused:
        connect(f"{address}{parameters}")
    assert token not in str(refused.value)


def test_the_token_is_no_argument_of_any_process(spark: SparkSession, spark_url: str) -> None:
    token = spark_url.partition("/;token=")[2]
    assert spark.range(1).count() == 1
    arguments = list(arguments_of_all())
    assert any(arguments)
    assert not [words for words in arguments if token.encode() in words]


def test_the_server_merges_into_a_delta_table_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path}/lake`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, at TIMESTAMP) USING delta").collect()
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT 1L AS id, TIMESTAMP '2024-01-01T00:00:00' AS at) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    rows = spark.sql(f"SELECT id, unix_seconds(at) FROM {table}").collect()
    assert [tuple(row) for row in rows] == [(1, 1704067200)]
