"""A snapshot of a table whose id became other columns: files that come after it have statistics of the new id."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.lake.table_ddl import STATS
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.history_tables import publish
from tests.support.lake import NOW, PEOPLE, table_of


def no_session() -> SparkSession:
    raise AssertionError


@pytest.mark.parametrize("key", [(), ("name",), ("id", "name")])
def test_a_snapshot_with_another_id_changes_which_columns_have_statistics(tmp_path: Path, key: tuple[str, ...]) -> None:
    store = LocalObjectStore(tmp_path)
    lake = SparkLake(open_session=no_session, store=store, clock=lambda: NOW, on_step=no_step)
    before, after = table_of(replace(PEOPLE, key=key)), table_of()
    log = DeltaLog(store, lake_key(after.name))

    def stats() -> str:
        return str(log.metadata(log.latest_version() or 0)["configuration"][STATS])

    publish(lake, store, before, [(1, "a", 1)], at=5, fence=0)
    kept = stats()
    assert kept == ",".join(f"`{name}`" for name in (*key, "_cdc_version"))
    publish(lake, store, after, [(1, "a", 1)], at=6, fence=0)
    assert stats() == (kept if "id" in key else "`id`,`_cdc_version`")
