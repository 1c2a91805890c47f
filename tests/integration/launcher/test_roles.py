"""Each database of the embedded server belongs to a role of its own, no superuser, which reaches no other database."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import extensions
from psycopg2.extras import PhysicalReplicationConnection

from cdc_pipeline.installation.endpoints import PASSWORD_VARIABLES
from cdc_pipeline.launcher.parts import running
from cdc_pipeline.launcher.postgres import PostgresServer, create_database
from cdc_pipeline.metadata_store.upgrade import upgrade
from tests.support.command_line import end_of, query
from tests.support.postgres import started_server
from tests.support.shop_settings import SHOP, shop_settings
from tests.support.streams import run_sql

POSTGRES = frozenset({"postgres"})
DATABASES = {"airflow": "airflow", "cdc_metadata": "cdc_metadata", "shop": "cdc_source"}
OWN = "SELECT rolname, rolsuper, rolcreaterole, rolcreatedb, rolreplication FROM pg_roles WHERE rolname = current_user"
BY_THE_SUPERUSER = (
    "CREATE TYPE colour AS ENUM ('red')",
    "CREATE DOMAIN small AS int CHECK (VALUE < 10)",
    "CREATE TYPE pair AS (a int, b int)",
    'CREATE SCHEMA "Own"',
    'CREATE TABLE "Own"."Orders" (id serial PRIMARY KEY, again int GENERATED ALWAYS AS IDENTITY, shade colour)',
    "CREATE TABLE parted (id small PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE part PARTITION OF parted DEFAULT",
    "CREATE SEQUENCE free",
    'CREATE VIEW seen AS SELECT id FROM "Own"."Orders"',
    "CREATE FUNCTION twice(n int, m text DEFAULT 'a') RETURNS int LANGUAGE sql AS 'SELECT 2 * n'",
    'CREATE PUBLICATION cdc_shop FOR TABLE "Own"."Orders"',
)
AS_THE_OWNER = (
    "ALTER TYPE colour ADD VALUE 'blue'",
    "ALTER DOMAIN small DROP CONSTRAINT small_check",
    "ALTER TYPE pair ADD ATTRIBUTE c int",
    'CREATE TABLE "Own".other (id int)',
    'ALTER TABLE "Own"."Orders" ADD note text',
    'INSERT INTO "Own"."Orders" (note) VALUES (\'a\')',
    "ALTER SEQUENCE free RESTART 5",
    "DROP FUNCTION twice(int, text)",
    "DROP VIEW seen",
    "ALTER PUBLICATION cdc_shop ADD TABLE parted",
    "CREATE TABLE new (id int)",
)


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


@pytest.fixture
def older_server() -> Iterator[PostgresServer]:
    """As an older version left it: everything was made by the superuser."""
    with started_server(dict(os.environ)) as server:
        for name in DATABASES:
            create_database(server.url("postgres"), name)
        run_sql(server.url("shop"), *BY_THE_SUPERUSER)
        upgrade(server.url("cdc_metadata"))
        yield server


def test_databases_of_an_older_version_are_taken_over_whole_by_their_roles(older_server: PostgresServer) -> None:
    place = {"PGHOST": "127.0.0.1", "PGPORT": str(older_server.port)}
    superuser = {"PGUSER": "cdc", "PGPASSWORD": older_server.password}
    passwords = {variable: f"of {role}" for role, variable in PASSWORD_VARIABLES.items()}
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "cdc_pipeline.launcher.databases", *DATABASES],
            env=os.environ | place | superuser | passwords,
            check=True,
        )
    address = f"127.0.0.1:{older_server.port}"
    by_name = {name: f"postgresql://{role}:of%20{role}@{address}/{name}" for name, role in DATABASES.items()}
    urls = Urls(**by_name)
    check_kept_apart(urls)
    run_sql(urls.shop, *AS_THE_OWNER)
    run_sql(urls.cdc_metadata, "DROP VIEW cdc.v_lease", "ALTER TABLE cdc.slice ADD COLUMN more int")
    with closing(psycopg2.connect(older_server.url("shop"))) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE oid >= 16384")
        owners = [owner for (owner,) in cursor.fetchall() if owner]
    assert owners == ["cdc_source"]
