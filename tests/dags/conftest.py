"""One migrated Airflow for all DAG tests of a session, and a pipeline.yml for them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dags.airflow_process import Airflow, DagRuns, airflow_environment

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


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    environment = airflow_environment(tmp_path_factory.mktemp("airflow"))
    migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(migrate, env={**os.environ, **environment}, check=True, capture_output=True)
    return Airflow(environment=environment)


@pytest.fixture(scope="session")
def dag_runs(airflow: Airflow) -> Iterator[DagRuns]:
    with airflow.process("run_dag") as process:
        yield DagRuns(process)


@pytest.fixture(scope="session")
def parsed(airflow: Airflow, shop_file: str) -> Any:
    """What `parse_dags` reports of the DAG folder beside `shop_file`."""
    return airflow.call("parse_dags", CDC_CONFIG=shop_file)


@pytest.fixture(scope="session")
def shop_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("shop") / "pipeline.yml"
    path.write_text(SHOP)
    return str(path)
