"""One migrated Airflow for all DAG tests of a session, and a pipeline.yml for them."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_pipeline.launcher.airflow_tables import template_path
from tests.dags.airflow_process import Airflow, DagRuns, TriggeredRuns, airflow_environment

SHOP = """
name: shop
lake: lake
source: {kind: postgres, publication: cdc_shop, slot: cdc_shop}
tables:
  - name: shop.public.orders
  - name: shop.public.order_items
  - name: shop.odd__schema._t
  - name: shop.odd.schema_-t
"""
LONG_TABLES = "".join(f"  - name: {'.'.join(chr(0x8868) * length for length in (100, 64, 64))}{end}\n" for end in "ab")
OTHERS = {
    "large": f"{SHOP}snapshot: {{poll_interval: 10m, target_file_bytes: 4294967296, concurrency: 64}}\n",
    "task processes": f"{SHOP}worker: {{runs: task}}\n",
    "wrong": f"{SHOP}lak: lake\n",
    "long names": f"name: shop\nlake: lake\nsource: {{kind: postgres}}\ntables:\n{LONG_TABLES}",
}


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    home = tmp_path_factory.mktemp("airflow")
    shutil.copy(migrated_database(), home / "airflow.db")
    return Airflow(environment=airflow_environment(home))


def migrated_database() -> Path:
    """An empty database of the installed Airflow, whose migration takes seconds: made once per machine.

    The last act is a rename, so that a killed call is repaired.
    """
    made = template_path().with_suffix(".db")
    with made.with_suffix(".db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=made.parent) as home:
                migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
                environment = {**os.environ, **airflow_environment(Path(home))}
                subprocess.run(migrate, env=environment, check=True, capture_output=True)
                (Path(home) / "airflow.db").rename(made)
    return made


@pytest.fixture(scope="session")
def dag_runs(airflow: Airflow) -> Iterator[DagRuns]:
    with airflow.process("run_dag") as process:
        yield DagRuns(process)


@pytest.fixture(scope="session")
def triggered_runs(airflow: Airflow) -> Iterator[TriggeredRuns]:
    with airflow.process("trigger_runs") as process:
        yield TriggeredRuns(process)


@pytest.fixture(scope="session")
def parses(airflow: Airflow, shop_file: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `parse_dags` reports of the DAG folder beside `shop_file`, as "shop", and beside each of OTHERS."""
    files = {"shop": shop_file}
    for name, text in OTHERS.items():
        path = tmp_path_factory.mktemp(name) / "pipeline.yml"
        path.write_text(text, encoding="utf-8")
        files[name] = str(path)
    return dict(zip(files, airflow.call("parse_dags", *files.values()), strict=True))


@pytest.fixture(scope="session")
def parsed(parses: dict[str, Any]) -> Any:
    return parses["shop"]


@pytest.fixture(scope="session")
def shop_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("shop") / "pipeline.yml"
    path.write_text(SHOP)
    return str(path)
