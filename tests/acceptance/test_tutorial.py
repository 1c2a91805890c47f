"""docs/tutorial.md: its SQL, its pipeline.yml, its commands and its programs, in their order."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer, create_database
from cdc_pipeline.launcher.project import CACHE, VENV
from tests.support.doc_pages import text_of
from tests.support.postgres import started_server
from tests.support.streams import run_sql

PAGE = "docs/tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAM = re.compile(r"`(tutorial/\w+\.py)`")
COMMAND_SECONDS = 900


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """Of the test's own: roles belong to a whole server."""
    with started_server(dict(os.environ)) as server:
        create_database(server.url("postgres"), "shop")
        yield server


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The folder in which the reader stands."""
    (tmp_path / "tutorial").mkdir()
    (tmp_path / ".venv").symlink_to(VENV)
    (tmp_path / ".cache").symlink_to(CACHE)
    return tmp_path


def run(command: str, clone: Path, urls: dict[str, str]) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CDC_")}
    ended = subprocess.run(
        shlex.split(command),
        env={**environment, **urls, "CDC_CONFIG": "tutorial/pipeline.yml"},
        cwd=clone,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def test_the_tutorial_ends_with_an_equal_lake_that_three_readers_show(
    clone: Path, server: PostgresServer, store_url: str, spark_url: str
) -> None:
    """The servers that the page embeds are those of the tests here; all else is as written."""
    text = text_of(PAGE)
    programs, shown = iter(PROGRAM.findall(text)), list[str]()
    urls = {"CDC_METADATA_STORE": store_url, "CDC_SPARK": spark_url}
    for language, block in BLOCK.findall(text):
        if language == "sql":
            run_sql(server.url("shop"), *block.strip().split(";\n"))
        elif language == "yaml":
            address = f"@127.0.0.1:{server.port}/"
            (clone / "tutorial" / "pipeline.yml").write_text(block.replace("@127.0.0.1/", address), encoding="utf-8")
        elif language == "python":
            (clone / next(programs)).write_text(block, encoding="utf-8")
        elif language == "sh":
            shown += [run(command, clone, urls) for command in block.splitlines()]
    *_, verdict, by_spark, by_others = shown
    assert "lake equals source" in verdict
    expected = [line.split() for line in BLOCK.findall(text)[-1][1].splitlines()]
    for output in (by_spark, by_others):
        lines = [line.replace("|", " ").split() for line in output.splitlines()]
        assert [line for line in lines if line[:1] and line[0].isdigit()][: len(expected)] == expected
