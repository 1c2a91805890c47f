"""The Spark Connect server as the tests and the stack start it."""

from pathlib import Path

from pyspark.sql import SparkSession


def test_the_server_merges_into_a_delta_table_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path}/lake`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, at TIMESTAMP) USING delta").collect()
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT 1L AS id, TIMESTAMP '2024-01-01T00:00:00' AS at) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    rows = spark.sql(f"SELECT id, unix_seconds(at) FROM {table}").collect()
    assert [tuple(row) for row in rows] == [(1, 1704067200)]
