"""Creates the databases NAME… and their roles. libpq's variables give the server and its superuser.

    python -m cdc_pipeline.launcher.databases NAME…

Each database belongs to a role of its own, and no other role may connect to it. The roles' passwords are in the
variables `PASSWORD_VARIABLES`. Every call sets owners, rights and passwords again, because a person may have set them
differently.
"""

import os
import sys
from collections.abc import Iterable, Mapping

from psycopg2 import extensions, sql

from cdc_pipeline.launcher.postgres import autocommitting, create_database
from cdc_pipeline.metadata_store.inspection.sql_files import READER_ROLE, reader_role
from cdc_pipeline.settings.installation.endpoints import METADATA_ROLE, PASSWORD_VARIABLES, SOURCE_ROLE, role_of

_SERVER = "dbname=postgres"
_CREATE_ROLE = """
DO $$ BEGIN
    IF to_regrole({name}) IS NULL THEN CREATE ROLE {role}; END IF;
END $$
"""
_SET_ROLE = "ALTER ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS {replication} PASSWORD %s"


def create_databases(names: Iterable[str], passwords: Mapping[str, str]) -> None:
    """`passwords`: role -> password. Safe to repeat and to kill."""
    for name in names:
        create_database(_SERVER, name)
        role = role_of(name)
        with autocommitting(_SERVER) as connection:
            _create_role(connection, role, passwords[role])
            _close_to_others(connection, name, role)
            if role == METADATA_ROLE:
                _admit_readers(connection, name)


def _create_role(connection: extensions.connection, role: str, password: str) -> None:
    """The password is hashed before it is sent, so that the server's log cannot show it."""
    replication = sql.SQL("REPLICATION" if role == SOURCE_ROLE else "NOREPLICATION")
    hashed = extensions.encrypt_password(password, role, scope=connection, algorithm="scram-sha-256")
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL(_CREATE_ROLE).format(name=sql.Literal(role), role=sql.Identifier(role)))
        cursor.execute(sql.SQL(_SET_ROLE).format(role=sql.Identifier(role), replication=replication), (hashed,))


def _close_to_others(connection: extensions.connection, database: str, role: str) -> None:
    names = {"database": sql.Identifier(database), "role": sql.Identifier(role)}
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL("ALTER DATABASE {database} OWNER TO {role}").format(**names))
        cursor.execute(sql.SQL("REVOKE ALL ON DATABASE {database} FROM PUBLIC").format(**names))


def _admit_readers(connection: extensions.connection, database: str) -> None:
    """Creates the role of the inspection views. The owner of the metadata store may not create roles."""
    names = {"database": sql.Identifier(database), "role": sql.Identifier(READER_ROLE)}
    with connection.cursor() as cursor:
        cursor.execute(reader_role())
        cursor.execute(sql.SQL("GRANT CONNECT ON DATABASE {database} TO {role}").format(**names))


if __name__ == "__main__":
    create_databases(
        sys.argv[1:],
        {role: os.environ[variable] for role, variable in PASSWORD_VARIABLES.items() if variable in os.environ},
    )
