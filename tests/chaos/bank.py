"""A bank that pgbench writes to: source and metadata store of its own, and a pipeline, kept up by our supervisor."""

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg2

from cdc_pipeline.demo.pgbench import initialize_pgbench
from cdc_pipeline.launcher.account import server_account
from cdc_pipeline.launcher.control import down, process_states, start_and_wait
from cdc_pipeline.launcher.deployment import spark_jar_sets
from cdc_pipeline.launcher.jars import jars_of, present_jars, read_lock
from cdc_pipeline.launcher.postgres import (
    PostgresServer,
    create_database,
    find_binaries,
    reachable_binaries,
    running_server,
)
from cdc_pipeline.launcher.processes import Process
from cdc_pipeline.launcher.project import JARS, JARS_LOCK
from cdc_pipeline.launcher.spark import available_cores, s3_settings, server_command, spark_home
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.file import load_settings
from cdc_pipeline.settings.installation.endpoints import endpoints_of
from cdc_pipeline.settings.installation.ports import LOOPBACK, free_port
from cdc_pipeline.settings.installation.state import Installation, open_installation
from cdc_pipeline.wiring import Pipeline
from tests.support.command_line import query
from tests.support.pipelines import opened_pipeline, take_snapshot
from tests.support.spark import QUICK_JAVA

SOURCE, STORE, SPARK, CONSUMER = "source", "store", "spark-connect", "consumer"
WORKERS = ("worker-1", "worker-2")
DATABASE = "bank"
TABLES = ("pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history")
LEASE_SECONDS = 5
OPEN_CLAIMS = "SELECT owner FROM cdc.claim WHERE state = 'claimed' ORDER BY 1"

Describe = Callable[[Settings, Path, Installation], tuple[Installation, tuple[Process, ...]]]
"""What has to be up beside source and metadata store."""


class NobodyThere(Exception):
    """Who is asked for is away just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """`installation` is the supervisor's; both servers are durable, as in production."""

    installation: Installation
    settings: Settings
    source_url: str
    store_url: str

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        spark_url = endpoints_of(self.settings, self.installation).spark_url
        with opened_pipeline(self.settings, store_url=self.store_url, spark_url=spark_url) as pipeline:
            yield pipeline

    def process(self, name: str) -> psutil.Process:
        """That the supervisor keeps under this name now. Raises NobodyThere between two of them."""
        number = next(state.pid for state in process_states(self.installation.home) if state.name == name)
        if number is None or not psutil.pid_exists(number):
            raise NobodyThere(name)
        return psutil.Process(number)

    def claim_owners(self) -> list[str]:
        """Of the claims that are open. Raises NobodyThere while nobody knows them."""
        try:
            return [owner for (owner,) in query(self.store_url, OPEN_CLAIMS)]
        except psycopg2.OperationalError as away:
            raise NobodyThere(STORE) from away

    def log(self, name: str) -> str:
        return self.installation.log(name).read_text(encoding="utf-8", errors="replace")


@contextmanager
def burning_bank(describe: Describe, *, slice_seconds: int, claim_slices: int, **more: Any) -> Iterator[Bank]:
    """Filled, snapshotted, and with everything up; nobody writes yet. `more` goes into pipeline.yml."""
    home = Path(tempfile.mkdtemp(prefix="cdc-test-bank-"))
    home.chmod(0o711)
    try:
        source, store = _server(home, SOURCE), _server(home, STORE)
        config = home / "pipeline.yml"
        settings = _settings(config, source, store, slice_seconds, claim_slices, more)
        installation, described = describe(settings, config, open_installation(home / "home"))
        bank = Bank(
            installation=installation,
            settings=settings,
            source_url=source.url(DATABASE),
            store_url=store.url(DATABASE),
        )
        with running_server(source), running_server(store):
            _fill(bank, source, store)
        try:
            servers = _server_process(SOURCE, source), _server_process(STORE, store)
            start_and_wait(bank.installation, (*servers, *described), lambda _: None)
            with bank.pipeline() as pipeline:
                take_snapshot(pipeline, *pipeline.table_names())
            yield bank
        finally:
            down(bank.installation.home)
    finally:
        shutil.rmtree(home)


def _server(home: Path, name: str) -> PostgresServer:
    account = server_account()
    (home / name).mkdir()
    return PostgresServer(
        folder=home / name,
        binaries=reachable_binaries(find_binaries(os.environ), account, home),
        port=free_port(),
        password=secrets.token_urlsafe(16),
        account=account,
    )


def _settings(
    config: Path,
    source: PostgresServer,
    store: PostgresServer,
    slice_seconds: int,
    claim_slices: int,
    more: Mapping[str, Any],
) -> Settings:
    document = {
        "name": "bank",
        "lake": "lake",
        "metadata_store": store.url(DATABASE),
        "slice_length": f"{slice_seconds}s",
        "worker": {"lease": f"{LEASE_SECONDS}s", "claim_slices": claim_slices, "longest_pause": "20s"},
        "driver": {"java_options": QUICK_JAVA},
        "source": {"kind": "postgres", "url": source.url(DATABASE), "stream_partitions": 2},
        "tables": [{"name": f"{DATABASE}.public.{table}"} for table in TABLES],
        **more,
    }
    config.write_text(json.dumps(document), encoding="utf-8")
    return load_settings(config, {})


def _fill(bank: Bank, source: PostgresServer, store: PostgresServer) -> None:
    for server in (source, store):
        create_database(server.url("postgres"), DATABASE)
    initialize_pgbench(bank.source_url, scale=1, environment=os.environ)
    with bank.pipeline() as pipeline:
        pipeline.source_setup().set_up()


def with_own_workers(
    settings: Settings, config: Path, installation: Installation
) -> tuple[Installation, tuple[Process, ...]]:
    """Spark, the consumer, and workers that look for slices again and again."""
    environment = {"CDC_CONFIG": str(config), "CDC_SPARK": endpoints_of(settings, installation).spark_url, "TZ": "UTC"}

    def own(name: str, verb: str, depends_on: str | tuple[str, ...], *, one_shot: bool = False) -> Process:
        return Process(
            name=name,
            waits_for=f"cdc {verb}",
            command=(sys.executable, "-m", "cdc_pipeline", verb),
            environment=environment,
            depends_on=(depends_on,) if isinstance(depends_on, str) else depends_on,
            one_shot=one_shot,
        )

    return installation, (
        _spark_process(settings, installation),
        own("migrate", "migrate", (SOURCE, STORE, SPARK), one_shot=True),
        own(CONSUMER, "consume", "migrate"),
        *(own(worker, "apply", "migrate") for worker in WORKERS),
    )


def _server_process(name: str, server: PostgresServer) -> Process:
    return Process(
        name=name,
        waits_for="PostgreSQL to accept connections",
        command=tuple(server.command()),
        environment={"TZ": "UTC"},
        health=server.url("postgres"),
        as_server_account=True,
    )


def _spark_process(settings: Settings, installation: Installation) -> Process:
    folder, port = installation.home / "spark", installation.ports["spark"]
    folder.mkdir()
    jars = present_jars(JARS, jars_of(read_lock(JARS_LOCK), spark_jar_sets(settings)))
    return Process(
        name=SPARK,
        waits_for="the Spark driver to answer",
        command=server_command(
            spark_home=str(spark_home()),
            jars=[str(jar) for jar in jars],
            cores=available_cores(),
            listen=LOOPBACK,
            port=port,
            folder=str(folder),
            driver=settings.driver,
            more=s3_settings(settings.object_store, folder=str(folder)) if settings.on_s3 else {},
        ),
        environment={"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": LOOPBACK, "TZ": "UTC"},
        health=f"http2://{LOOPBACK}:{port}",
    )
