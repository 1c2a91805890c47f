"""The processes of an installation as data, for both the native launcher and the compose file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cdc_pipeline.launcher.airflow import airflow_environment
from cdc_pipeline.launcher.deployment import Deployment, log_store_of
from cdc_pipeline.launcher.health import heartbeat_url
from cdc_pipeline.launcher.heartbeat import HEARTBEAT_VARIABLE
from cdc_pipeline.launcher.postgres import SUPERUSER
from cdc_pipeline.launcher.spark import AUTHENTICATION_VARIABLE, local_folder, s3_settings, server_command
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.endpoints import (
    AIRFLOW_DATABASE,
    METADATA_DATABASE,
    PASSWORD_VARIABLES,
    role_of,
    source_database,
)
from cdc_pipeline.settings.work import EMBEDDED

POSTGRES = "postgres"
DATABASES = "databases"
SPARK = "spark-connect"
WARM_UP = "warm-up"
MIGRATE = "migrate"
AIRFLOW_MIGRATE = "airflow-migrate"
SETUP_SOURCE = "setup-source"
CONSUMER = "consumer"
WORKER = "worker"
API_SERVER = "api-server"
LONGEST_ROUND_SECONDS = 240
"""Longest time between two heartbeats of the consumer: sorting, writing or putting a slice of millions of rows.

With `silence` of a minute, a consumer that hangs is restarted after five minutes. A slow one must not be restarted: it
would repeat the same step from the beginning.
"""
LONGEST_POLL_SECONDS = 30
"""Longest time between two heartbeats of a resident worker: a call of the metadata store that waits for its answer."""
AIRFLOW_SILENCE_SECONDS = 120
"""Airflow reports a part as unhealthy when its heartbeat is 30 s old; a busy machine delays heartbeats."""
AIRFLOW_COMMAND = "import gc; gc.set_threshold(100_000, 20, 100);{} from airflow.__main__ import main; main()"
"""Airflow's command line, with fewer garbage collections.

A start makes millions of objects that all live on. With Python's own thresholds the collector looks at them again and
again: a fifth of the processor seconds that the API server takes to make its routes (10.0 instead of 8.1). Parsers and
tasks are forks, and inherit the thresholds.
"""
IMPORTS_OF_TASKS = (
    " import pyspark.sql.connect.session, pyarrow.parquet, cdc_pipeline.operations.apply_tables, cdc_pipeline.wiring;"
)
"""The modules that tasks import. Tasks are forks of the scheduler; each saves a second."""
ALLOCATORS = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
"""Arrow's own allocator keeps what it was given back, and so do the arenas of many threads.

A worker that takes a snapshot of three million rows has a peak of 376 instead of 497 MB, and is as fast (`B2`).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of an installation.

    `health`: a URL (see `health`). Without it a process is healthy when it stays up, a one-shot when it succeeds.
    `silence`: seconds without a successful check after which a healthy process is killed and started again.
    `repeats`: a one-shot that runs again after a process that it depends on was started again.
    `scratch`: a folder that is removed before each start; one that was killed could not do that itself.
    """

    name: str
    waits_for: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    depends_on: tuple[str, ...] = ()
    health: str | None = field(default=None, repr=False)
    silence: float = 60
    one_shot: bool = False
    repeats: bool = False
    scratch: str | None = None
    as_server_account: bool = False


def processes(settings: Settings, deployment: Deployment) -> tuple[Process, ...]:
    """All processes of this installation, each after its dependencies. Servers with a URL of their own are left out."""
    embedded_spark = settings.spark == EMBEDDED
    return (
        *_servers(settings, deployment),
        *(_spark(settings, deployment) if embedded_spark else ()),
        *_own(settings, deployment),
        *_airflow(deployment),
    )


def _servers(settings: Settings, deployment: Deployment) -> Iterable[Process]:
    databases = [AIRFLOW_DATABASE]
    if settings.metadata_store == EMBEDDED:
        databases.append(METADATA_DATABASE)
    if settings.embeds_source:
        databases.append(source_database(settings))
    port = deployment.ports["postgres"]
    yield Process(
        name=POSTGRES,
        waits_for="PostgreSQL to accept connections",
        command=deployment.postgres_command,
        environment={"TZ": "UTC"},
        health=f"postgresql://{SUPERUSER}:{deployment.postgres_password}@{deployment.postgres_host}:{port}/postgres",
        as_server_account=True,
    )
    yield Process(
        name=DATABASES,
        waits_for=f"the databases {', '.join(databases)} and their roles",
        command=(deployment.python, "-m", "cdc_pipeline.launcher.databases", *databases),
        environment={
            "PGHOST": deployment.postgres_host,
            "PGPORT": str(port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": deployment.postgres_password,
            **{
                PASSWORD_VARIABLES[role]: deployment.role_passwords[role]
                for role in dict.fromkeys(map(role_of, databases))
            },
        },
        depends_on=(POSTGRES,),
        one_shot=True,
    )


def _spark(settings: Settings, deployment: Deployment) -> Iterable[Process]:
    folder = f"{deployment.home}/spark"
    yield Process(
        name=SPARK,
        waits_for="the Spark driver to answer",
        command=server_command(
            spark_home=deployment.spark_home,
            jars=deployment.jars,
            cores=deployment.cores,
            listen=deployment.listen,
            port=deployment.ports["spark"],
            folder=folder,
            driver=settings.driver,
            more=_s3_of(settings, folder) | log_store_of(settings).settings,
        ),
        environment={
            "SPARK_HOME": deployment.spark_home,
            "SPARK_LOCAL_IP": settings.driver.host,
            "TZ": "UTC",
            AUTHENTICATION_VARIABLE: deployment.spark_token,
        },
        health=f"http2://{deployment.endpoints.spark_url.removeprefix('sc://').partition('/')[0]}",
        scratch=local_folder(folder),
    )
    yield Process(
        name=WARM_UP,
        waits_for="the Spark driver's first MERGE",
        command=_own_verb(deployment, "warm-up"),
        environment=_own_environment(deployment),
        depends_on=(SPARK,),
        one_shot=True,
        repeats=True,
    )


def _s3_of(settings: Settings, folder: str) -> dict[str, str]:
    if not settings.on_s3:
        return {}
    return s3_settings(settings.object_store, folder=None if settings.driver.on_a_cluster else folder)


def _own(settings: Settings, deployment: Deployment) -> Iterable[Process]:
    needs_postgres = (DATABASES,) if settings.embeds_source or settings.metadata_store == EMBEDDED else ()
    yield Process(
        name=MIGRATE,
        waits_for="the metadata store's tables",
        command=_own_verb(deployment, "migrate"),
        environment=_own_environment(deployment),
        depends_on=needs_postgres,
        one_shot=True,
    )
    yield Process(
        name=SETUP_SOURCE,
        waits_for="the source to be ready and its tables registered",
        command=(*_own_verb(deployment, "setup-source"), "--unattended"),
        environment=_own_environment(deployment),
        depends_on=(MIGRATE,),
        one_shot=True,
    )
    heartbeat = f"{deployment.home}/consumer.heartbeat"
    yield Process(
        name=CONSUMER,
        waits_for="the consumer to read",
        command=_own_verb(deployment, "consume"),
        environment=_own_environment(deployment) | {HEARTBEAT_VARIABLE: heartbeat},
        depends_on=(SETUP_SOURCE,),
        health=heartbeat_url(heartbeat, seconds=LONGEST_ROUND_SECONDS),
    )
    if settings.worker.runs == "resident":
        yield _worker(settings, deployment)


def _worker(settings: Settings, deployment: Deployment) -> Process:
    heartbeat = f"{deployment.home}/worker.heartbeat"
    return Process(
        name=WORKER,
        waits_for="a resident worker to take requests",
        command=_own_verb(deployment, "work"),
        environment=_own_environment(deployment) | {HEARTBEAT_VARIABLE: heartbeat},
        depends_on=(MIGRATE, SPARK) if settings.spark == EMBEDDED else (MIGRATE,),
        health=heartbeat_url(heartbeat, seconds=LONGEST_POLL_SECONDS),
    )


def _airflow(deployment: Deployment) -> Iterable[Process]:
    environment = airflow_environment(deployment) | _own_environment(deployment)
    base = (deployment.python, "-c", AIRFLOW_COMMAND.format(""))
    with_imports = (deployment.python, "-c", AIRFLOW_COMMAND.format(IMPORTS_OF_TASKS))
    yield Process(
        name=AIRFLOW_MIGRATE,
        waits_for="Airflow's tables",
        command=(deployment.python, "-m", "cdc_pipeline.launcher.airflow_tables"),
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
        health=f"{deployment.endpoints.airflow_url}/api/v2/version",
        silence=AIRFLOW_SILENCE_SECONDS,
    )
    for name, command in (
        ("scheduler", (*with_imports, "scheduler", "--skip-serve-logs")),
        ("dag-processor", (deployment.python, f"{deployment.project}/plugins/cdc_dag_processor.py")),
        ("triggerer", (*base, "triggerer", "--skip-serve-logs")),
    ):
        yield Process(
            name=name,
            waits_for=f"a heartbeat of Airflow's {name}",
            command=command,
            environment=environment,
            depends_on=(AIRFLOW_MIGRATE,),
            health=f"{deployment.endpoints.airflow_url}/api/v2/monitor/health#{name.replace('-', '_')}",
            silence=AIRFLOW_SILENCE_SECONDS,
        )


def _own_verb(deployment: Deployment, verb: str) -> tuple[str, ...]:
    return (deployment.python, "-m", "cdc_pipeline", verb)


def _own_environment(deployment: Deployment) -> dict[str, str]:
    """Gives each process the URLs of all servers, so that none starts a server of its own."""
    servers = deployment.endpoints
    urls = {
        "CDC_SOURCE__URL": servers.source_url,
        "CDC_METADATA_STORE": servers.metadata_store_url,
        "CDC_SPARK": servers.spark_url,
    }
    return {
        "CDC_CONFIG": deployment.config,
        "CDC_HOME": deployment.home,
        **{variable: url for variable, url in urls.items() if url},
        "TZ": "UTC",
        **ALLOCATORS,
    }


def with_dependencies(described: Iterable[Process], names: frozenset[str]) -> tuple[Process, ...]:
    """The named processes and their dependencies, in order. Unknown names are ignored."""
    everything = tuple(described)
    wanted = set(names)
    for process in reversed(everything):
        if process.name in wanted:
            wanted.update(process.depends_on)
    return tuple(process for process in everything if process.name in wanted)
