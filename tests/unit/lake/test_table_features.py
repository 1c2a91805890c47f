"""Commits of the pipeline's own are not written where only Delta's writer keeps what a user has switched on."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.history_tables import publish
from tests.support.lake import NOW, table_of

TABLE = table_of()


def no_session() -> SparkSession:
    raise AssertionError


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


@pytest.fixture
def log(store: LocalObjectStore) -> DeltaLog:
    """A published table whose protocol lists one more feature by now."""
    lake = lake_of(store)
    publish(lake, store, TABLE, [(1, "a", 1)], at=5, fence=0)
    assert lake.keep_fence(TABLE, older_than=timedelta())
    log = DeltaLog(store, lake_key(TABLE.name))
    protocol = log.newest("protocol", 2)
    features = [*protocol["writerFeatures"], "inCommitTimestamp"]
    log.append(
        3,
        [
            {"commitInfo": {"timestamp": int(NOW.timestamp() * 1000)}},
            {"protocol": {**protocol, "writerFeatures": features}},
        ],
    )
    return log


def lake_of(store: LocalObjectStore) -> SparkLake:
    return SparkLake(open_session=no_session, store=store, clock=lambda: NOW, on_step=no_step)


def test_a_publication_is_refused(store: LocalObjectStore, log: DeltaLog) -> None:
    with pytest.raises(LakeError, match="has the features inCommitTimestamp") as refused:
        publish(lake_of(store), store, TABLE, [(2, "b", 2)], at=9, fence=0)
    assert "DROP FEATURE checkpointProtection TRUNCATE HISTORY" in refused.value.remedy, "Delta adds it to others"
    assert log.latest_version() == 3


def test_a_rewind_is_refused(store: LocalObjectStore, log: DeltaLog) -> None:
    with pytest.raises(LakeError, match="a rewind is a commit of the pipeline's own"):
        lake_of(store).rewind(TABLE, 2, fence_then=None)
    assert log.latest_version() == 3


def test_a_fence_is_not_repeated(store: LocalObjectStore, log: DeltaLog) -> None:
    assert not lake_of(store).keep_fence(TABLE, older_than=timedelta())
    assert log.latest_version() == 3
