"""Each database of the embedded server belongs to a role of its own, no superuser, which reaches no other database."""

import os
import subprocess
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import extensions
from psycopg2.extras import PhysicalReplicationConnection

from cdc_pipeline.launcher.parts import running
from tests.support.command_line import end_of, query
from tests.support.shop_settings import SHOP, shop_settings
from tests.support.streams import run_sql

POSTGRES = frozenset({"postgres"})
DATABASES = {"airflow": "airflow", "cdc_metadata": "cdc_metadata", "shop": "cdc_source"}
OWN = "SELECT rolname, rolsuper, rolcreaterole, rolcreatedb, rolreplication FROM pg_roles WHERE rolname = current_user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Urls:
    """Of the databases, each as its own role."""

    airflow: str
    cdc_metadata: str
    shop: str


def cdc(folder: Path, home: Path, *words: str) -> str:
    """What `cdc` says with everything embedded."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CDC_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc_pipeline", *words],
        cwd=folder,
        env=environment | {"CDC_HOME": str(home), "PYTHONPATH": str(Path.cwd())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ended = end_of(process)
    assert ended.exit_code == 0, ended.errors
    return ended.output + ended.errors


def refused(url: str, factory: type[extensions.connection] = extensions.connection) -> str:
    with pytest.raises(psycopg2.OperationalError) as caught:
        psycopg2.connect(url, connection_factory=factory)
    return str(caught.value)


def check_kept_apart(urls: Urls) -> None:
    for url in astuple(urls):
        for other in astuple(urls):
            if url != other:
                there = url.rpartition("/")[0] + "/" + other.rpartition("/")[2]
                assert "permission denied for database" in refused(there)
        (found,) = query(url, OWN)
        assert found[1:] == (False, False, False, found[0] == "cdc_source")


def test_no_role_is_a_superuser_or_reaches_another_database_and_all_of_them_are_enough(
    tmp_path: Path, home: Path
) -> None:
    settings, config = shop_settings(tmp_path), tmp_path / "pipeline.yml"
    config.write_text(SHOP, encoding="utf-8")
    with running(settings, config=config, home=home, parts=POSTGRES) as found:
        urls = Urls(airflow=found.airflow_database_url, cdc_metadata=found.metadata_store_url, shop=found.source_url)
        check_kept_apart(urls)
        copying = refused(found.source_url, PhysicalReplicationConnection)
        assert "no pg_hba.conf entry for replication connection" in copying
        run_sql(urls.airflow, "CREATE TABLE dag (id int)")
        run_sql(urls.shop, "CREATE TABLE orders (id int PRIMARY KEY)")
        assert "ready: shop.public.orders" in cdc(tmp_path, home, "setup-source")
        run_sql(urls.shop, "INSERT INTO orders VALUES (1), (2)")
        cdc(tmp_path, home, "consume", "--until-idle")
        assert query(urls.cdc_metadata, "SELECT sum(rows) FROM cdc.slice") == [(2,)]
        assert query(urls.cdc_metadata, "SELECT has_table_privilege('cdc_reader', 'cdc.v_lease', 'SELECT')") == [
            (True,)
        ]
