"""The store on disk is the store in the code, and nobody works on another one."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, text

from cdc_pipeline.errors import SetupError, StoreAway
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database, create_store_engine
from cdc_pipeline.metadata_store.models import columns
from cdc_pipeline.metadata_store.store import open_metadata_store
from cdc_pipeline.metadata_store.upgrade import head, upgrade
from cdc_pipeline.settings.installation.ports import free_port
from tests.support.command_line import query
from tests.support.postgres import fresh_database, started_server
from tests.support.streams import run_sql

SHAPE = {
    "columns": """
        SELECT c.relname, row_number() OVER (PARTITION BY c.relname ORDER BY a.attnum), a.attname,
               format_type(a.atttypid, a.atttypmod), a.attnotnull, o.collname, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid
        LEFT JOIN pg_collation o ON o.oid = a.attcollation
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'cdc'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
          AND c.relname <> 'alembic_version'
        ORDER BY 1, 2
        """,
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'cdc'::regnamespace AND conrelid <> coalesce(to_regclass('cdc.alembic_version'), 0)
        ORDER BY 1, 2
        """,
    "indexes": """
        SELECT tablename, indexname, indexdef FROM pg_indexes
        WHERE schemaname = 'cdc' AND tablename <> 'alembic_version' ORDER BY 1, 2
        """,
}


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """An empty one, unlike that of the other tests here."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def migrated(database: str) -> Iterator[Engine]:
    upgrade(database)
    engine = create_store_engine(database)
    yield engine
    engine.dispose()


def shape(connection: Connection) -> dict[str, list[tuple[object, ...]]]:
    return {part: [tuple(row) for row in connection.exec_driver_sql(query)] for part, query in SHAPE.items()}


def test_a_migrated_store_has_nothing_to_migrate(migrated: Engine) -> None:
    with migrated.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": lambda name, kind, _parents: kind != "schema" or name == models.SCHEMA,
                "version_table_schema": models.SCHEMA,
                "compare_server_default": True,
            },
        )
        assert compare_metadata(context, models.metadata) == []


def test_a_migrated_store_equals_one_made_from_the_models(migrated: Engine, postgres: PostgresServer) -> None:
    with fresh_database(postgres) as url:
        engine = create_store_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {models.SCHEMA}")
            connection.exec_driver_sql(columns.OFFSET_RANGE)
            models.metadata.create_all(connection)
            fresh = shape(connection)
        engine.dispose()
    with migrated.connect() as connection:
        found = shape(connection)
    assert found == fresh
    assert all(len(rows) > 10 for rows in fresh.values())


def test_upgrading_a_current_store_touches_nothing(migrated: Engine, database: str) -> None:
    views = "SELECT oid FROM pg_class WHERE relnamespace = 'cdc'::regnamespace ORDER BY oid"
    with migrated.connect() as connection:
        before = connection.scalars(text(views)).all()
    assert upgrade(database) == head()
    with migrated.connect() as connection:
        assert connection.scalars(text(views)).all() == before


def test_a_reader_that_was_left_out_gets_its_rights_at_the_next_upgrade(migrated: Engine, database: str) -> None:
    readable = "SELECT has_schema_privilege('cdc_reader', 'cdc', 'USAGE')"
    with migrated.begin() as connection:
        connection.execute(text("REVOKE USAGE ON SCHEMA cdc FROM cdc_reader"))
        assert connection.scalar(text(readable)) is False
    upgrade(database)
    with migrated.connect() as connection:
        assert connection.scalar(text(readable)) is True


@pytest.mark.parametrize("right", ["LOGIN", "REPLICATION"])
def test_a_role_of_the_sources_with_the_readers_name_is_refused_and_gets_nothing(right: str) -> None:
    """Else a login that is granted the reader's role would read the tables that the other role may read."""
    with started_server(dict(os.environ)) as server, fresh_database(server) as url:
        run_sql(url, f"CREATE ROLE cdc_reader {right}")
        with pytest.raises(SetupError, match=r"the role cdc_reader .* may log in or replicate.* rename the role"):
            upgrade(url)
        assert query(url, "SELECT to_regnamespace('cdc')") == [(None,)]


def test_an_upgrade_makes_the_views_anew(migrated: Engine, database: str) -> None:
    with migrated.begin() as connection:
        connection.exec_driver_sql("UPDATE cdc.alembic_version SET version_num = '0029'; DROP VIEW cdc.v_quarantine")
    assert upgrade(database) == head()
    with open_metadata_store(database, stream="shop") as store:
        assert store.inspection.run("quarantine") == []


def test_an_older_store_gets_the_indexes_of_this_code(migrated: Engine, database: str) -> None:
    with migrated.connect() as connection:
        expected = shape(connection)
    older = (
        "DROP INDEX cdc.claim_started_at, cdc.claim_incomplete",
        "CREATE INDEX claim_incomplete ON cdc.claim (table_id) WHERE rows_incomplete > 0 AND state = 'applied'",
        "UPDATE cdc.alembic_version SET version_num = '0029'",
    )
    run_sql(database, *older)
    upgrade(database)
    with migrated.connect() as connection:
        assert shape(connection) == expected


def test_a_view_of_the_user_over_ours_is_named_and_another_one_stays(migrated: Engine, database: str) -> None:
    before = "UPDATE cdc.alembic_version SET version_num = '0029'"
    over_ours, beside_ours = (
        "CREATE VIEW public.mine AS SELECT * FROM cdc.v_lease",
        "CREATE VIEW cdc.own AS SELECT 1 AS one",
    )
    run_sql(database, before, over_ours, beside_ours)
    with pytest.raises(SetupError, match=r"view public\.mine depends on view cdc\.v_lease.*drop it, upgrade, create"):
        upgrade(database)
    run_sql(database, "DROP VIEW public.mine")
    assert upgrade(database) == head()
    assert query(database, "SELECT one FROM cdc.own") == [(1,)]


def test_two_upgrades_at_once_make_one_store(database: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(upgrade, [database] * 2)) == [head()] * 2


@pytest.mark.parametrize(
    ("revision", "words"),
    [
        ("0021", "from before the first release, .*from 0029 to {head}; begin again with an empty metadata store"),
        ("9999", "which this code does not know; expected revision {head}.*or a newer one; .*rebuild"),
    ],
    ids=["older", "newer"],
)
def test_a_store_of_another_revision_is_refused_by_name_and_left_alone(
    migrated: Engine, database: str, revision: str, words: str
) -> None:
    found = rf"revision {revision}, {words.format(head=head())}"
    with migrated.begin() as connection:
        connection.exec_driver_sql(f"UPDATE cdc.alembic_version SET version_num = '{revision}'")
    with pytest.raises(SetupError, match=found):
        upgrade(database)
    with pytest.raises(SetupError, match=f"revision {revision}"), open_metadata_store(database, stream="shop"):
        pass
    with migrated.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM cdc.alembic_version")) == revision


def test_an_empty_database_is_no_store_and_says_what_to_run(database: str) -> None:
    with (
        pytest.raises(SetupError, match=r"has revision none.*run cdc up"),
        open_metadata_store(database, stream="shop"),
    ):
        pass


def test_a_server_that_is_away_is_worth_another_try(database: str) -> None:
    away = re.sub(r":\d+/", f":{free_port()}/", database)
    with pytest.raises(StoreAway, match="did not answer") as caught, open_metadata_store(away, stream="shop"):
        pass
    assert caught.value.retryable


def test_a_connection_that_breaks_in_the_middle_is_worth_another_try(migrated: Engine) -> None:
    with pytest.raises(StoreAway) as caught:
        break_own_connection(Database(engine=migrated))
    assert caught.value.retryable


def break_own_connection(database: Database) -> None:
    with database.transaction("test.break") as connection:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
