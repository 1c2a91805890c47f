"""A bank and a shop that people write to while the consumer is killed: no boundary shows half a transaction.

Every pgbench transaction adds one amount to an account, a teller and a branch, and writes it down in the history, which
has no key. So the four sums agree in every state that the source ever had, and in no other.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event, Timer

import pytest

from cdc_pipeline.apply.claim_work import ClaimLimits
from cdc_pipeline.demo.seed import Scale, seed
from cdc_pipeline.demo.workload import Workload
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.settings.file import load_settings
from cdc_pipeline.wiring import Pipeline
from tests.support.pipelines import consume, opened_pipeline, set_up_and_consume, spark_session, take_snapshot
from tests.support.postgres import fresh_store
from tests.support.streams import database_of, run_sql
from tests.support.version_vector import version_vector

pytestmark = pytest.mark.bank

SECONDS = float(os.environ.get("CDC_BANK_SECONDS", "120"))
"""How long people write."""
SLICE_SECONDS = 5
SEED = 11
SMALL = Scale(customers=200, products=50, orders=500, lines=3)
BANK = {"accounts": "abalance", "tellers": "tbalance", "branches": "bbalance", "history": "delta"}
SHOP: dict[str, dict[str, object]] = {
    "customers": {"deletes": "soft", "update_time": "updated_at"},
    "products": {"update_time": "updated_at"},
    "orders": {"partition_by": [{"column": "created_at", "unit": "month"}]},
    "order_items": {},
}


@pytest.fixture
def config(postgres: PostgresServer, database: str, tmp_path: Path) -> Iterator[Path]:
    """pipeline.yml beside a metadata store of its own; commits are durable at once, as the source's sender needs."""
    name = database_of(database)
    run_sql(database, f'ALTER DATABASE "{name}" SET synchronous_commit = on')
    seed(database, SMALL)
    tables: list[dict[str, object]] = [{"name": f"{name}.public.pgbench_{table}"} for table in BANK]
    tables += [{"name": f"{name}.public.{table}", **settings} for table, settings in SHOP.items()]
    with fresh_store(postgres) as store_url:
        document = {
            "name": "bank",
            "lake": "lake",
            "metadata_store": store_url,
            "slice_length": f"{SLICE_SECONDS}s",
            "source": {
                "kind": "postgres",
                "url": database,
                "publication": name,
                "slot": name,
                "stream_partitions": 2,
            },
            "tables": tables,
        }
        path = tmp_path / "pipeline.yml"
        path.write_text(json.dumps(document), encoding="utf-8")
        yield path


def consume_and_be_killed(config: Path, chance: Random, until: Event) -> int:
    """Consumer processes, one after the other, each killed in the middle; how many there were."""
    killed = 0
    command = [sys.executable, "-m", "cdc_pipeline", "consume", "--config", str(config)]
    while not until.is_set():
        with (config.parent / "consumer.log").open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        until.wait(chance.uniform(3, 9))
        assert process.poll() is None, (config.parent / "consumer.log").read_text(encoding="utf-8")
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
    return killed


def apply_each_boundary(pipeline: Pipeline) -> None:
    """The bank by one claim per boundary, the shop by as few as there may be."""
    worker = pipeline.slice_worker()
    one = replace(worker, limits=ClaimLimits(slices=1, rows=worker.limits.rows))
    for table in pipeline.table_names():
        (one if table.table.startswith("pgbench_") else worker).slice_to_lake(table)


def sums_at(pipeline: Pipeline, versions: dict[str, int]) -> dict[str, int]:
    urls = {name.table: pipeline.lake_url(name) for name in pipeline.table_names()}
    parts = [
        f"(SELECT coalesce(sum({column}), 0) FROM delta.`{urls[f'pgbench_{table}']}@v{versions[table]}`) AS {table}"
        for table, column in BANK.items()
    ]
    row = spark_session(pipeline).sql(f"SELECT {', '.join(parts)}").collect()[0]
    return {name: int(value) for name, value in row.asDict().items()}


def published_boundaries(pipeline: Pipeline) -> list[dict[str, int]]:
    """The lake versions of the bank's tables at every boundary that all of them show."""
    ids = {
        pipeline.store.tables.table(name).table_id: name.table.removeprefix("pgbench_")
        for name in pipeline.table_names()
        if name.table.startswith("pgbench_")
    }
    last = pipeline.store.lake_positions.last_boundary(pipeline.settings.name)
    assert last is not None
    found = []
    for boundary_id in range(1, last.boundary_id + 1):
        vector = version_vector(pipeline.store, boundary_id)
        versions = {name: vector.get(table_id) for table_id, name in ids.items()}
        if all(version is not None for version in versions.values()):
            found.append({name: version for name, version in versions.items() if version is not None})
    return found


def test_the_four_sums_agree_at_every_boundary_and_at_the_end_lake_equals_source(config: Path, spark_url: str) -> None:
    settings = load_settings(config)
    store_url = settings.metadata_store
    chance = Random(SEED)
    with opened_pipeline(settings, store_url=store_url, spark_url=spark_url) as pipeline:
        set_up_and_consume(pipeline)
        take_snapshot(pipeline, *pipeline.table_names())
        workload = Workload(pipeline.endpoints.source_url, chance=chance)
        workload.start()
        try:
            done = Event()
            stopper = _after(SECONDS, done)
            killed = consume_and_be_killed(config, chance, done)
            stopper.join()
        finally:
            workload.stop()
        consume(pipeline)
        apply_each_boundary(pipeline)
        vectors = published_boundaries(pipeline)
        sums = [sums_at(pipeline, vector) for vector in vectors]
        assert [found for found in sums if len(set(found.values())) != 1] == []
        assert len({found["history"] for found in sums}) >= SECONDS / SLICE_SECONDS / 2
        assert killed >= SECONDS / 9
        verdicts = pipeline.verification().verify(pipeline.table_names())
    assert [verdict for verdict in verdicts if not verdict.is_equal] == []


def _after(seconds: float, done: Event) -> Timer:
    timer = Timer(seconds, done.set)
    timer.start()
    return timer
