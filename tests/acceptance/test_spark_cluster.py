"""docs/how-to/spark-cluster.md: the same commands on a standalone cluster, with the lake on an S3 server."""

import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc_pipeline.launcher.launch import start
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.launcher.spark import spark_home
from cdc_pipeline.settings import ObjectStoreSettings
from cdc_pipeline.settings.installation.ports import free_port
from tests.acceptance.test_object_stores import ADA
from tests.support.delta_rows import delta_rows, delta_url, seen, storage_options
from tests.support.doc_pages import blocks, commands
from tests.support.eventually import await_listener
from tests.support.s3 import BUCKET, REGION, s3_objects
from tests.support.spark import ONE_COMPILER

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

PAGE = "docs/how-to/spark-cluster.md"
LOOPBACK = "127.0.0.1"
START_SECONDS, COMMAND_SECONDS = 60, 300


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of the cluster and of the pipeline's commands: one secret, and nothing that points at another pipeline."""
    (tmp_path / "conf").mkdir()
    defaults = blocks(PAGE, "text")[-1].replace("the same random text on all machines", secrets.token_hex(16))
    (tmp_path / "conf" / "spark-defaults.conf").write_text(defaults, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CDC_")}
    return {**kept, "PYTHONPATH": str(PROJECT), "SPARK_CONF_DIR": str(tmp_path / "conf")}


@pytest.fixture
def master(tmp_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """The URL of a cluster with two workers of one core each; what they ran is below `tmp_path / "work"`."""
    url = f"spark://{LOOPBACK}:{free_port()}"
    daemon = {
        **environment,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with ExitStack() as ended:

        def run(role: str, port: int, *words: str) -> None:
            command = [f"{spark_home()}/bin/spark-class", f"org.apache.spark.deploy.{role.lower()}.{role}"]
            log = tmp_path / f"{role}-{port}.log"
            output = ended.enter_context(log.open("wb"))
            process = start(
                [*command, "--host", LOOPBACK, "--port", str(port), "--webui-port", "0", *words],
                environment=daemon,
                folder=tmp_path,
                output=output,
                tied=True,
            )
            ended.callback(process.wait, START_SECONDS)
            ended.callback(process.terminate)
            await_listener(process, port, START_SECONDS, log.read_text)

        run("Master", int(url.rpartition(":")[2]))
        for number in range(2):
            folder = str(tmp_path / "work" / str(number))
            run("Worker", free_port(), "--cores", "1", "--memory", "1g", "--work-dir", folder, url)
        yield url


@pytest.fixture
def folder(tmp_path: Path, master: str) -> Path:
    """The page's pipeline.yml with the cluster's address, and the same event of two tables."""
    folder, event = tmp_path / "pipeline", blocks("docs/how-to/debezium-files.md", "json")[0]
    (folder / "events" / "0").mkdir(parents=True)
    both = event + event.replace('"orders"', '"returns"')
    (folder / "events" / "0" / "000001.jsonl").write_text(both, encoding="utf-8")
    settings = blocks(PAGE, "yaml")[0]
    assert settings.count("spark://127.0.0.1:7077") == 1
    (folder / "pipeline.yml").write_text(settings.replace("spark://127.0.0.1:7077", master), encoding="utf-8")
    return folder


def ended(started: Sequence["subprocess.Popen[str]"]) -> None:
    outputs = [process.communicate(timeout=COMMAND_SECONDS)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(outputs)


def test_two_workers_share_a_driver_whose_executors_are_a_cluster(
    folder: Path, environment: dict[str, str], s3_endpoint: str, s3_prefix: str
) -> None:
    place = {
        "CDC_LAKE": f"s3://{BUCKET}/{s3_prefix}",
        "CDC_OBJECT_STORE__ENDPOINT": s3_endpoint,
        "CDC_DRIVER__JAVA_OPTIONS": ONE_COMPILER,
    }

    def run(command: str) -> "subprocess.Popen[str]":
        program, *words = shlex.split(command)
        assert program == "cdc"
        return subprocess.Popen(
            [sys.executable, "-m", "cdc_pipeline", *words],
            env={**environment, **place},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    *first, orders, returns = commands(PAGE)
    for command in first:
        ended([run(command)])
    ended([run(orders), run(returns)])

    options = storage_options(ObjectStoreSettings(endpoint=s3_endpoint, region=REGION))
    for table in ("orders", "returns"):
        url = delta_url(s3_objects(s3_endpoint, s3_prefix), f"datalake/shop/public/{table}")
        assert seen(delta_rows(url, options)) == [ADA]
    executors = [path.parent.parent.name for path in folder.parent.glob("work/*/app-*/*")]
    assert len(executors) >= 2, "both workers of the cluster ran an executor"
