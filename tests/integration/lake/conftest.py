"""A lake in a folder of the test's own, on the shared Spark server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.lake.session import connect
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from tests.support.lakes import spark_lake


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "bucket")


@pytest.fixture
def session(spark_url: str) -> Iterator[SparkSession]:
    """A session with the worker's tuning."""
    session = connect(spark_url)
    yield session
    session.stop()


@pytest.fixture
def lake(session: SparkSession, store: LocalObjectStore) -> SparkLake:
    return spark_lake(session, store)


@pytest.fixture
def searching_lake(session: SparkSession, store: LocalObjectStore) -> SparkLake:
    """Spark searches the table for the ids of each claim, as for large ones."""
    return spark_lake(session, store, rows_without_spark=0)
