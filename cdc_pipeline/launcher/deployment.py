"""How an installation is deployed: folders, programs and addresses, on this machine or in containers."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cdc_pipeline.launcher.jars import DELTA, S3, jars_of, present_jars, read_lock
from cdc_pipeline.launcher.log_store import IN_A_FOLDER, ON_S3, LogStore, present_log_store
from cdc_pipeline.launcher.project import JARS, JARS_LOCK, PROJECT
from cdc_pipeline.launcher.spark import available_cores, spark_home
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.endpoints import Endpoints, endpoints_of, role_passwords
from cdc_pipeline.settings.installation.ports import LOOPBACK
from cdc_pipeline.settings.installation.state import Installation
from cdc_pipeline.settings.work import EMBEDDED

TASK_SLOTS_VARIABLE = "AIRFLOW__CORE__PARALLELISM"
TASK_SLOTS = "4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """All that differs between one machine and containers. Commands and environments are derived from it alone.

    `jars`: those of an embedded Spark, the last with what lets it commit safely beside other writers. `listen`: the
    address that servers bind. `task_slots`: tasks that Airflow runs at a time.
    """

    project: str
    home: str
    config: str
    python: str
    spark_home: str
    jars: tuple[str, ...]
    cores: int
    task_slots: str
    listen: str
    ports: Mapping[str, int]
    endpoints: Endpoints = field(repr=False)
    postgres_host: str
    postgres_password: str = field(repr=False)
    role_passwords: Mapping[str, str] = field(repr=False)
    jwt_secret: str = field(repr=False)
    spark_token: str = field(repr=False)
    postgres_command: tuple[str, ...]


def this_machine(settings: Settings, config: Path, installation: Installation, postgres: tuple[str, ...]) -> Deployment:
    """Only an embedded Spark needs its jars here."""
    jars = list[Path]()
    if settings.spark == EMBEDDED:
        jars += present_jars(JARS, jars_of(read_lock(JARS_LOCK), spark_jar_sets(settings)))
        jars.append(present_log_store(log_store_of(settings), JARS))
    return Deployment(
        project=str(PROJECT),
        home=str(installation.home),
        config=str(config),
        python=sys.executable,
        spark_home=str(spark_home()),
        jars=tuple(str(jar) for jar in jars),
        cores=available_cores(),
        task_slots=os.environ.get(TASK_SLOTS_VARIABLE) or TASK_SLOTS,
        listen=LOOPBACK,
        ports=installation.ports,
        endpoints=endpoints_of(settings, installation),
        postgres_host=LOOPBACK,
        postgres_password=installation.postgres_password,
        role_passwords=role_passwords(installation),
        jwt_secret=installation.jwt_secret,
        spark_token=installation.spark_token,
        postgres_command=postgres,
    )


def spark_jar_sets(settings: Settings) -> list[str]:
    return [DELTA, S3] if settings.on_s3 else [DELTA]


def log_store_of(settings: Settings) -> LogStore:
    return ON_S3 if settings.on_s3 else IN_A_FOLDER
