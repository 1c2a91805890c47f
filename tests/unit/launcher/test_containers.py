"""What containers get of `pipeline.yml` and of the files that it names, and what they refuse."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.core
import typer.main

from cdc_pipeline.cli.application import application
from cdc_pipeline.errors import SettingsError
from cdc_pipeline.launcher.compose import composition
from cdc_pipeline.launcher.processes import SPARK
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.settings.file import load_settings
from tests.support.doc_pages import blocks
from tests.unit.launcher.test_processes import DOCKER, in_docker

PAGE = "docs/how-to/containers.md"
SOURCES = {
    "change files": "{kind: change_files, path: changes, format: upserts}",
    "a bucket": "{kind: change_files, path: s3://bucket/changes, format: upserts}",
    "kafka": "{kind: kafka, servers: 'k:9092', topic: '{table}', security: ssl, ca_file: ca.pem}",
    "mysql": "{kind: mysql, url: mysql://u@h, password_file: ../password, tls_ca: /data/ca.pem}",
}
MOUNTED = {
    "change files": [("./changes", "/etc/cdc/changes")],
    "kafka": [("./ca.pem", "/etc/cdc/ca.pem")],
    "mysql": [("./../password", "/etc/password")],
}


def read_only(source: str, target: str) -> dict[str, Any]:
    """A file or folder of the machine. Compose refuses one that is missing, and creates no folder in its place."""
    bind = {"create_host_path": False}
    return {"type": "bind", "source": source, "target": target, "read_only": True, "bind": bind}


@pytest.mark.parametrize("kind", SOURCES)
def test_containers_read_the_files_that_pipeline_yml_names(kind: str) -> None:
    consumer = composition(in_docker(SOURCES[kind]))["services"]["consumer"]
    mounted = [("./pipeline.yml", "/etc/cdc/pipeline.yml"), *MOUNTED.get(kind, [])]
    assert consumer["volumes"] == ["data:/data", *(read_only(source, target) for source, target in mounted)]
    assert "CDC_SOURCE__URL" not in consumer["environment"]


def test_a_file_that_two_settings_name_is_mounted_once() -> None:
    both = SOURCES["kafka"].replace("ca_file: ca.pem", "certificate_file: one.pem, key_file: one.pem")
    consumer = composition(in_docker(both))["services"]["consumer"]
    assert consumer["volumes"][2:] == [read_only("./one.pem", "/etc/cdc/one.pem")]


def test_a_dollar_sign_of_pipeline_yml_is_no_variable_of_compose() -> None:
    consumer = composition(in_docker(SOURCES["kafka"].replace("ca.pem", "'a$b:c.pem'")))["services"]["consumer"]
    assert consumer["volumes"][2] == read_only("./a$$b:c.pem", "/etc/cdc/a$$b:c.pem")
    options = {"CDC_DRIVER__JAVA_OPTIONS": "-Done=$HOME -Dtwo=${HOME} -Dthree=${env:CDC_TWO}"}
    services = composition(load_settings(DOCKER / "pipeline.yml", options))["services"]
    (given,) = [word for word in services[SPARK]["command"] if "-Done" in word]
    assert given.endswith("-Done=$$HOME -Dtwo=$${HOME} -Dthree=$${env:CDC_TWO}")
    plain = composition(load_settings(DOCKER / "pipeline.yml", {}))["services"]
    assert services[SPARK]["environment"] == plain[SPARK]["environment"]
    assert "$$" not in str(plain)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("CDC_LAKE", "lake", "correct lake in docker"), ("CDC_INCLUDE", '["shop.public.*"]', "list the tables in docker")],
)
def test_what_containers_cannot_do_is_refused(key: str, value: str, words: str) -> None:
    settings = load_settings(DOCKER / "pipeline.yml", {key: value}, matching=())
    with pytest.raises(SettingsError, match=words):
        composition(settings)


@pytest.mark.parametrize(("code", "content"), [(0, "new\n"), (1, "old\n")])
def test_a_mistake_in_pipeline_yml_leaves_the_compose_file_as_it_was(tmp_path: Path, code: int, content: str) -> None:
    (tmp_path / "docker").mkdir()
    written = tmp_path / "docker" / "docker-compose.yml"
    written.write_text("old\n")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho new\nexit {code}\n")
    python.chmod(0o755)
    command = ["make", "-C", str(tmp_path), "-f", str(PROJECT / "Makefile"), f"BIN={tmp_path}", "PYTHON=true"]
    assert (subprocess.run([*command, "SET_UP=true", "compose"], check=False).returncode == 0) is (code == 0)
    assert written.read_text() == content


def test_commands_of_the_page_name_services_and_commands_that_exist() -> None:
    """`exec` and `run` of a service; without an entry point, the words behind it are the command that runs."""
    found = re.findall(r"(exec|run)((?: -\S+)*) ([\w-]+)(?: cdc (.*))?$", "".join(blocks(PAGE, "text")), re.MULTILINE)
    services = composition(load_settings(DOCKER / "pipeline.yml", {}))["services"]
    assert {service for *_, service, _ in found} <= set(services)
    assert not any("entrypoint" in service for service in services.values())
    assert "ENTRYPOINT" not in (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    group = typer.main.get_command(application())
    assert isinstance(group, typer.core.TyperGroup)
    for words in (words.split() for *_, words in found if words):
        command = group.get_command(group.make_context("cdc", [], resilient_parsing=True), words[0])
        assert command is not None, words
        command.make_context("cdc", words[1:])
    while_stopped = {words for kind, options, service, words in found if kind == "run" and "--no-deps" in options}
    assert while_stopped >= {"setup-source --begin-again", "snapshot"}
