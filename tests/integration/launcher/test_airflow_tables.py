"""An empty database gets the tables of the template; any other is left to Airflow's own migration."""

import stat
from configparser import ConfigParser
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from cdc_pipeline.launcher.airflow_tables import keep_key, prepare
from tests.support.command_line import query
from tests.support.streams import run_sql

CREATE = "CREATE TABLE public.{} (version_num text);"
TEMPLATE = f"""
SELECT pg_catalog.set_config('search_path', '', false);
{CREATE.format("alembic_version")}
{CREATE.format("dag")}
INSERT INTO public.alembic_version VALUES ('d2f4e1b3c5a7');
"""
OPTIONS = "options=-cidle_in_transaction_session_timeout=600s"
"""As in the URL that the launcher gives to Airflow."""
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "airflow-tables.sql"
    path.write_text(TEMPLATE)
    return path


def test_an_empty_database_gets_the_tables_of_the_template_once(database: str, template: Path) -> None:
    url = f"{database.replace('postgresql:', 'postgresql+psycopg2:')}?{OPTIONS}"
    assert prepare(url, template)
    assert prepare(url, template)
    assert query(database, TABLES) == [("alembic_version",), ("dag",)]


@pytest.mark.parametrize(
    "content",
    [
        [CREATE.format("somebody_elses")],
        [CREATE.format("alembic_version"), "INSERT INTO alembic_version VALUES ('older')"],
    ],
    ids=["tables of somebody else", "another revision"],
)
def test_a_database_with_other_tables_is_left_as_it_is(database: str, template: Path, content: list[str]) -> None:
    run_sql(database, *content)
    before = query(database, TABLES)
    assert not prepare(database, template)
    assert query(database, TABLES) == before


def test_without_a_template_or_with_a_broken_one_the_database_stays_empty(
    database: str, template: Path, tmp_path: Path
) -> None:
    assert not prepare(database, tmp_path / "missing.sql")
    template.write_text(f"{TEMPLATE}\nSELECT 1 / 0;")
    assert not prepare(database, template)
    assert query(database, TABLES) == []


def test_airflows_processes_find_one_key_that_nobody_else_reads_and_that_stays(tmp_path: Path) -> None:
    home = tmp_path / "airflow"
    keep_key(home)
    (config,) = home.iterdir()
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    written = config.read_text()
    parser = ConfigParser()
    parser.read_string(written)
    key = Fernet(parser["core"]["fernet_key"])
    assert key.decrypt(key.encrypt(b"kwargs")) == b"kwargs"
    keep_key(home)
    assert (config.read_text(), list(home.iterdir())) == (written, [config])
