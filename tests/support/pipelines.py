"""A whole pipeline over real servers, driven verb by verb in one process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.upgrade import upgrade
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.endpoints import Endpoints
from cdc_pipeline.steps import OnStep, no_step
from cdc_pipeline.wiring import LakeFactory, Pipeline, open_pipeline
from snapshot.wiring import snapshot_runs
from tests.support.delta_rows import delta_rows, delta_url, storage_options
from tests.support.streams import database_of

POLL = timedelta(milliseconds=50)


def pipeline_settings(folder: Path, source_url: str, tables: Sequence[dict[str, Any]], **more: Any) -> Settings:
    """Table names are given as `schema.table`."""
    database = database_of(source_url)
    source = {"kind": "postgres", "url": source_url, "publication": database, "slot": database}
    document = {
        "folder": folder,
        "name": "shop",
        "lake": "lake",
        "tables": [{**table, "name": f"{database}.{table['name']}"} for table in tables],
        "source": source | more.pop("source", {}),
        **more,
    }
    return Settings.model_validate(document)


def mysql_settings(
    folder: Path, source_url: str, database: str, tables: Sequence[dict[str, Any]], **more: Any
) -> Settings:
    """A pipeline over MariaDB whose name is the database's, so that it is unique on the server of all tests."""
    source = {"kind": "mysql", "url": source_url, "marker_table": f"{database}.cdc_marker"}
    document = {
        "folder": folder,
        "name": database,
        "lake": "lake",
        "slice_length": "1h",
        "tables": [{**table, "name": f"shop.{database}.{table['name']}"} for table in tables],
        "source": source | more.pop("source", {}),
        **more,
    }
    return Settings.model_validate(document)


def spark_session(pipeline: Pipeline) -> SparkSession:
    """The session of the pipeline's lake, which is one on Spark: for tests that change a lake from outside."""
    lake = pipeline.lake
    assert isinstance(lake, SparkLake)
    return lake.session


@contextmanager
def opened_pipeline(
    settings: Settings,
    *,
    store_url: str,
    spark_url: str,
    on_step: OnStep = no_step,
    make_lake: LakeFactory | None = None,
) -> Iterator[Pipeline]:
    upgrade(store_url)
    endpoints = Endpoints(
        source_url=settings.source.url,
        metadata_store_url=store_url,
        airflow_database_url="",
        spark_url=spark_url,
        airflow_url="",
    )
    with open_pipeline(settings, endpoints, on_step=on_step, make_lake=make_lake) as pipeline:
        yield pipeline


def consume(pipeline: Pipeline) -> int:
    """Register everything that the source holds now."""
    return pipeline.consumer_runs().consume_until_idle()


def set_up_and_consume(pipeline: Pipeline) -> int:
    """The same, for a pipeline whose source may be new."""
    pipeline.source_setup().set_up()
    return pipeline.consumer_runs().consume_until_idle()


def take_snapshot(pipeline: Pipeline, *tables: TableName, slots: int = 1) -> tuple[Snapshot, ...]:
    return snapshot_runs(pipeline, poll_interval=POLL).take(tables, slots=slots)


def stored_rows(pipeline: Pipeline, table: TableName) -> list[dict[str, Any]]:
    """All rows with all columns, read without Spark, in a folder or on S3."""
    return delta_rows(delta_url(pipeline.objects, lake_key(table)), storage_options(pipeline.settings.object_store))


def lake_rows(pipeline: Pipeline, table: TableName) -> list[dict[str, Any]]:
    """All rows with all columns, by version and first column."""
    return sorted(stored_rows(pipeline, table), key=lambda row: tuple(str(value) for value in row.values()))
