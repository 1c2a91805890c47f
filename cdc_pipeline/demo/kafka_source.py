"""The demo over Kafka: MariaDB, Debezium in Kafka Connect, a broker, and a proof against the database at rest."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Event

import structlog

from cdc_pipeline.demo.kafka import broker_command, connect_command, mariadb_connector
from cdc_pipeline.demo.mariadb import DATABASE, TABLES, seed_mariadb, start_mariadb
from cdc_pipeline.demo.servers import SourceServer, ensure_server
from cdc_pipeline.errors import SourceAway, UsageError
from cdc_pipeline.installation.ports import LOOPBACK, free_port, is_listening
from cdc_pipeline.installation.state import Installation, home_of, open_installation
from cdc_pipeline.operations.verification import Verified
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.topics import read_cluster
from cdc_pipeline.wiring import Pipeline
from cdc_pipeline.wiring.against import verify_against

_MORE_RIGHTS = ", RELOAD, SHOW DATABASES, LOCK TABLES, SELECT"
"""What Debezium's first snapshot of MariaDB needs besides the rights of a reader of the log."""
_LONGEST_WAY = timedelta(minutes=5)
_POLL_SECONDS = 2.0

log = structlog.get_logger()


def begin_kafka(settings: Settings, config: Path) -> str:
    """Starts broker, MariaDB and Connect, and returns when Connect has made each table's topic.

    Returns the URL of the shop for its sessions.
    """
    installation, folder = open_installation(home_of(settings, os.environ)), config.parent
    _start_broker(installation, folder / "kafka", _source(settings).servers)
    url = start_mariadb(installation, folder / "mariadb", _kept_port(folder / "mariadb.port"), more_rights=_MORE_RIGHTS)
    seed_mariadb(url)
    _start_connect(installation, folder / "connect", settings, _reader(url))
    return url


def verify_kafka(pipeline: Pipeline, tables: Sequence[TableName]) -> tuple[Verified, ...]:
    """Compares with MariaDB until the last change has come through, or five minutes are over."""
    folder = pipeline.settings.folder
    password = (folder / "mariadb" / "password").read_text(encoding="utf-8")
    url = f"mysql://cdc_reader:{password}@{LOOPBACK}:{_kept_port(folder / 'mariadb.port')}"
    deadline = time.monotonic() + _LONGEST_WAY.total_seconds()
    while True:
        verdicts = verify_against(pipeline, tables, url)
        if all(verdict.is_equal for verdict in verdicts) or time.monotonic() > deadline:
            return verdicts
        log.info("changes are on their way", tables=[str(each.table) for each in verdicts if not each.is_equal])
        Event().wait(_POLL_SECONDS)


def _start_broker(installation: Installation, folder: Path, servers: str) -> None:
    folder.mkdir(exist_ok=True)
    port = int(servers.rpartition(":")[2])
    command = broker_command(folder, port=port, controller=free_port())
    _ensure(installation, "kafka", command, folder, lambda: is_listening(port))


def _start_connect(installation: Installation, folder: Path, settings: Settings, url: str) -> None:
    folder.mkdir(exist_ok=True)
    connector = mariadb_connector(url, folder, prefix="shop", tables=[f"{DATABASE}.{table}" for table in TABLES])
    servers = _source(settings).servers
    command = connect_command(folder, servers=servers, port=free_port(), connectors=[connector])
    topics = {f"shop.{table.table.schema}.{table.table.table}" for table in settings.tables}
    _ensure(installation, "kafka-connect", command, folder, lambda: topics <= _topics(settings))


def _ensure(
    installation: Installation, name: str, command: list[str], folder: Path, answers: Callable[[], bool]
) -> None:
    ensure_server(installation, SourceServer(name=name, command=tuple(command), folder=folder, answers=answers))


def _source(settings: Settings) -> KafkaSource:
    if not isinstance(settings.source, KafkaSource):
        raise UsageError(
            f"pipeline.yml in {settings.folder} reads a source of the kind {settings.source.kind}",
            expected="kafka",
            remedy="use another --folder",
        )
    return settings.source


def _topics(settings: Settings) -> set[str]:
    with closing(KafkaClient(_source(settings), settings.folder, group="demo")) as client:
        try:
            return set(read_cluster(client).topics)
        except SourceAway:
            return set()


def _reader(url: str) -> str:
    """The same server for the user that Debezium is."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://cdc_reader:{rest.partition(':')[2]}"


def _kept_port(path: Path) -> int:
    """A free port, which is the same at the next call."""
    if not path.exists():
        path.write_text(str(free_port()), encoding="utf-8")
    return int(path.read_text(encoding="utf-8"))
