"""Commits of the pipeline's own are not written where only Delta's writer keeps what a user has switched on."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.new_table import create_plain_table
from cdc_pipeline.lake.protocol import always
from cdc_pipeline.lake.reshaping import Reshaper
from cdc_pipeline.lake.schema_change import follow
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.steps import no_step
from tests.support.history_tables import publish
from tests.support.lake import NOW, Feed, event, table_of
from tests.support.shapes import columns

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


def with_features(log: DeltaLog, version: int, *features: str) -> None:
    protocol = log.newest("protocol", version - 1)
    info = {"commitInfo": {"timestamp": int(NOW.timestamp() * 1000)}}
    log.append(version, [info, {"protocol": {**protocol, "writerFeatures": [*features]}}])


def test_a_rewind_does_not_bring_back_a_feature_that_was_dropped(store: LocalObjectStore, log: DeltaLog) -> None:
    (file,) = log.active_files(3).values()
    milliseconds = int(NOW.timestamp() * 1000)
    gone = {"path": file["path"], "deletionTimestamp": milliseconds, "dataChange": True}
    log.append(4, [{"commitInfo": {"timestamp": milliseconds}}, {"remove": gone}])
    with_features(log, 5, *log.newest("protocol", 2)["writerFeatures"])
    with pytest.raises(LakeError, match=r"version 3 of the table .* has the features inCommitTimestamp; expected none"):
        lake_of(store).rewind(TABLE, 3, fence_then=None)
    assert log.latest_version() == 5


def test_nobody_is_told_to_drop_a_feature_that_delta_cannot_drop(store: LocalObjectStore, log: DeltaLog) -> None:
    with_features(log, 4, "clustering")
    with pytest.raises(LakeError, match="has the features clustering") as refused:
        publish(lake_of(store), store, TABLE, [(2, "b", 2)], at=9, fence=0)
    assert refused.value.remedy == "move the table's folder away and run cdc snapshot on the table"


def test_a_fence_is_not_repeated(store: LocalObjectStore, log: DeltaLog) -> None:
    assert not lake_of(store).keep_fence(TABLE, older_than=timedelta())
    assert log.latest_version() == 3


def test_a_change_of_types_that_are_one_type_in_the_lake_needs_no_commit(store: LocalObjectStore) -> None:
    table = table_of(columns("id int8 1", "name varchar(20) 2"))
    log = DeltaLog(store, lake_key(table.name))
    assert create_plain_table(log, table, lambda: NOW)
    with_features(log, 1, *log.newest("protocol", 0)["writerFeatures"], "inCommitTimestamp")
    wider = replace(columns("id int8 1", "name varchar(40) 2"), generation=1)
    work = Feed(store=store, table=table).claim([event("i", 1, 1, name="a")], schema=wider)
    without_spark = cast("SparkSession", None)
    reshaper = Reshaper(session=without_spark, store=store, log=log, clock=lambda: NOW, on_step=no_step)
    fitted = follow(reshaper, table, work, 1, log.metadata(1), always)
    assert fitted.version == log.latest_version() == 1
