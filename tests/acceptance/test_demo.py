"""The whole stack: `cdc demo` from nothing to its proof, every command of the documents, and `cdc down`."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from cdc_pipeline.demo.airflow_api import open_airflow
from cdc_pipeline.launcher.control import process_states
from cdc_pipeline.launcher.marked import STACK_VARIABLE, SUPERVISOR, marked
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.launcher.supervisor import Condition
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.file import load_settings
from cdc_pipeline.settings.installation.endpoints import Endpoints, endpoints
from cdc_pipeline.settings.installation.state import PORT_NAMES, home_of, open_installation
from tests.support.command_line import end_by
from tests.support.command_server import CommandServer
from tests.support.doc_pages import README, commands, pages_for_the_demo, text_of
from tests.support.eventually import eventually

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("demo")]

DEMO_SECONDS = 900
COMMAND_SECONDS = 300
PORTS_THAT_SPARK_OPENS_FOR_ITSELF = 2
AIRFLOW = {"airflow-migrate", "api-server", "dag-processor", "scheduler", "triggerer"}
OWN = {"warm-up", "migrate", "setup-source", "consumer", "worker"}
PROCESSES = {"postgres", "databases", "spark-connect"} | OWN | AIRFLOW
BY_MAKE = ("make demo", "make test", "make down", "make setup", "make fuzz", "make bank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A demo that ended; its stack is up."""

    config: Path
    exit_code: int
    output: str

    @property
    def settings(self) -> Settings:
        return load_settings(self.config, {})

    @property
    def home(self) -> Path:
        return home_of(self.settings, {})

    @property
    def identity(self) -> str:
        return open_installation(self.home).identity

    @property
    def airflow_url(self) -> str:
        return self.endpoints.airflow_url

    @property
    def endpoints(self) -> Endpoints:
        return endpoints(self.settings, self.home)


def cdc(config: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "cdc_pipeline", *arguments],
        env={**os.environ, "CDC_CONFIG": str(config)},
        cwd=config.parent,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    config = folder / "pipeline.yml"
    ended = subprocess.run(
        [sys.executable, "-m", "cdc_pipeline", "demo", "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEMO_SECONDS,
        check=False,
    )
    demo = Demo(config=config, exit_code=ended.returncode, output=ended.stdout)
    try:
        yield demo
        kill_the_supervisor(demo)
    finally:
        went_down = cdc(config, "down")
    check_nothing_is_left(demo, went_down)


def kill_the_supervisor(demo: Demo) -> None:
    """Whatever it started lives on, and `cdc down` has to find all of it without help."""
    next(process for process, name in marked(demo.identity).items() if name == SUPERVISOR).kill()
    assert eventually(lambda: SUPERVISOR not in marked(demo.identity).values())
    assert httpx.get(f"{demo.airflow_url}/api/v2/version").is_success


def check_nothing_is_left(demo: Demo, went_down: "subprocess.CompletedProcess[str]") -> None:
    """`cdc down` ended every process of the installation, and its ports are free."""
    assert went_down.returncode == 0, went_down.stderr
    assert [process.pid for process in psutil.process_iter() if _belongs_to(process, demo.identity)] == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(demo.airflow_url)


def test_the_demo_survives_a_killed_worker_and_ends_with_no_differing_row(demo: Demo) -> None:
    assert demo.exit_code == 0, demo.output
    assert "kill -9" in demo.output
    for table in demo.settings.tables:
        (line,) = [line for line in demo.output.splitlines() if line.startswith(table.name)]
        cells = line.split()
        source, lake, differing, slices = int(cells[1]), int(cells[2]), int(cells[3]), int(cells[6])
        assert (differing, source == lake, slices >= 3) == (0, True, True), line


def test_every_process_is_up_and_listens_on_loopback_alone(demo: Demo) -> None:
    states = process_states(demo.home)
    assert {state.name for state in states} == PROCESSES
    assert {state.condition for state in states} == {Condition.DONE, Condition.HEALTHY}
    listening = [
        connection.laddr
        for process in marked(demo.identity)
        for connection in process.net_connections("inet")
        if connection.status == "LISTEN"
    ]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert len(listening) == len(PORT_NAMES) + PORTS_THAT_SPARK_OPENS_FOR_ITSELF


def test_airflow_did_the_work(demo: Demo) -> None:
    with open_airflow(demo.endpoints) as airflow:
        for dag_id in ("cdc_snapshot", "cdc_backfill", "cdc_slice__shop__public__orders"):
            runs = airflow.client.get(f"/api/v2/dags/{dag_id}/dagRuns", params={"order_by": "-id"}).json()["dag_runs"]
            assert "success" in {run["state"] for run in runs}


def test_airflow_answers_nobody_without_its_password_nor_under_another_name(demo: Demo) -> None:
    assert f"password: {demo.endpoints.airflow_password}" in demo.output
    for credentials in (None, {"username": "admin", "password": "admin"}, {"username": "admin", "password": ""}):
        method = "GET" if credentials is None else "POST"
        assert httpx.request(method, f"{demo.airflow_url}/auth/token", json=credentials).is_client_error
    assert httpx.get(f"{demo.airflow_url}/api/v2/dags").status_code == httpx.codes.UNAUTHORIZED
    for path in ("/", "/api/v2/version", "/auth/token", "/execution/health"):
        rebound = httpx.get(f"{demo.airflow_url}{path}", headers={"Host": "evil.example"})
        assert (rebound.status_code, rebound.text) == (httpx.codes.BAD_REQUEST, "Invalid host header")


@pytest.mark.parametrize("page", pages_for_the_demo())
def test_every_command_of_the_documents_works(demo: Demo, page: str, command_server: CommandServer) -> None:
    for command in commands(page):
        program, *words = shlex.split(command, comments=True)
        assert program == ".venv/bin/cdc", command
        environment = {**os.environ, "CDC_CONFIG": str(demo.config)}
        ended = end_by(command_server, words, folder=demo.config.parent, environment=environment)
        assert ended.exit_code in (0, 4), f"{command}\n{ended.output}{ended.errors}"


def test_what_make_is_told_in_the_readme_is_what_the_makefile_has() -> None:
    readme = text_of(README)
    targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for line in BY_MAKE:
        assert line in readme
        assert line.removeprefix("make ") in targets


def _belongs_to(process: psutil.Process, identity: str) -> bool:
    try:
        return process.environ().get(STACK_VARIABLE, "").startswith(identity)
    except psutil.Error:
        return False
