"""The task of the demos over change files and Kinesis: it is ended and goes on, and the lake equals the shop."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from cdc_pipeline.demo.dms_task import NOTED, task_of
from cdc_pipeline.demo.mariadb import MARIADB_SHOP, TABLES, seed_mariadb
from cdc_pipeline.demo.mariadb_transactions import MARIADB_KINDS, MARIADB_LONG
from cdc_pipeline.demo.seed import Scale
from cdc_pipeline.demo.sources import DEMO_SOURCES
from cdc_pipeline.demo.workload import Workload
from cdc_pipeline.record import decode_position
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.file import load_settings
from cdc_pipeline.wiring import Pipeline
from cdc_pipeline.wiring.against import verify_against
from snapshot.wiring import export_at, snapshot_runs
from tests.crash.world import make_lake
from tests.support.event_files import NOBODY_LISTENS
from tests.support.eventually import eventually
from tests.support.mariadb import run_mysql
from tests.support.pipelines import opened_pipeline, set_up_and_consume
from tests.support.shards import KinesisStreams

SMALL = Scale(customers=200, products=20, orders=300, lines=3)
EVERY_KIND = {kind.name for kind in (*MARIADB_KINDS, MARIADB_LONG)}
KEYLESS = "visits"


@pytest.fixture
def shop_url(mariadb: str, mysql_database: str) -> str:
    url = f"{mariadb}/{mysql_database}"
    seed_mariadb(url, SMALL)
    return url


def shop_settings(demo: str, folder: Path, database: str, **source: Any) -> Settings:
    """The demo's template over a database with another name. `source`: changed settings of the source."""
    with as_file(files("cdc_pipeline.demo") / DEMO_SOURCES[demo].template) as template:
        settings = load_settings(template, {})
    tables = [table.model_dump() | {"name": f"shop.{database}.{table.table.table}"} for table in settings.tables]
    document = {"folder": folder, "name": database, "lake": "lake", "slice_length": "1d", "tables": tables}
    return Settings.model_validate(document | {"source": settings.source.model_dump() | source})


@contextmanager
def running_task(settings: Settings, url: str) -> Iterator[None]:
    """A task that is stopped at the end of the block, as SIGTERM stops it. An error of the task is raised there."""
    stopping = Event()
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(task_of(settings, url).run, stopping)
        try:
            assert eventually(lambda: (settings.folder / NOTED).exists() or ended.done())
            if not ended.done():
                yield
        finally:
            stopping.set()
            ended.result()


def replicate(settings: Settings, url: str, shop_url: str) -> None:
    """Every kind of transaction happens while the task runs, ends and goes on, until the last change is written."""
    noted = settings.folder / NOTED
    workload = Workload(shop_url, chance=Random(1), transactions_per_second=200, shop=MARIADB_SHOP)
    workload.start()
    try:
        with running_task(settings, url):
            first = noted.read_text()
            assert eventually(lambda: noted.read_text() != first)
        assert eventually(lambda: workload.counts().keys() >= EVERY_KIND)
    finally:
        workload.stop()
    ((before,),) = run_mysql(url, "SELECT @@gtid_binlog_pos")
    run_mysql(url, "UPDATE products SET title = 'the last change'", database=settings.name)
    with running_task(settings, url):
        assert eventually(lambda: written_before(noted) > int(before.rpartition("-")[2]) + 1)


def written_before(noted: Path) -> int:
    """The position up to which the task has written."""
    return decode_position(json.loads(noted.read_text())["place"]["offset"])


def differing(pipeline: Pipeline, url: str) -> list[str]:
    return [str(verdict) for verdict in verify_against(pipeline, pipeline.table_names(), url) if not verdict.is_equal]


def test_files_of_a_full_load_and_of_changes_give_the_shops_rows(
    shop_url: str, mariadb: str, mysql_database: str, store_url: str, tmp_path: Path
) -> None:
    settings = shop_settings("files", tmp_path, mysql_database)
    assert tuple(table.table.table for table in settings.tables) == TABLES
    replicate(settings, mariadb, shop_url)
    with opened_pipeline(settings, store_url=store_url, spark_url=NOBODY_LISTENS, make_lake=make_lake) as pipeline:
        set_up_and_consume(pipeline)
        for table in pipeline.table_names():
            place = str(tmp_path / DEMO_SOURCES["files"].exported.format(schema=table.schema, table=table.table))
            snapshot_runs(pipeline, export=export_at(place, "start")).take([table], slots=1)
        assert differing(pipeline, mariadb) == []


def test_records_of_a_full_load_and_of_changes_give_the_shops_rows(
    shop_url: str, mariadb: str, mysql_database: str, store_url: str, s3_endpoint: str, tmp_path: Path
) -> None:
    streams = KinesisStreams(endpoint=s3_endpoint)
    streams.create(shards=2)
    source = {**streams.server, "stream": streams.name, "credentials_file": None, "reads_per_second": 100}
    settings = shop_settings("kinesis", tmp_path, mysql_database, **source)
    assert {table.table.table for table in settings.tables} == {*TABLES} - {KEYLESS}
    replicate(settings, mariadb, shop_url)
    with opened_pipeline(settings, store_url=store_url, spark_url=NOBODY_LISTENS, make_lake=make_lake) as pipeline:
        set_up_and_consume(pipeline)
        assert differing(pipeline, mariadb) == []
