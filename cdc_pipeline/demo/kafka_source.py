"""The demo over Kafka: MariaDB, Debezium in Kafka Connect, and a broker."""

import os
from contextlib import closing
from pathlib import Path

from cdc_pipeline.demo.kafka import broker_command, connect_command, mariadb_connector
from cdc_pipeline.demo.mariadb import DATABASE, TABLES
from cdc_pipeline.demo.servers import ensure_server
from cdc_pipeline.demo.shop_behind import reader_url, source_as, start_shop
from cdc_pipeline.errors import SourceAway
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.ports import free_port, is_listening
from cdc_pipeline.settings.installation.state import Installation, home_of, open_installation
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.topics import read_cluster

_MORE_RIGHTS = ", RELOAD, SHOW DATABASES, LOCK TABLES, SELECT"
"""What Debezium's first snapshot of MariaDB needs besides the rights of a reader of the log."""


def begin_kafka(settings: Settings, config: Path) -> str:
    """Starts broker, MariaDB and Connect, and returns when Connect has made each table's topic.

    Returns the URL of the shop for its sessions.
    """
    installation, folder = open_installation(home_of(settings, os.environ)), config.parent
    _start_broker(installation, folder / "kafka", source_as(settings, KafkaSource, "kafka").servers)
    url = start_shop(installation, folder, more_rights=_MORE_RIGHTS)
    _start_connect(installation, folder / "connect", settings, reader_url(folder))
    return url


def _start_broker(installation: Installation, folder: Path, servers: str) -> None:
    folder.mkdir(exist_ok=True)
    port = int(servers.rpartition(":")[2])
    command = broker_command(folder, port=port, controller=free_port())
    ensure_server(installation, name="kafka", command=command, folder=folder, answers=lambda: is_listening(port))


def _start_connect(installation: Installation, folder: Path, settings: Settings, url: str) -> None:
    folder.mkdir(exist_ok=True)
    connector = mariadb_connector(url, folder, prefix="shop", tables=[f"{DATABASE}.{table}" for table in TABLES])
    servers = source_as(settings, KafkaSource, "kafka").servers
    command = connect_command(folder, servers=servers, port=free_port(), connectors=[connector])
    topics = {f"shop.{table.table.schema}.{table.table.table}" for table in settings.tables}
    ensure_server(
        installation,
        name="kafka-connect",
        command=command,
        folder=folder,
        answers=lambda: topics <= _topics(settings),
    )


def _topics(settings: Settings) -> set[str]:
    with closing(KafkaClient(source_as(settings, KafkaSource, "kafka"), settings.folder, group="demo")) as client:
        try:
            return set(read_cluster(client).topics)
        except SourceAway:
            return set()
