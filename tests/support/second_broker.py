"""A second broker of a cluster: a topic that only it has is without a leader while it is down."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from confluent_kafka.admin import AdminClient, NewTopic

from cdc_pipeline.demo.kafka import broker_command
from cdc_pipeline.launcher.launch import start
from cdc_pipeline.settings.installation.ports import free_port
from tests.support.eventually import await_listener, eventually
from tests.support.kafka import TIMEOUT_SECONDS, KafkaBroker

FIRST_NODE, NODE = 1, 2
_MEMBER = """\
process.roles=broker
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
"""


@dataclass(slots=True, kw_only=True)
class SecondBroker:
    """A broker that is no controller. Its records are in `folder`."""

    first: KafkaBroker
    folder: Path
    port: int = field(default_factory=free_port)
    process: "Popen[bytes] | None" = None

    def start(self) -> None:
        """Returns once the first broker knows it."""
        lines = (self.first.folder / "log" / "meta.properties").read_text().splitlines()
        cluster = next(line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id="))
        command = broker_command(
            self.folder,
            port=self.port,
            controller=self.first.controller,
            more=_MEMBER.format(node=NODE, port=self.port),
            formatted_with=("-t", cluster),
        )
        log = self.folder / "kafka.log"
        with log.open("ab") as output:
            self.process = start(command, environment=os.environ, folder=self.folder, output=output, tied=True)
        await_listener(self.process, self.port, TIMEOUT_SECONDS, log.read_text)
        assert eventually(lambda: NODE in self._admin.list_topics(timeout=TIMEOUT_SECONDS).brokers, TIMEOUT_SECONDS)

    def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(TIMEOUT_SECONDS)

    def create(self, name: str, *, node: int = NODE) -> None:
        """Creates a topic that only this broker has, or another one."""
        admin = self._admin
        admin.create_topics([NewTopic(name, num_partitions=1, replica_assignment=[[node]])])[name].result(
            TIMEOUT_SECONDS
        )

    def leads(self, name: str) -> bool:
        """Returns whether the cluster says that this broker leads the topic."""
        topic = self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics[name]
        return topic.partitions[0].leader == NODE

    @property
    def _admin(self) -> AdminClient:
        """A client that has to be kept until its request is answered."""
        return AdminClient({"bootstrap.servers": self.first.servers, "log_level": 2})
