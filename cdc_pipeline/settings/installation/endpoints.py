"""URLs of an installation's servers: of embedded ones from its stored state, of others from pipeline.yml."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.ports import LOOPBACK
from cdc_pipeline.settings.installation.state import Installation, open_installation
from cdc_pipeline.settings.work import EMBEDDED

METADATA_DATABASE = "cdc_metadata"
AIRFLOW_DATABASE = "airflow"
AIRFLOW_ROLE, METADATA_ROLE, SOURCE_ROLE = "airflow", "cdc_metadata", "cdc_source"
PASSWORD_VARIABLES = {
    AIRFLOW_ROLE: "CDC_AIRFLOW_PASSWORD",
    METADATA_ROLE: "CDC_METADATA_PASSWORD",
    SOURCE_ROLE: "CDC_SOURCE_PASSWORD",
}
"""Role that owns an embedded database -> variable from which the process that creates the role reads its password."""
WITHOUT_TLS = "sslmode=disable&channel_binding=disable"
"""Embedded servers have no TLS. PGSSLMODE or PGCHANNELBINDING may ask for it, for the sake of another server."""
RESERVED = (METADATA_DATABASE, AIRFLOW_DATABASE, "postgres", "template0", "template1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """URLs of PostgreSQL begin with `postgresql://`, without a driver's name. A source of files has the URL "".

    `airflow_database_url`: without parameters, whose names differ between Airflow's two drivers.
    `airflow_password`: of the user `admin` of an embedded Airflow; empty if unknown.
    """

    source_url: str
    metadata_store_url: str
    airflow_database_url: str
    spark_url: str
    airflow_url: str
    airflow_password: str = field(default="", repr=False)


def endpoints(settings: Settings, home: Path) -> Endpoints:
    return endpoints_of(settings, open_installation(home))


def endpoints_of(settings: Settings, installation: Installation) -> Endpoints:
    def embedded(database: str, query: str = f"?{WITHOUT_TLS}") -> str:
        role, port = role_of(database), installation.ports["postgres"]
        password = quote(role_passwords(installation)[role])
        return f"postgresql://{role}:{password}@{LOOPBACK}:{port}/{quote(database)}{query}"

    source_url = embedded(source_database(settings)) if settings.embeds_source else settings.source.url
    return Endpoints(
        source_url=source_url,
        metadata_store_url=embedded(METADATA_DATABASE)
        if settings.metadata_store == EMBEDDED
        else settings.metadata_store,
        airflow_database_url=embedded(AIRFLOW_DATABASE, query=""),
        spark_url=embedded_spark(f"{LOOPBACK}:{installation.ports['spark']}", installation.spark_token)
        if settings.spark == EMBEDDED
        else settings.spark,
        airflow_url=f"http://{LOOPBACK}:{installation.ports['airflow']}",
        airflow_password=installation.airflow_password,
    )


def role_of(database: str) -> str:
    """The role that owns an embedded database. It may connect to no other database."""
    return {AIRFLOW_DATABASE: AIRFLOW_ROLE, METADATA_DATABASE: METADATA_ROLE}.get(database, SOURCE_ROLE)


def role_passwords(installation: Installation) -> dict[str, str]:
    return {
        AIRFLOW_ROLE: installation.airflow_database_password,
        METADATA_ROLE: installation.metadata_password,
        SOURCE_ROLE: installation.source_password,
    }


def embedded_spark(address: str, token: str) -> str:
    return f"sc://{address}/;token={token}"


def source_database(settings: Settings) -> str:
    """The name of the embedded source database: the first part of the tables' names."""
    name = settings.tables[0].table.database
    if name in RESERVED:
        raise SettingsError(
            f"the embedded source database cannot be called {name!r}",
            expected=f"a name other than {', '.join(RESERVED)}",
            remedy="rename it in the tables of pipeline.yml, or give the source's URL",
        )
    return name
