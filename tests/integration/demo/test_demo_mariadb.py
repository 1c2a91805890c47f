"""The shop in MariaDB or MySQL: seeded once, written to in every way, and equal to the lake at the end."""

from contextlib import closing
from importlib.resources import as_file, files
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdc_pipeline.demo.mariadb import MARIADB_SHOP, TABLES, seed_mariadb
from cdc_pipeline.demo.mariadb_transactions import MARIADB_KINDS, MARIADB_LONG
from cdc_pipeline.demo.seed import Scale
from cdc_pipeline.demo.sources import DEMO_SOURCES
from cdc_pipeline.demo.workload import Workload
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.file import load_settings
from tests.crash.world import World, apply_all
from tests.support.eventually import eventually
from tests.support.mariadb import BinlogServerOfTests, is_mariadb, numbers, run_mysql
from tests.support.pipelines import consume, mysql_settings, set_up_and_consume, take_snapshot

SMALL = Scale(customers=200, products=20, orders=300, lines=3)
SEQUENCES = ("seq_1_to_1000000", "seq_1_to_100", "seq_1_to_4")
"""Names of MariaDB's numbers, which are tables in MySQL here."""
EVERY_KIND = {kind.name for kind in (*MARIADB_KINDS, MARIADB_LONG)}


@pytest.fixture
def shop_url(binlog_server: BinlogServerOfTests) -> str:
    url = f"{binlog_server.url}/{binlog_server.database}"
    if not is_mariadb(url):
        for name in SEQUENCES:
            fill = f"INSERT INTO {name} {numbers(1, 400)} SELECT number FROM numbers"
            run_mysql(url, f"CREATE TABLE {name} (seq INT PRIMARY KEY)", fill, database=binlog_server.database)
    seed_mariadb(url, SMALL)
    return url


def template_settings() -> Settings:
    with as_file(files("cdc_pipeline.demo") / DEMO_SOURCES["mysql"].template) as template:
        return load_settings(template, {})


def template_tables() -> list[dict[str, Any]]:
    return [table.model_dump() | {"name": table.table.table} for table in template_settings().tables]


@pytest.mark.parametrize("binlog_server", ["mariadb"], indirect=True)
def test_a_second_seed_leaves_everything_as_it_is(shop_url: str, binlog_server: BinlogServerOfTests) -> None:
    database = binlog_server.database
    run_mysql(shop_url, "DELETE FROM orders WHERE order_id = 1", database=database)
    seed_mariadb(shop_url, SMALL)
    counted = [run_mysql(shop_url, f"SELECT count(*) FROM {table}", database=database) for table in TABLES]
    assert [number for ((number,),) in counted] == [200, 20, 299, 900, 1]


@pytest.fixture(params=["fast", pytest.param("spark", marks=pytest.mark.nightly)])
def lake(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The world's arguments for this lake."""
    if request.param == "fast":
        return {}
    return {"make_lake": None, "spark_url": request.getfixturevalue("spark_url")}


@pytest.mark.parametrize("binlog_server", ["mariadb", pytest.param("mysql8", marks=pytest.mark.nightly)], indirect=True)
def test_every_kind_of_transaction_happens_and_the_lake_equals_the_source(
    shop_url: str, binlog_server: BinlogServerOfTests, store_url: str, lake: dict[str, Any], tmp_path: Path
) -> None:
    assert tuple(table.table.table for table in template_settings().tables) == TABLES
    settings = mysql_settings(tmp_path, binlog_server.url, binlog_server.database, template_tables(), slice_length="1d")
    workload = Workload(shop_url, chance=Random(1), transactions_per_second=400, shop=MARIADB_SHOP)
    with closing(World(settings=settings, source_url=binlog_server.url, store_url=store_url, **lake)) as world:
        with world.process() as pipeline:
            set_up_and_consume(pipeline)
            workload.start()
            try:
                take_snapshot(pipeline, *pipeline.table_names())
                assert eventually(lambda: workload.counts().keys() >= EVERY_KIND)
            finally:
                counts = workload.stop()
        with world.process() as pipeline:
            consume(pipeline)
            apply_all(pipeline)
            verdicts = pipeline.verification().verify(pipeline.table_names())
    assert min(counts.values()) > 0
    assert [verdict for verdict in verdicts if not verdict.is_equal] == []
