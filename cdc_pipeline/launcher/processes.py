"""The processes of an installation, as data: the one description behind the native launcher and the compose file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cdc_pipeline.installation.endpoints import (
    AIRFLOW_DATABASE,
    METADATA_DATABASE,
    PASSWORD_VARIABLES,
    Endpoints,
    role_of,
    source_database,
)
from cdc_pipeline.launcher.airflow import airflow_environment
from cdc_pipeline.launcher.health import heartbeat_url
from cdc_pipeline.launcher.heartbeat import HEARTBEAT_VARIABLE
from cdc_pipeline.launcher.place import Place, log_store_of
from cdc_pipeline.launcher.postgres import SUPERUSER
from cdc_pipeline.launcher.spark import AUTHENTICATION_VARIABLE, s3_settings, server_command
from cdc_pipeline.settings import EMBEDDED, Settings

POSTGRES = "postgres"
DATABASES = "databases"
SPARK = "spark-connect"
WARM_UP = "warm-up"
MIGRATE = "migrate"
AIRFLOW_MIGRATE = "airflow-migrate"
SETUP_SOURCE = "setup-source"
CONSUMER = "consumer"
API_SERVER = "api-server"
LONGEST_ROUND_SECONDS = 240
"""Of the consumer's loop between two heartbeats: sorting and writing a slice of millions of rows, or putting it.

With the minute of `silence` a consumer that hangs is started again after five minutes. One that is only slow must never
be: the next one would begin the same step anew.
"""
AIRFLOW_SILENCE_SECONDS = 120
"""Airflow's page calls a part unhealthy when its heartbeat is 30 s old; a machine that is busy delays heartbeats."""
WITH_WHAT_TASKS_IMPORT = (
    "import pyspark.sql.connect.session, pyarrow.parquet, cdc_pipeline.operations.apply_tables, cdc_pipeline.wiring;"
    " from airflow.__main__ import main; main()"
)
"""Airflow's command for the scheduler: its tasks are forks of it, and would each import the same for a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """`health` is a URL (see `health`); without one a process is healthy when it stays, a one-shot when it succeeds.

    `silence`: a healthy one that gives no good answer for so many seconds is killed and started again.
    `repeats`: a one-shot that is done again whenever what it depends on was started again.
    """

    name: str
    waits_for: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    depends_on: tuple[str, ...] = ()
    port_name: str | None = None
    health: str | None = field(default=None, repr=False)
    silence: float = 60
    one_shot: bool = False
    repeats: bool = False
    as_server_account: bool = False


def processes(settings: Settings, place: Place) -> tuple[Process, ...]:
    """All that this installation needs, each after what it depends on; what has a URL of its own is left out."""
    embedded_spark = settings.spark == EMBEDDED
    return (
        *_servers(settings, place),
        *(_spark(settings, place) if embedded_spark else ()),
        *_own(settings, place),
        *_airflow(place),
    )


def _servers(settings: Settings, place: Place) -> Iterable[Process]:
    databases = [AIRFLOW_DATABASE]
    if settings.metadata_store == EMBEDDED:
        databases.append(METADATA_DATABASE)
    if settings.embeds_source:
        databases.append(source_database(settings))
    port = place.ports["postgres"]
    yield Process(
        name=POSTGRES,
        waits_for="PostgreSQL to accept connections",
        command=place.postgres_command,
        environment={"TZ": "UTC"},
        port_name="postgres",
        health=f"postgresql://{SUPERUSER}:{place.postgres_password}@{place.postgres_host}:{port}/postgres",
        as_server_account=True,
    )
    yield Process(
        name=DATABASES,
        waits_for=f"the databases {', '.join(databases)} and their roles",
        command=(place.python, "-m", "cdc_pipeline.launcher.databases", *databases),
        environment={
            "PGHOST": place.postgres_host,
            "PGPORT": str(port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": place.postgres_password,
            **{PASSWORD_VARIABLES[role]: place.role_passwords[role] for role in dict.fromkeys(map(role_of, databases))},
        },
        depends_on=(POSTGRES,),
        one_shot=True,
    )


def _spark(settings: Settings, place: Place) -> Iterable[Process]:
    folder = f"{place.home}/spark"
    yield Process(
        name=SPARK,
        waits_for="the Spark driver to answer",
        command=server_command(
            spark_home=place.spark_home,
            jars=(*place.jars, place.log_store) if place.log_store else place.jars,
            cores=place.cores,
            listen=place.listen,
            port=place.ports["spark"],
            folder=folder,
            memory=settings.driver.memory,
            java_options=settings.driver.java_options,
            more=(s3_settings(settings.object_store, folder=folder) if settings.on_s3 else {})
            | (log_store_of(settings).settings if place.log_store else {}),
        ),
        environment={
            "SPARK_HOME": place.spark_home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TZ": "UTC",
            AUTHENTICATION_VARIABLE: place.spark_token,
        },
        port_name="spark",
        health=f"http2://{place.address('spark')}",
    )
    yield Process(
        name=WARM_UP,
        waits_for="the Spark driver to have merged once",
        command=_own_verb(place, "warm-up"),
        environment=_own_environment(place),
        depends_on=(SPARK,),
        one_shot=True,
        repeats=True,
    )


def _own(settings: Settings, place: Place) -> Iterable[Process]:
    needs_postgres = (DATABASES,) if settings.embeds_source or settings.metadata_store == EMBEDDED else ()
    yield Process(
        name=MIGRATE,
        waits_for="the metadata store's tables",
        command=_own_verb(place, "migrate"),
        environment=_own_environment(place),
        depends_on=needs_postgres,
        one_shot=True,
    )
    yield Process(
        name=SETUP_SOURCE,
        waits_for="the source to be ready and its tables registered",
        command=(*_own_verb(place, "setup-source"), "--unattended"),
        environment=_own_environment(place),
        depends_on=(MIGRATE,),
        one_shot=True,
    )
    heartbeat = f"{place.home}/consumer.heartbeat"
    yield Process(
        name=CONSUMER,
        waits_for="the consumer's loop to go round",
        command=_own_verb(place, "consume"),
        environment=_own_environment(place) | {HEARTBEAT_VARIABLE: heartbeat},
        depends_on=(SETUP_SOURCE,),
        health=heartbeat_url(heartbeat, seconds=LONGEST_ROUND_SECONDS),
    )


def _airflow(place: Place) -> Iterable[Process]:
    environment = airflow_environment(place) | _own_environment(place)
    base = (place.python, "-m", "airflow")
    yield Process(
        name=AIRFLOW_MIGRATE,
        waits_for="Airflow's tables",
        command=(*base, "db", "migrate"),
        environment=environment,
        depends_on=(DATABASES,),
        one_shot=True,
    )
    yield Process(
        name=API_SERVER,
        waits_for="Airflow's API and UI to answer",
        command=(*base, "api-server"),
        environment=environment,
        depends_on=(AIRFLOW_MIGRATE,),
        port_name="airflow",
        health=f"http://{place.address('airflow')}/api/v2/version",
        silence=AIRFLOW_SILENCE_SECONDS,
    )
    for name, command in (
        ("scheduler", (place.python, "-c", WITH_WHAT_TASKS_IMPORT, "scheduler", "--skip-serve-logs")),
        ("dag-processor", (*base, "dag-processor")),
        ("triggerer", (*base, "triggerer", "--skip-serve-logs")),
    ):
        yield Process(
            name=name,
            waits_for=f"Airflow's {name} to beat",
            command=command,
            environment=environment,
            depends_on=(AIRFLOW_MIGRATE,),
            health=f"http://{place.address('airflow')}/api/v2/monitor/health#{name.replace('-', '_')}",
            silence=AIRFLOW_SILENCE_SECONDS,
        )


def _own_verb(place: Place, verb: str) -> tuple[str, ...]:
    return (place.python, "-m", "cdc_pipeline", verb)


def _own_environment(place: Place) -> dict[str, str]:
    """Every part is told by URL, so that none of them starts a server of its own."""
    urls: Endpoints = place.endpoints
    source = {"CDC_SOURCE__URL": urls.source_url} if urls.source_url else {}
    return {
        "CDC_CONFIG": place.config,
        "CDC_HOME": place.home,
        **source,
        "CDC_METADATA_STORE": urls.metadata_store_url,
        "CDC_SPARK": urls.spark_url,
        "TZ": "UTC",
    }


def with_dependencies(described: Iterable[Process], names: frozenset[str]) -> tuple[Process, ...]:
    """The named processes and what they depend on, in order; names that are not described are left out."""
    everything = tuple(described)
    wanted = set(names)
    for process in reversed(everything):
        if process.name in wanted:
            wanted.update(process.depends_on)
    return tuple(process for process in everything if process.name in wanted)
