"""Maintenance looks for tombstones every day, and reads no rows of files that have none."""

from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.maintenance import is_tombstone
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.lake import Feed, event, lake_table_rows, table_of, version


def test_row_groups_without_hidden_rows_are_passed_over(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    table = table_of(ordered=False, keeps_history=True)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, 1, name="a", age=1), event("d", 2, 2), event("d", 9, 3)]))
    tables = (table, history_of(table))
    for each in tables:
        lake_url = table_at(store.spark_url(lake_key(each.name)))
        query = f"EXPLAIN SELECT * FROM {lake_url} WHERE {is_tombstone(each, version(5))}"
        (plan,) = (row[0] for row in session.sql(query).collect())
        assert "EqualTo(_cdc_deleted,true)" in plan.partition("PushedFilters")[2]
    lake.purge(table, version(5))
    assert [sorted(row["id"] for row in lake_table_rows(store, each)) for each in tables] == [[1, 3], [1, 3]]
