"""A Kafka broker and Kafka Connect with Debezium's connectors, as processes of one machine."""

import json
import os
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.jars import SHORT_LIVED, jars_of, present_jars, read_lock
from cdc_pipeline.launcher.java import require_java
from cdc_pipeline.launcher.project import JARS, JARS_LOCK
from cdc_pipeline.launcher.spark import spark_home
from cdc_pipeline.settings.installation.ports import LOOPBACK
from cdc_pipeline.settings.installation.state import write_private_text

BROKER_JARS, CONNECT_JARS = "kafka", "connect"
PARTITIONS = 4
_BROKER = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={folder}/log
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
"""
_WORKER = """\
bootstrap.servers={servers}
listeners=http://127.0.0.1:{port}
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=1000
plugin.discovery=service_load
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.replace.null.with.default=false
producer.acks=all
"""
_COMMON = {
    "tasks.max": "1",
    "decimal.handling.mode": "precise",
    "topic.creation.default.partitions": str(PARTITIONS),
    "topic.creation.default.replication.factor": "1",
    "topic.creation.groups": "keyless",
    "topic.creation.keyless.include": r".*\.(pgbench_history|visits)",
    "topic.creation.keyless.partitions": "1",
    "topic.creation.keyless.replication.factor": "1",
    "errors.retry.timeout": "-1",
}
"""Events without a key have no partition of their own: one that Connect sends twice must meet the first one."""


def broker_command(
    folder: Path, *, port: int, controller: int, more: str = "", formatted_with: Iterable[str] = ()
) -> list[str]:
    """The command of a broker in KRaft mode whose records are in `folder`. Formats the folder at the first call.

    `more`: lines of its properties, which replace earlier ones of the same name. `formatted_with`: options of the first
    call's formatting.
    """
    properties = folder / "server.properties"
    if not properties.exists():
        unfinished = properties.with_suffix(".unfinished")
        text = _BROKER.format(port=port, controller=controller, folder=folder) + more
        unfinished.write_text(text, encoding="utf-8")
        # The first byte is 0, so that the text begins with A: the tool takes one that begins with - for an option.
        cluster = urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        formatting = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(unfinished), *formatted_with]
        ended = subprocess.run(java([BROKER_JARS], *formatting), capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SetupError(f"the broker's folder {folder} was not formatted: {ended.stderr}", remedy="remove it")
        unfinished.rename(properties)
    return java([BROKER_JARS], "kafka.Kafka", str(properties))


def connect_command(folder: Path, *, servers: str, port: int, connectors: Iterable[Mapping[str, str]]) -> list[str]:
    """The command of Kafka Connect in standalone mode with these connectors. Its offsets are in `folder`.

    `port`: of its REST API. The files that hold the connectors' passwords are for their owner alone.
    """
    worker = folder / "worker.properties"
    write_private_text(worker, _WORKER.format(servers=servers, port=port, folder=folder))
    files = []
    for connector in connectors:
        files.append(folder / f"{connector['name']}.json")
        settings = {name: value for name, value in connector.items() if name != "name"}
        write_private_text(files[-1], json.dumps({"name": connector["name"], "config": settings}))
    program = "org.apache.kafka.connect.cli.ConnectStandalone"
    return java([BROKER_JARS, CONNECT_JARS], program, str(worker), *map(str, files))


def mariadb_connector(url: str, folder: Path, *, prefix: str, tables: Iterable[str]) -> dict[str, str]:
    """Debezium's connector for MariaDB. `tables`: database.table. It keeps the tables' past shapes in `folder`."""
    tables = list(tables)
    return {
        "name": f"{prefix}-mariadb",
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.server.id": "5400",
        "database.ssl.mode": "disable",
        "database.include.list": ",".join(sorted({table.partition(".")[0] for table in tables})),
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": f"{folder}/{prefix}-schema-history",
        "time.precision.mode": "adaptive_time_microseconds",
        "enable.time.adjuster": "false",
        **connector_of(url, prefix=prefix, tables=tables),
    }


def connector_of(url: str, *, prefix: str, tables: Iterable[str]) -> dict[str, str]:
    """What Debezium's connectors have in common, whatever the database at `url` is."""
    parts = urlsplit(url)
    return _COMMON | {
        "topic.prefix": prefix,
        "database.hostname": parts.hostname or LOOPBACK,
        "database.port": str(parts.port),
        "database.user": unquote(parts.username or ""),
        "database.password": unquote(parts.password or ""),
        "table.include.list": ",".join(tables),
    }


def java(jar_sets: list[str], *command: str) -> list[str]:
    """A Java program of these sets of jars.lock. Raises SetupError if one of their jars is missing."""
    scala = Path(spark_home()).glob("jars/scala-library-*.jar")  # Spark's resolver leaves it out
    jars = [*present_jars(JARS, jars_of(read_lock(JARS_LOCK), jar_sets)), *scala]
    options = ["-Xmx384m", *SHORT_LIVED.split(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return [str(require_java(os.environ)), *options, "-cp", ":".join(map(str, jars)), *command]
