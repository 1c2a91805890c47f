"""The same processes as containers: `python -m cdc_pipeline.launcher.compose > docker/docker-compose.yml`."""

import sys
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from cdc_pipeline.installation.endpoints import (
    AIRFLOW_DATABASE,
    METADATA_DATABASE,
    PASSWORD_VARIABLES,
    Endpoints,
    embedded_spark,
    role_of,
    source_database,
)
from cdc_pipeline.launcher.jars import S3, jars_of, read_lock
from cdc_pipeline.launcher.place import Place, log_store_of, spark_jar_sets
from cdc_pipeline.launcher.postgres import SERVER_OPTIONS, SUPERUSER
from cdc_pipeline.launcher.processes import API_SERVER, POSTGRES, SPARK, Process, processes
from cdc_pipeline.launcher.project import JARS, JARS_LOCK, PROJECT
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.file import load_settings

POSTGRES_IMAGE = "postgres:18.4-bookworm"
OWN_IMAGE = "cdc-pipeline:0.1.0"
IMAGE_PROJECT = PurePosixPath("/opt/cdc")
PORTS = {"postgres": 5432, "spark": 15002, "airflow": 8080}
AWS_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""What compose passes on from whoever starts it, if it is set there."""
HINT = "set it in docker/.env"
EVERY_ADDRESS = str(IPv4Address(0))
HEAD = """\
# Made by `make compose` from the description in cdc_pipeline/launcher/processes.py: change that, not this.
# docker/.env must set CDC_POSTGRES_PASSWORD, the passwords of the roles (CDC_AIRFLOW_PASSWORD, CDC_METADATA_PASSWORD,
# CDC_SOURCE_PASSWORD), CDC_SPARK_TOKEN (each of letters and digits) and CDC_JWT_SECRET (64 or more).
# Published on loopback only. Airflow's user is admin; its password is made up at the first start, and stands in
# /data/home/airflow/passwords.json of the api-server.
"""


def required(variable: str, hint: str) -> str:
    """A variable that compose fills in, or refuses to start without."""
    return f"${{{variable}:?{hint}}}"


def containers(settings: Settings) -> Place:
    """Service names are host names; servers listen inside the network of the composition."""
    spark_token = required("CDC_SPARK_TOKEN", HINT)
    passwords = {role: required(variable, HINT) for role, variable in PASSWORD_VARIABLES.items()}
    jars = jars_of(read_lock(JARS_LOCK), spark_jar_sets(settings))
    folder = IMAGE_PROJECT / ".cache/jars"
    return Place(
        project=str(IMAGE_PROJECT),
        home="/data/home",
        config="/etc/cdc/pipeline.yml",
        python=str(IMAGE_PROJECT / ".venv/bin/python"),
        spark_home=str(IMAGE_PROJECT / ".venv/lib/python3.11/site-packages/pyspark"),
        jars=tuple(str(folder / jar.file_name) for jar in jars),
        log_store=str(folder / log_store_of(settings).jar(JARS).name),
        cores=2,
        listen=EVERY_ADDRESS,
        ports=PORTS,
        endpoints=_inside(settings, passwords, spark_token),
        postgres_host=POSTGRES,
        postgres_password=required("CDC_POSTGRES_PASSWORD", HINT),
        role_passwords=passwords,
        spark_token=spark_token,
        jwt_secret=required("CDC_JWT_SECRET", HINT),
        postgres_command=(
            "postgres",
            *(word for name, value in SERVER_OPTIONS.items() for word in ("-c", f"{name}={value}")),
        ),
    )


def _inside(settings: Settings, passwords: Mapping[str, str], spark_token: str) -> Endpoints:
    """In plain text: the network of the composition is its own."""

    def database(name: str) -> str:
        return f"postgresql://{role_of(name)}:{passwords[role_of(name)]}@{POSTGRES}:{PORTS['postgres']}/{name}"

    spark = embedded_spark(f"{SPARK}:{PORTS['spark']}", spark_token)
    return Endpoints(
        source_url=f"{database(source_database(settings))}?sslmode=disable",
        metadata_store_url=f"{database(METADATA_DATABASE)}?sslmode=disable",
        airflow_database_url=database(AIRFLOW_DATABASE),
        spark_url=f"{spark};use_ssl=false",
        airflow_url=f"http://{API_SERVER}:{PORTS['airflow']}",
    )


def composition(settings: Settings) -> dict[str, Any]:
    place = containers(settings)
    described = processes(settings, place)
    one_shots = {process.name for process in described if process.one_shot}
    services = {process.name: _service(process, one_shots, place) for process in described}
    if settings.on_s3:
        for service in services.values():
            if service["image"] == OWN_IMAGE:
                service["environment"] |= dict.fromkeys(AWS_VARIABLES)
                service["build"]["args"] = {"JARS": S3}
    return {"name": "cdc", "services": services, "volumes": {"data": {}, "postgres": {}}}


def _service(process: Process, one_shots: set[str], place: Place) -> dict[str, Any]:
    service: dict[str, Any] = {"command": list(process.command), "environment": dict(process.environment)}
    if process.name == POSTGRES:
        service |= _postgres(place)
    else:
        service |= {
            "image": OWN_IMAGE,
            "build": {"context": "..", "dockerfile": "docker/Dockerfile"},
            "volumes": ["data:/data", f"./pipeline.yml:{place.config}:ro"],
        }
        if process.health:
            probe = [place.python, "-m", "cdc_pipeline.launcher.health", process.health]
            service["healthcheck"] = _check(["CMD", *probe])
    if process.depends_on:
        service["depends_on"] = {name: {"condition": _condition(name, one_shots)} for name in process.depends_on}
    if process.name == API_SERVER:
        service["ports"] = [f"127.0.0.1:{PORTS['airflow']}:{PORTS['airflow']}"]
    service["restart"] = "on-failure" if process.one_shot else "unless-stopped"
    return service


def _postgres(place: Place) -> dict[str, Any]:
    initial = {"POSTGRES_USER": SUPERUSER, "POSTGRES_PASSWORD": place.postgres_password, "POSTGRES_DB": "postgres"}
    return {
        "image": POSTGRES_IMAGE,
        "environment": {"TZ": "UTC", "POSTGRES_INITDB_ARGS": "--encoding=UTF8 --locale=C", **initial},
        "volumes": ["postgres:/var/lib/postgresql"],
        "healthcheck": _check(["CMD", "pg_isready", "-h", "127.0.0.1", "-U", SUPERUSER, "-d", "postgres"]),
    }


def _condition(name: str, one_shots: set[str]) -> str:
    return "service_completed_successfully" if name in one_shots else "service_healthy"


def _check(test: list[str]) -> dict[str, Any]:
    return {"test": test, "interval": "5s", "timeout": "10s", "retries": 60}


def compose_text(settings: Settings) -> str:
    return HEAD + yaml.safe_dump(composition(settings), sort_keys=False, width=1000)


if __name__ == "__main__":
    sys.stdout.write(compose_text(load_settings(Path(PROJECT / "docker" / "pipeline.yml"), {})))
