"""The state of topics: their partitions, the offsets that the broker keeps, and how it deletes records."""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, ListOffsetsResultInfo, OffsetSpec

from cdc_pipeline.errors import SourceError
from cdc_pipeline.sources.kafka.client import CALL_SECONDS, KafkaClient

_COMPACT = "compact"
_NOT_SHOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecords:
    """The offsets [first, end) that a broker keeps of a partition."""

    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic. `topic_id`: differs for a new topic of the same name. `kept`: by partition.

    `retention`: how long records are kept, None for no limit.
    """

    name: str
    topic_id: str
    is_compacted: bool
    retention: timedelta | None
    kept: Mapping[int, KeptRecords]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster's id and the number of partitions of each of its topics."""

    cluster_id: str
    topics: Mapping[str, int]


def partition_name(topic: str, partition: int) -> str:
    """Returns the name of a topic's partition, as people read it in the metadata store and in messages."""
    return f"{topic} [{partition}]"


def topic_of(name: str) -> str:
    """Returns the topic of the partition with this name."""
    return name.rpartition(" [")[0]


def read_cluster(client: KafkaClient) -> Cluster:
    metadata = client.metadata()
    topics = {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}
    return Cluster(cluster_id=metadata.cluster_id or "", topics=topics)


def read_topics(client: KafkaClient, cluster: Cluster, names: Collection[str]) -> dict[str, Topic]:
    """Returns the topics by name. Raises SourceError if the user may not read how a topic deletes its records."""
    if not names:
        return {}
    described = client.admin.describe_topics(TopicCollection(sorted(names)), request_timeout=CALL_SECONDS)
    settings = _settings(client, names)
    first, end = (
        _offsets(client, cluster, names, latest=False),
        _offsets(client, cluster, names, latest=True),
    )
    return {
        name: Topic(
            name=name,
            topic_id=str(client.answer(described[name]).topic_id),
            is_compacted=_COMPACT in settings[name]["cleanup.policy"],
            retention=_retention(settings[name]),
            kept={
                number: KeptRecords(first=first[name, number], end=end[name, number])
                for number in range(cluster.topics[name])
            },
        )
        for name in names
    }


def read_topic_ids(client: KafkaClient, names: Collection[str]) -> dict[str, str]:
    """Returns the id of each of the topics that the cluster shows to this user, by one request."""
    described = client.admin.describe_topics(TopicCollection(sorted(names)), request_timeout=CALL_SECONDS)
    found = {}
    for name, future in described.items():
        try:
            found[name] = str(client.result(future).topic_id)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_SHOWN:
                client.fail(error.args[0])
    return found


def read_transaction_topic(client: KafkaClient, cluster: Cluster, name: str) -> Topic:
    """Returns Debezium's transaction topic. Raises SourceError if it is missing, or has several partitions.

    In several partitions, an END may be read before that of an earlier transaction.
    """
    found = cluster.topics.get(name, 0)
    if found != 1:
        raise SourceError(
            f"the transaction topic {name} has {found} partitions"
            if found
            else f"the cluster has no topic {name} that this user may read",
            expected="Debezium's transaction topic, with one partition",
            remedy="set provide.transaction.metadata = true in the connector, and give its topic one partition"
            " (topic.creation...) before the first transaction; or correct or leave out source.transactions",
        )
    return read_topics(client, cluster, (name,))[name]


def read_ends(
    client: KafkaClient, places: Collection[TopicPartition]
) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
    """Asks for the offsets after the last committed records of partitions, by one request to each broker."""
    if not places:
        return {}
    wanted = dict.fromkeys(places, OffsetSpec.latest())
    committed = IsolationLevel.READ_COMMITTED
    found: dict[TopicPartition, Future[ListOffsetsResultInfo]] = client.admin.list_offsets(
        wanted, isolation_level=committed, request_timeout=CALL_SECONDS
    )
    return found


def _settings(client: KafkaClient, names: Collection[str]) -> dict[str, dict[str, str]]:
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(names)]
    answers = client.admin.describe_configs(wanted, request_timeout=CALL_SECONDS)
    found = {resource.name: client.answer(future) for resource, future in answers.items()}
    settings = {name: {key: entry.value or "" for key, entry in entries.items()} for name, entries in found.items()}
    hidden = next((name for name in names if "cleanup.policy" not in settings.get(name, {})), None)
    if hidden is not None:
        raise SourceError(
            f"the cluster does not say how the topic {hidden} deletes its records",
            expected="a user who may describe the topic's configuration",
            remedy="grant DescribeConfigs on the topic to source.username",
        )
    return settings


def _retention(settings: Mapping[str, str]) -> timedelta | None:
    text = settings.get("retention.ms", "-1")
    milliseconds = int(text) if text.lstrip("-").isdigit() else -1
    is_kept = milliseconds < 0 or "delete" not in settings["cleanup.policy"]
    return None if is_kept else timedelta(milliseconds=min(milliseconds, _LONGEST))


_LONGEST = int(timedelta(days=36_500).total_seconds() * 1_000)


def _offsets(
    client: KafkaClient, cluster: Cluster, names: Collection[str], *, latest: bool
) -> dict[tuple[str, int], int]:
    spec = OffsetSpec.latest() if latest else OffsetSpec.earliest()
    wanted = {TopicPartition(name, number): spec for name in names for number in range(cluster.topics[name])}
    answers = client.admin.list_offsets(wanted, request_timeout=CALL_SECONDS)
    return {(part.topic, part.partition): client.answer(future).offset for part, future in answers.items()}
