"""A bank that pgbench writes to: two PostgreSQL servers, Spark, a consumer and workers, kept up by our supervisor."""

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc_pipeline.demo.pgbench import initialize_pgbench
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings_file import load_settings
from cdc_pipeline.source_setup import set_up_source
from cdc_pipeline.stack.account import server_account
from cdc_pipeline.stack.control import down, process_states, start_and_wait
from cdc_pipeline.stack.jars import jars_of, present_jars, read_lock
from cdc_pipeline.stack.log_store import log_store_jar
from cdc_pipeline.stack.place import spark_jar_sets
from cdc_pipeline.stack.ports import free_port
from cdc_pipeline.stack.postgres import (
    LOOPBACK,
    PostgresServer,
    create_database,
    find_binaries,
    reachable_binaries,
    running_server,
)
from cdc_pipeline.stack.processes import Process
from cdc_pipeline.stack.project import JARS, JARS_LOCK
from cdc_pipeline.stack.spark import available_cores, s3_settings, server_command, spark_home
from cdc_pipeline.stack.state import Installation, open_installation
from cdc_pipeline.wiring import Pipeline
from tests.support.pipelines import opened_pipeline, take_snapshot
from tests.support.spark import INTERPRETED

SOURCE, STORE, SPARK, CONSUMER = "source", "store", "spark-connect", "consumer"
WORKERS = ("worker-1", "worker-2")
DATABASE = "bank"
TABLES = ("pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history")
LEASE_SECONDS = 5
QUICK_JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {INTERPRETED}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """`installation` is the supervisor's; both servers are durable, as in production."""

    installation: Installation
    config: Path
    settings: Settings
    source_url: str
    store_url: str
    spark_url: str

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        with opened_pipeline(self.settings, store_url=self.store_url, spark_url=self.spark_url) as pipeline:
            yield pipeline

    def process(self, name: str) -> int | None:
        """The number of the process that the supervisor keeps under this name now."""
        return next(state.pid for state in process_states(self.installation.home) if state.name == name)

    def log(self, name: str) -> str:
        return self.installation.log(name).read_text(encoding="utf-8", errors="replace")


@contextmanager
def burning_bank(*, slice_seconds: int, claim_slices: int, **more: Any) -> Iterator[Bank]:
    """Filled, snapshotted, and with everything up; nobody writes yet. `more` goes into pipeline.yml."""
    home = Path(tempfile.mkdtemp(prefix="cdc-test-bank-"))
    home.chmod(0o711)
    try:
        source, store = _server(home, SOURCE), _server(home, STORE)
        spark_port = free_port()
        bank = Bank(
            installation=open_installation(home / "home"),
            config=home / "pipeline.yml",
            settings=_settings(home, source, store, slice_seconds, claim_slices, more),
            source_url=source.url(DATABASE),
            store_url=store.url(DATABASE),
            spark_url=f"sc://{LOOPBACK}:{spark_port}",
        )
        with running_server(source), running_server(store):
            _fill(bank, source, store)
        try:
            start_and_wait(bank.installation, _processes(bank, source, store, spark_port), lambda _: None)
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
    home: Path,
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
        "worker": {"lease": f"{LEASE_SECONDS}s", "claim_slices": claim_slices},
        "source": {"kind": "postgres", "url": source.url(DATABASE), "stream_partitions": 2},
        "tables": [{"name": f"{DATABASE}.public.{table}"} for table in TABLES],
        **more,
    }
    path = home / "pipeline.yml"
    path.write_text(json.dumps(document), encoding="utf-8")
    return load_settings(path, {})


def _fill(bank: Bank, source: PostgresServer, store: PostgresServer) -> None:
    for server in (source, store):
        create_database(server.url("postgres"), DATABASE)
    initialize_pgbench(bank.source_url, scale=1, environment=os.environ)
    with bank.pipeline() as pipeline:
        set_up_source(pipeline)


def _processes(bank: Bank, source: PostgresServer, store: PostgresServer, spark_port: int) -> tuple[Process, ...]:
    environment = {"CDC_CONFIG": str(bank.config), "CDC_SPARK": bank.spark_url, "TZ": "UTC"}

    def own(name: str, verb: str, depends_on: str | tuple[str, ...], *, one_shot: bool = False) -> Process:
        return Process(
            name=name,
            waits_for=f"cdc {verb}",
            command=(sys.executable, "-m", "cdc_pipeline", verb),
            environment=environment,
            depends_on=(depends_on,) if isinstance(depends_on, str) else depends_on,
            one_shot=one_shot,
        )

    return (
        _server_process(SOURCE, source),
        _server_process(STORE, store),
        _spark_process(bank, spark_port),
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


def _spark_process(bank: Bank, port: int) -> Process:
    folder = bank.installation.home / "spark"
    folder.mkdir()
    jars = present_jars(JARS, jars_of(read_lock(JARS_LOCK), spark_jar_sets(bank.settings)))
    return Process(
        name=SPARK,
        waits_for="the Spark driver to listen",
        command=server_command(
            spark_home=str(spark_home()),
            jars=[str(jar) for jar in (*jars, *([log_store_jar(JARS)] if bank.settings.on_s3 else []))],
            cores=available_cores(),
            listen=LOOPBACK,
            port=port,
            folder=str(folder),
            java_options=QUICK_JAVA,
            more=s3_settings(bank.settings.object_store, folder=str(folder), log_store=True),
        ),
        environment={"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": LOOPBACK, "TZ": "UTC"},
        health=f"tcp://{LOOPBACK}:{port}",
    )
