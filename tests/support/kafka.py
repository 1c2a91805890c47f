"""A Kafka broker in KRaft mode as a process of its own, and records that are written to it."""

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from cdc_pipeline.demo.kafka import broker_command
from cdc_pipeline.launcher.launch import start
from cdc_pipeline.operations.source_setup.set_up import SetUp
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.ports import free_port
from cdc_pipeline.wiring import Pipeline
from tests.support.certificates import write_certificate
from tests.support.event_files import NOBODY_LISTENS, Row, merged_rows
from tests.support.eventually import await_listener
from tests.support.pipelines import opened_pipeline

LOOPBACK = "127.0.0.1"
USER, PASSWORD = "cdc", "canary-of-the-broker"
CA = "ca.pem"
TIMEOUT_SECONDS = 120
SECURED = """\
listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.secure.plain.sasl.jaas.config={security}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.secure.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS
"""


@dataclass(slots=True, kw_only=True)
class KafkaBroker:
    """A broker whose records are in `folder`: a restarted one has them all again, at the same port."""

    folder: Path
    port: int = field(default_factory=free_port)
    secure: int = field(default_factory=free_port)
    controller: int = field(default_factory=free_port)
    process: "Popen[bytes] | None" = None

    @property
    def servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        if not (self.folder / CA).exists():
            write_certificate(self.folder / "broker.pem", self.folder / CA, LOOPBACK)
        secured = SECURED.format(
            port=self.port,
            secure=self.secure,
            controller=self.controller,
            folder=self.folder,
            security="org.apache.kafka.common.security",
            user=USER,
            password=PASSWORD,
        )
        user = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
        command = broker_command(
            self.folder,
            port=self.port,
            controller=self.controller,
            more=secured,
            formatted_with=("--add-scram", user),
        )
        with self._log.open("ab") as output:
            self.process = start(command, environment=os.environ, folder=self.folder, output=output, tied=True)
        await_listener(self.process, self.port, TIMEOUT_SECONDS, self._log.read_text)

    def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(TIMEOUT_SECONDS)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(TIMEOUT_SECONDS)

    @property
    def _log(self) -> Path:
        return self.folder / "kafka.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureKafka:
    """The same broker by SASL_SSL: `USER` with `PASSWORD`, by PLAIN or SCRAM-SHA-512. `ca`: whom its clients trust."""

    servers: str
    ca: Path

    @classmethod
    def parse(cls, addresses: str) -> "SecureKafka":
        _, servers, ca = addresses.split(" ", 2)
        return cls(servers=servers, ca=Path(ca))


@contextmanager
def started_kafka(folder: Path) -> Iterator[str]:
    """The addresses of a broker without topics, for `SecureKafka.parse`: the plain one is its first word."""
    broker = KafkaBroker(folder=folder)
    broker.start()
    try:
        yield f"{broker.servers} {LOOPBACK}:{broker.secure} {folder / CA}"
    finally:
        broker.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Topics of a broker, for tests that write to them. Each call is done on return."""

    servers: str

    def create(self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(settings or {}))
        admin = self._admin
        admin.create_topics([new])[name].result(TIMEOUT_SECONDS)

    def grow(self, name: str, *, partitions: int) -> None:
        admin = self._admin
        admin.create_partitions([NewPartitions(name, partitions)])[name].result(TIMEOUT_SECONDS)

    def delete(self, name: str) -> None:
        admin = self._admin
        admin.delete_topics([name])[name].result(TIMEOUT_SECONDS)

    def drop_before(self, name: str, partition: int, offset: int) -> None:
        """Deletes the records before `offset`, as retention does."""
        place = TopicPartition(name, partition, offset)
        admin = self._admin
        admin.delete_records([place])[place].result(TIMEOUT_SECONDS)

    def names(self) -> list[str]:
        return sorted(self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics)

    def write(
        self,
        name: str,
        *values: Any,
        key: Any = None,
        partition: int = 0,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Appends records with one key. A value that is neither bytes nor None is written as JSON."""
        producer = Producer({"bootstrap.servers": self.servers, "acks": "all", "log_level": 2})
        for value in values:
            producer.produce(
                name, key=_octets(key), value=_octets(value), partition=partition, headers=dict(headers or {})
            )
        assert producer.flush(TIMEOUT_SECONDS) == 0

    @contextmanager
    def transaction(self, *, aborts: bool = False) -> Iterator[Producer]:
        """A transaction of Kafka for what the block produces, as Kafka Connect writes exactly once."""
        producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": secrets.token_hex(8), "log_level": 2}
        )
        producer.init_transactions(TIMEOUT_SECONDS)
        producer.begin_transaction()
        yield producer
        assert producer.flush(TIMEOUT_SECONDS) == 0
        if aborts:
            producer.abort_transaction(TIMEOUT_SECONDS)
        else:
            producer.commit_transaction(TIMEOUT_SECONDS)

    @property
    def _admin(self) -> AdminClient:
        """A client that has to be kept until its request is answered."""
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 2})


def _octets(content: Any) -> bytes | None:
    return content if content is None or isinstance(content, bytes) else json.dumps(content).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFeed:
    """A pipeline over topics of its own: `prefix` begins their names. Tables are given as `schema.table`."""

    folder: Path
    store_url: str
    servers: str
    tables: tuple[Mapping[str, Any], ...]
    source: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = field(default_factory=lambda: f"p{secrets.token_hex(4)}")

    @property
    def topics(self) -> Topics:
        return Topics(servers=self.servers)

    @property
    def document(self) -> dict[str, Any]:
        source = {"kind": "kafka", "servers": self.servers, "topic": f"{self.prefix}.{{schema}}.{{table}}"}
        return {
            "name": "shop",
            "lake": "lake",
            "slice_length": "1h",
            "source": source | dict(self.source),
            "tables": [{**table, "name": f"shop.{table['name']}"} for table in self.tables],
        }

    @contextmanager
    def opened(self) -> Iterator[Pipeline]:
        settings = Settings.model_validate(self.document | {"folder": self.folder})
        with opened_pipeline(settings, store_url=self.store_url, spark_url=NOBODY_LISTENS) as pipeline:
            yield pipeline

    def topic(self, table: str) -> str:
        return f"{self.prefix}.{table}"

    def create(self, table: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self.topics.create(self.topic(table), partitions=partitions, settings=settings)

    def write(self, table: str, id_: int, note: str | None, *, operation: str = "c", partition: int = 0) -> None:
        event = self.event(table, id_, note, operation=operation)
        self.topics.write(self.topic(table), event, key={"id": id_}, partition=partition)

    def event(self, table: str, id_: int, note: str | None, *, operation: str = "c") -> dict[str, Any]:
        """One event of PostgreSQL's Debezium; its position in the log is its id."""
        schema, name = table.split(".")
        source = {"connector": "postgresql", "db": "shop", "schema": schema, "table": name, "txId": id_, "lsn": id_}
        row = {"id": id_, "note": note}
        images = {"before": row, "after": None} if operation == "d" else {"before": None, "after": row}
        return {"op": operation, **images, "source": source | {"ts_ms": 1_700_000_000_000 + id_}}

    def replay(self, messages: Iterable[Mapping[str, Any]], *, prefix: str) -> None:
        """Writes recorded records to the partitions that they had, in topics of this feed's prefix."""
        messages = list(messages)
        wanted = {message["topic"]: 0 for message in messages if message["topic"].startswith(prefix)}
        for message in messages:
            if message["topic"] in wanted:
                wanted[message["topic"]] = max(wanted[message["topic"]], message["partition"] + 1)
        for topic, partitions in wanted.items():
            self.topics.create(topic.replace(prefix, self.prefix, 1), partitions=partitions)
        for message in messages:
            if message["topic"] in wanted:
                self.topics.write(
                    message["topic"].replace(prefix, self.prefix, 1),
                    None if message["value"] is None else message["value"].encode(),
                    key=None if message["key"] is None else message["key"].encode(),
                    partition=message["partition"],
                    headers={name: text.encode() for name, text in message["headers"]},
                )

    def set_up(self) -> SetUp:
        with self.opened() as pipeline:
            return pipeline.source_setup().set_up()

    def consume(self) -> None:
        """Everything that is there now, after the set-up that people run."""
        self.set_up()
        self.go_on()

    def go_on(self) -> None:
        """Everything that is there now, by a consumer that was not there before."""
        with self.opened() as pipeline:
            pipeline.consumer_runs().consume_until_idle()

    def rows(self, table: str) -> list[Row]:
        """What a reader would see once every registered slice is applied."""
        with self.opened() as pipeline:
            return merged_rows(pipeline, TableName.parse(f"shop.{table}"))

    def notes(self, table: str) -> dict[int, str]:
        return {row["id"]: row["note"] for row in self.rows(table)}

    def shown(self, query: str) -> list[Row]:
        with self.opened() as pipeline:
            return pipeline.store.inspection.run(query)
