"""When a stream of Kafka's partitions looks for new ones."""

from pathlib import Path

import pytest
from confluent_kafka.admin import ClusterMetadata
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceAway
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.records import PartitionRecords, TopicRecords
from cdc_pipeline.sources.kafka.stream import KafkaStream
from cdc_pipeline.time_slice import EPOCH


class SilentCluster(KafkaClient):
    """A cluster that does not answer, without a wait for it: the stream says so when it looks, and goes on."""

    def metadata(self) -> ClusterMetadata:
        raise SourceAway("no broker answers")


def kafka_stream(folder: Path, *numbers: int) -> KafkaStream:
    """Reads these partitions of a topic, and is to look for new ones now."""
    settings = KafkaSource(kind="kafka", servers="127.0.0.1:1", topic="{table}")
    client = SilentCluster(settings, folder, group="none")
    parts = {number: PartitionRecords(topic="orders", partition=number, offset=0) for number in numbers}
    inner = DebeziumStream(
        partitions={},
        progress={},
        decoder=DebeziumDecoder(tables=DebeziumTables((), {}), sequence_by=(), last_position={}),
        position=0,
        commit_time=EPOCH,
        folders=lambda: (),
    )
    stream = KafkaStream(
        client=client,
        settings=settings,
        tables=(),
        records=TopicRecords(client, parts),
        shown=frozenset(),
        topic_ids={},
        inner=inner,
    )
    stream._next_check = 0.0
    return stream


@pytest.mark.parametrize(
    ("numbers", "looks"), [((0,), [False, True]), ((), [True, False])], ids=["reads one", "all rest"]
)
def test_new_partitions_are_looked_for_behind_the_registration(
    numbers: tuple[int, ...], looks: list[bool], tmp_path: Path
) -> None:
    """Before it, the whole cut would have to be read again. Where all partitions rest, there is none to wait for."""
    stream, found = kafka_stream(tmp_path, *numbers), []
    for call in (lambda: stream.check({}), lambda: stream.confirm(0)):
        with capture_logs() as said:
            call()
        found.append("new partitions not looked for" in [each["event"] for each in said])
    stream.close()
    assert found == looks
