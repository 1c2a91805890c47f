"""Creates or upgrades the metadata store: tables, views, and the rights of the read-only role."""

from importlib.resources import as_file, files

import psycopg2
from sqlalchemy import Connection, text
from sqlalchemy.exc import InternalError

from cdc_pipeline.errors import SetupError
from cdc_pipeline.metadata_store.database import Database, create_store_engine
from cdc_pipeline.metadata_store.inspection.sql_files import READER_ROLE, reader_role, view_names, views
from cdc_pipeline.metadata_store.models import SCHEMA
from cdc_pipeline.steps import OnStep, no_step

_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('cdc.upgrade'))"
_NOT_READABLE = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'cdc'::regnamespace AND relname = ANY (:views)
      AND NOT (has_schema_privilege(:role, relnamespace, 'USAGE') AND has_table_privilege(:role, oid, 'SELECT'))
"""
_READER = text("SELECT rolcanlogin OR rolreplication FROM pg_roles WHERE rolname = :role")
_PARTS = "cdc_pipeline.metadata_store"


def upgrade(url: str, *, on_step: OnStep = no_step) -> str:
    """Upgrades the store in one transaction, one caller at a time. Returns the revision that it has then.

    A store that is current is not changed. Raises SetupError for a store of a revision that this code does not know.
    """
    engine = create_store_engine(url)
    try:
        with Database(engine=engine, on_step=on_step).transaction("store.upgrade") as connection:
            connection.exec_driver_sql(_ONE_AT_A_TIME)
            if _revision(connection) != head():
                _check_known(_revision(connection))
                _migrate(connection)
            _grant(connection)
    finally:
        engine.dispose()
    return head()


def check_current(connection: Connection) -> None:
    """Raises SetupError unless the store has exactly the revision of this code."""
    found = _revision(connection)
    _check_known(found)
    if found != head():
        raise SetupError(
            f"the metadata store has revision {found or 'none'}",
            expected=f"revision {head()}",
            remedy="end the pipeline's processes, then run cdc up; if they are your own, run cdc migrate instead",
        )


def head() -> str:
    """The newest revision that this code knows."""
    return max(_known())


def _known() -> set[str]:
    """The known revisions: the numbers at the beginning of the migrations' file names."""
    versions = files(_PARTS) / "migrations" / "versions"
    return {script.name.partition("_")[0] for script in versions.iterdir() if script.name.endswith(".py")}


def _check_known(found: str | None) -> None:
    if found is None or found in _known():
        return
    if found < min(_known()):
        raise SetupError(
            f"the metadata store has revision {found}, from before the first release, which cannot be upgraded",
            expected=f"a revision from {min(_known())} to {head()}",
            remedy="begin again with an empty metadata store and another lake in pipeline.yml",
        )
    raise SetupError(
        f"the metadata store has revision {found}, which this code does not know",
        expected=f"revision {head()}",
        remedy="install the version of cdc-pipeline that upgraded the store, or a newer one; or fill an empty store"
        " with cdc rebuild",
    )


def _revision(connection: Connection) -> str | None:
    if connection.scalar(text("SELECT to_regclass('cdc.alembic_version')")) is None:
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM cdc.alembic_version"))
    return revision


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    if connection.scalar(text("SELECT to_regnamespace(:name)"), {"name": SCHEMA}) is None:
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
    _drop_views(connection)
    with as_file(files(_PARTS) / "migrations") as folder:
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        command.upgrade(config, "head")
    for statement in views():
        connection.exec_driver_sql(statement)


def _drop_views(connection: Connection) -> None:
    """Drops the views of this code, which the caller creates again. Views of other names are the user's own."""
    try:
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {', '.join(f'{SCHEMA}.{name}' for name in view_names())}")
    except InternalError as error:
        if not isinstance(error.orig, psycopg2.errors.DependentObjectsStillExist):
            raise
        found = " ".join((error.orig.diag.message_detail or "").split())
        raise SetupError(
            f"the inspection views cannot be created again while other objects depend on them: {found}",
            expected="no view of your own over an inspection view during an upgrade",
            remedy="drop it, upgrade, create it again",
        ) from error


def _grant(connection: Connection) -> None:
    """Gives the reader's role the right to read the views, and nothing else. Creates the role if the user may do that.

    Raises SetupError if the role may log in or replicate: whoever reads the views would have the rights of that role.
    """
    connection.exec_driver_sql(reader_role())
    has_rights = connection.scalar(_READER, {"role": READER_ROLE})
    if has_rights is None:
        return
    names = connection.scalars(text(_NOT_READABLE), {"role": READER_ROLE, "views": list(view_names())}).all()
    if names and has_rights:
        raise SetupError(
            f"the role {READER_ROLE} of the metadata store's server may log in or replicate",
            expected="a role of this name that only reads the inspection views",
            remedy=f"rename the role, such as to cdc_source_reader, and correct source.url if it names {READER_ROLE};"
            f" or, if it is the reader's own, ALTER ROLE {READER_ROLE} NOLOGIN NOREPLICATION",
        )
    for name in names:
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {READER_ROLE}")
        connection.exec_driver_sql(f"GRANT SELECT ON {SCHEMA}.{name} TO {READER_ROLE}")
