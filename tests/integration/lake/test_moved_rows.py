"""A key change whose event does not have the whole row takes the values of the old row, and reads no other files."""

import json

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.protocol import KeyRange
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.lake import Feed, event, move, rows_by_spark, table_of
from tests.support.lakes import spark_lake


@pytest.mark.parametrize("rows_without_spark", [0, 1000])
def test_a_key_change_reads_only_files_that_may_hold_its_old_id(
    session: SparkSession, store: LocalObjectStore, rows_without_spark: int
) -> None:
    lake = spark_lake(session, store, rows_without_spark)
    table = table_of(keeps_history=True, name=f"shop.public.moved_{rows_without_spark}")
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    for at, ids in ((1, (1, 2)), (2, (1001, 1002))):
        lake.upsert(table, feed.claim([event("i", at, id_, name=f"n{id_}", age=id_) for id_ in ids]))
    held = dict[str, bytes]()
    for each in (table, history_of(table)):
        log = DeltaLog(store, lake_key(each.name))
        for file in log.active_files(log.latest_version() or 0).values():
            if json.loads(file["stats"])["minValues"]["id"] > 1000:
                key = f"{lake_key(each.name)}/{file['path']}"
                held[key] = store.get(key)
    assert len(held) == 2, "one file of the table, one of its history"
    store.delete_all(list(held))
    lake.upsert(table, feed.claim(move(3, (1,), (7,), name="moved"), ranges=(KeyRange(1, 7),)))
    for key, content in held.items():
        store.put_if_absent(key, content)
    found = {row["id"]: (row["name"], row["age"]) for row in rows_by_spark(session, store, table)}
    assert found == {2: ("n2", 2), 7: ("moved", 1), 1001: ("n1001", 1001), 1002: ("n1002", 1002)}
