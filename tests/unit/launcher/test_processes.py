"""One description: what is external is absent, and the compose file says the same as the native launcher."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.launcher.compose import AWS_VARIABLES, compose_text, composition, containers
from cdc_pipeline.launcher.deployment import Deployment, this_machine
from cdc_pipeline.launcher.postgres import SERVER_OPTIONS
from cdc_pipeline.launcher.processes import API_SERVER, POSTGRES, SPARK, WORKER, Process, processes, with_dependencies
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.file import load_settings, parse_settings
from cdc_pipeline.settings.installation.endpoints import endpoints
from cdc_pipeline.settings.installation.state import open_installation
from tests.support.shop_settings import shop_settings

DOCKER = PROJECT / "docker"
FILES = "{name: shop, lake: lake, source: {kind: debezium_files, path: events/}, tables: [{name: shop.public.orders}]}"
SHOWS_TASK_SLOTS = """
import sys
from pathlib import Path
from tests.support.shop_settings import shop_settings
from tests.unit.launcher.test_processes import described
home = Path(sys.argv[1])
scheduler = next(process for process in described(shop_settings(home), home) if process.name == "scheduler")
print(scheduler.environment["AIRFLOW__CORE__PARALLELISM"], end="")
"""
OWN_SERVERS = {
    "CDC_SOURCE": '{"kind": "postgres", "url": "postgresql://someone:p$w@db.example/shop"}',
    "CDC_METADATA_STORE": "postgresql://someone:p$w@store.example/metadata",
    "CDC_SPARK": "sc://spark.example:15002/;use_ssl=true",
}
PLAIN = {"sslmode": "disable", "channel_binding": "disable"}


@pytest.fixture
def compose_settings() -> Settings:
    return load_settings(DOCKER / "pipeline.yml", {})


@pytest.fixture
def settings_on_s3() -> Settings:
    server = {"CDC_OBJECT_STORE__ENDPOINT": "https://s3.example", "CDC_OBJECT_STORE__PATH_STYLE": "true"}
    return load_settings(DOCKER / "pipeline.yml", {"CDC_LAKE": "s3://bucket/lake", **server})


@pytest.fixture
def settings_of_own_servers() -> Settings:
    return load_settings(DOCKER / "pipeline.yml", OWN_SERVERS)


@pytest.fixture
def settings_of_files() -> Settings:
    return in_docker("{kind: debezium_files, path: events/}")


def in_docker(source: str) -> Settings:
    text = f"name: shop\nlake: file:///data/lake\nsource: {source}\ntables: [{{name: shop.public.orders}}]\n"
    return parse_settings(text, path=DOCKER / "pipeline.yml", environment={})


def native_place(settings: Settings, home: Path) -> Deployment:
    """Its ports are numbers that no other setting has: a free port could be 10000, which is also a capacity."""
    installation = open_installation(home)
    ports = {name: 900_001 + place for place, name in enumerate(installation.ports)}
    return this_machine(settings, home / "pipeline.yml", replace(installation, ports=ports), ("postgres",))


def described(settings: Settings, home: Path) -> tuple[Process, ...]:
    return processes(settings, native_place(settings, home))


def translated(text: str, native: Deployment, other: Deployment) -> str:
    pairs = {getattr(native.endpoints, name): getattr(other.endpoints, name) for name in native.endpoints.__slots__}
    pairs |= {url.removeprefix("postgresql://"): to.removeprefix("postgresql://") for url, to in pairs.items()}
    pairs |= {native.config: other.config, native.home: other.home, native.project: other.project}
    pairs |= {native.python: other.python, native.jwt_secret: other.jwt_secret}
    pairs |= {native.postgres_password: other.postgres_password, native.spark_token: other.spark_token}
    pairs |= {native.role_passwords[role]: other.role_passwords[role] for role in native.role_passwords}
    pairs |= {str(number): str(other.ports[name]) for name, number in native.ports.items()}
    for before in sorted(pairs, key=len, reverse=True):
        text = text.replace(before, pairs[before])
    return text


def test_the_airflow_that_is_started_answers_only_for_its_own_host_names(tmp_path: Path) -> None:
    (api,) = [each for each in described(shop_settings(tmp_path), tmp_path) if each.name == API_SERVER]
    assert api.environment["CDC_AIRFLOW_IS_EMBEDDED"]


def test_every_process_comes_after_what_it_depends_on(tmp_path: Path) -> None:
    seen: set[str] = set()
    for process in described(shop_settings(tmp_path), tmp_path):
        assert seen.issuperset(process.depends_on)
        seen.add(process.name)


def test_an_external_spark_is_not_started(tmp_path: Path) -> None:
    settings = shop_settings(tmp_path, CDC_SPARK="sc://spark.example:15002")
    everything = {process.name: process for process in described(settings, tmp_path)}
    assert not {"spark-connect", "warm-up"} & everything.keys()
    assert everything["consumer"].environment["CDC_SPARK"] == "sc://spark.example:15002"


def test_an_external_spark_needs_no_jars_and_no_compiler_here(tmp_path: Path) -> None:
    deployment = native_place(shop_settings(tmp_path, CDC_SPARK="sc://spark.example:15002"), tmp_path)
    assert deployment.jars == ()


@pytest.mark.parametrize(
    ("given", "slots"),
    [({}, "4"), ({"AIRFLOW__CORE__PARALLELISM": "8"}, "8"), ({"AIRFLOW__CORE__PARALLELISM": ""}, "4")],
)
def test_the_caller_chooses_how_many_tasks_airflow_runs(given: dict[str, str], slots: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHOWS_TASK_SLOTS, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")} | given
    assert subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout == slots


def test_an_external_source_and_store_get_no_database_of_ours(tmp_path: Path) -> None:
    url = "postgresql://someone@db.example/shop"
    settings = shop_settings(tmp_path, CDC_SOURCE__URL=url, CDC_METADATA_STORE=url)
    everything = {process.name: process for process in described(settings, tmp_path)}
    assert everything["databases"].command[-1] == "airflow"
    assert everything["migrate"].depends_on == ()
    assert endpoints(settings, tmp_path).source_url == url


def test_a_source_of_files_needs_no_database_and_is_told_no_url(tmp_path: Path) -> None:
    settings = parse_settings(FILES, path=tmp_path / "pipeline.yml", environment={})
    everything = {process.name: process for process in described(settings, tmp_path)}
    assert everything["databases"].command[-2:] == ("airflow", "cdc_metadata")
    assert "CDC_SOURCE__URL" not in everything["consumer"].environment
    assert everything["migrate"].depends_on == ("databases",)
    assert endpoints(settings, tmp_path).source_url == ""


def test_a_resident_worker_is_kept_running_where_slice_runs_need_one(tmp_path: Path) -> None:
    settings = shop_settings(tmp_path, CDC_WORKER__RUNS="task")
    with_tasks = {process.name for process in described(settings, tmp_path)}
    resident = {process.name: process for process in described(shop_settings(tmp_path), tmp_path)}
    assert resident.keys() - with_tasks == {WORKER}
    worker = resident[WORKER]
    assert worker.command[-1] == "work"
    assert worker.health == f"heartbeat://{worker.environment['CDC_HEARTBEAT']}#30"


def test_an_embedded_source_may_not_take_the_name_of_our_own_databases(tmp_path: Path) -> None:
    settings = shop_settings(tmp_path, CDC_TABLES='[{"name": "airflow.public.orders"}]')
    with pytest.raises(SettingsError, match="cannot be called 'airflow'"):
        described(settings, tmp_path)


def test_a_part_brings_what_it_depends_on_and_nothing_else(tmp_path: Path) -> None:
    parts = with_dependencies(described(shop_settings(tmp_path), tmp_path), frozenset({"migrate"}))
    assert [process.name for process in parts] == ["postgres", "databases", "migrate"]


def test_secrets_are_not_shown_with_a_process(tmp_path: Path) -> None:
    installation = open_installation(tmp_path)
    shown = repr(described(shop_settings(tmp_path), tmp_path))
    for secret in (installation.postgres_password, installation.jwt_secret, installation.spark_token):
        assert secret not in shown


def test_clients_send_the_token_that_the_spark_server_asks_for(tmp_path: Path) -> None:
    everything = {process.name: process for process in described(shop_settings(tmp_path), tmp_path)}
    token = everything[SPARK].environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
    assert everything["consumer"].environment["CDC_SPARK"].endswith(f"/;token={token}")
    assert token not in " ".join(everything[SPARK].command)
    assert (tmp_path / "installation.json").stat().st_mode & 0o077 == 0


def test_the_compose_file_is_the_one_that_the_description_makes(compose_settings: Settings) -> None:
    written = (DOCKER / "docker-compose.yml").read_text(encoding="utf-8")
    assert written == compose_text(compose_settings), "run `make compose`"


@pytest.mark.parametrize(
    "source",
    [
        "{kind: kinesis, stream: changes}",
        "{kind: dynamodb}",
        "{kind: change_files, path: 's3://bucket/changes', format: dms, order_by: [at]}",
    ],
)
def test_a_source_in_aws_has_the_credentials_that_compose_has_also_without_a_lake_there(source: str) -> None:
    services = composition(in_docker(source))["services"]
    assert dict.fromkeys(AWS_VARIABLES).items() <= services["consumer"]["environment"].items()
    assert services["consumer"]["build"].get("args") is None


@pytest.mark.parametrize("name", ["compose_settings", "settings_on_s3", "settings_of_own_servers", "settings_of_files"])
def test_containers_run_the_same_commands_in_the_same_environment(
    request: pytest.FixtureRequest, name: str, tmp_path: Path
) -> None:
    settings: Settings = request.getfixturevalue(name)
    other = containers(settings)
    same = {name: getattr(other, name) for name in ("listen", "cores", "task_slots", "postgres_host")}
    native = replace(native_place(settings, tmp_path), **same)
    services: dict[str, Any] = composition(settings)["services"]
    passed_on = dict.fromkeys(AWS_VARIABLES) if settings.on_s3 else {}
    for process in processes(settings, native):
        service = services.pop(process.name)
        assert list(service.get("depends_on", {})) == list(process.depends_on)
        if process.name != POSTGRES:
            assert service["command"] == [translated(word, native, other) for word in process.command]
            translations = {name: translated(value, native, other) for name, value in process.environment.items()}
            environment = {name: value for name, value in translations.items() if value}
            assert service["environment"] == environment | passed_on
            assert service["build"].get("args") == ({"JARS": "s3"} if settings.on_s3 else None)
    assert not services


def test_docker_keeps_the_output_of_no_container_without_a_limit(compose_settings: Settings) -> None:
    services = composition(compose_settings)["services"]
    assert [service["logging"] for service in services.values()] == [{"driver": "local"}] * len(services)


def test_both_servers_have_the_same_options_and_only_loopback_is_published(compose_settings: Settings) -> None:
    services = yaml.safe_load((DOCKER / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    assert services["postgres"]["command"][2::2] == [f"{name}={value}" for name, value in SERVER_OPTIONS.items()]
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert all(":" in service["image"] for service in services.values())


def test_a_lake_on_s3_brings_its_jars_and_settings_to_spark_and_a_folder_only_its_log_store(
    settings_on_s3: Settings, compose_settings: Settings, tmp_path: Path
) -> None:
    on_s3, in_folder = (
        next(process.command for process in described(settings, tmp_path) if process.name == SPARK)
        for settings in (settings_on_s3, compose_settings)
    )
    for setting in (
        "spark.hadoop.fs.s3a.endpoint=https://s3.example",
        "spark.hadoop.fs.s3a.endpoint.region=us-east-1",
        "spark.hadoop.fs.s3a.path.style.access=true",
        "spark.delta.logStore.s3a.impl=cdc.ConditionalLogStore",
    ):
        assert setting in on_s3
    jars = on_s3[on_s3.index("--jars") + 1]
    assert "hadoop-aws" in jars
    assert "cdc-log-store-s3a-" in jars
    assert "spark.delta.logStore.file.impl=cdc.LinkingLogStore" in in_folder
    assert "cdc-log-store-file-" in in_folder[in_folder.index("--jars") + 1]
    assert not [word for word in in_folder if "s3a" in word or "hadoop-aws" in word]


def test_no_process_is_told_a_credential_of_the_object_store(settings_on_s3: Settings, tmp_path: Path) -> None:
    for process in described(settings_on_s3, tmp_path):
        words = [*process.command, *process.environment, *process.environment.values()]
        assert not [word for word in words if "AWS_" in word or "access.key" in word or "secret.key" in word]


def test_airflow_keeps_no_idle_transaction_for_longer_than_its_heartbeats(tmp_path: Path) -> None:
    scheduler = next(process for process in described(shop_settings(tmp_path), tmp_path) if process.name == "scheduler")
    url = make_url(scheduler.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    assert url.query == PLAIN | {"options": "-cidle_in_transaction_session_timeout=30s"}


def test_a_run_of_maintenance_may_have_a_task_for_every_table_that_airflow_has_triggers_for(tmp_path: Path) -> None:
    airflow = next(process for process in described(shop_settings(tmp_path), tmp_path) if process.name == "scheduler")
    assert airflow.environment["AIRFLOW__CORE__MAX_MAP_LENGTH"] == airflow.environment["AIRFLOW__TRIGGERER__CAPACITY"]


def test_no_variable_of_libpq_asks_the_embedded_servers_for_tls(tmp_path: Path) -> None:
    scheduler = next(process for process in described(shop_settings(tmp_path), tmp_path) if process.name == "scheduler")
    for variable in ("CDC_SOURCE__URL", "CDC_METADATA_STORE"):
        assert make_url(scheduler.environment[variable]).query == PLAIN
    assert make_url(scheduler.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"]).query == {"ssl": "disable"}
    assert "PGSSLMODE" not in scheduler.environment


def test_a_server_of_ones_own_is_told_by_pipeline_yml_alone(settings_of_own_servers: Settings) -> None:
    services: dict[str, Any] = composition(settings_of_own_servers)["services"]
    assert not {"spark-connect", "warm-up"} & services.keys()
    assert services["databases"]["command"][-1] == "airflow"
    own = {"CDC_SOURCE__URL", "CDC_METADATA_STORE", "CDC_SPARK"}
    assert not [name for name, service in services.items() if own & service["environment"].keys()]


def test_the_image_has_its_account_before_set_up_creates_one() -> None:
    recipe = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    assert recipe.index("RUN useradd ") < recipe.index("RUN make setup")
