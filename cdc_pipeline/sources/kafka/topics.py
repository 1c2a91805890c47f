"""The state of topics: their partitions, the offsets that the broker keeps, and how it deletes records."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigEntry, ConfigResource, ListOffsetsResultInfo, OffsetSpec

from cdc_pipeline.errors import SourceAway, SourceError
from cdc_pipeline.record import TableName
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

    `unknown`: why partitions cannot be read now: the others, and all of a topic that `without_shared` refuses.
    `retention`: how long records are kept, None for no limit.
    """

    name: str
    topic_id: str
    is_compacted: bool
    retention: timedelta | None
    kept: Mapping[int, KeptRecords]
    unknown: Mapping[int, SourceError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswers:
    """What the brokers will say of topics: their settings, and the first and last offsets of their partitions."""

    settings: Mapping[ConfigResource, Future[dict[str, ConfigEntry]]]
    first: Mapping[TopicPartition, Future[ListOffsetsResultInfo]]
    end: Mapping[TopicPartition, Future[ListOffsetsResultInfo]]


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
    """Returns those of the topics by name that the cluster shows to this user."""
    if not names:
        return {}
    ids = read_topic_ids(client, names)
    places = {name: [TopicPartition(name, number) for number in range(cluster.topics[name])] for name in sorted(ids)}
    every = list(chain.from_iterable(places.values()))
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in sorted(ids)]
    # All is asked before the first answer is awaited: brokers that do not answer hold this up once.
    answers = TopicAnswers(
        settings=client.admin.describe_configs(resources, request_timeout=CALL_SECONDS) if ids else {},
        first=_offsets(client, every, OffsetSpec.earliest()),
        end=_offsets(client, every, OffsetSpec.latest()),
    )
    return {name: known_topic(client, name, topic_id, places[name], answers) for name, topic_id in ids.items()}


def known_topic(
    client: KafkaClient, name: str, topic_id: str, places: Sequence[TopicPartition], answers: TopicAnswers
) -> Topic:
    """Returns what the answers say of a topic with these partitions; nothing is kept if its settings are missing."""
    try:
        settings = _settings(client, name, answers)
    except SourceError as error:
        unknown = {place.partition: error for place in places}
        return Topic(name=name, topic_id=topic_id, is_compacted=False, retention=None, kept={}, unknown=unknown)
    kept, unknown = {}, {}
    for place in places:
        try:
            first, end = read_offset(client, answers.first[place]), read_offset(client, answers.end[place])
            kept[place.partition] = KeptRecords(first=first, end=end)
        except KafkaException as error:
            words = f"the cluster does not say which records it keeps of {partition_name(name, place.partition)}"
            unknown[place.partition] = _not_said(words, error.args[0])
    return Topic(
        name=name,
        topic_id=topic_id,
        is_compacted=_COMPACT in settings["cleanup.policy"],
        retention=_retention(settings),
        kept=kept,
        unknown=unknown,
    )


def refuse_unknown(topics: Collection[Topic]) -> None:
    """Raises SourceAway or SourceError if no partition of the topics can be read now."""
    unknown = [error for topic in topics for error in topic.unknown.values()]
    if unknown and not any(topic.kept for topic in topics):
        raise next((error for error in unknown if error.retryable), unknown[0])


def without_shared(topics: Mapping[str, Topic], topics_of: Mapping[TableName, Collection[str]]) -> dict[str, Topic]:
    """Returns the topics. Those that are compacted and have events of several listed tables cannot be read.

    A delete may be gone where its tombstone is left, and a tombstone does not say whose row it deletes.
    """
    tables = Counter(chain.from_iterable(topics_of.values()))
    shared = {
        name: SourceError(
            f"the topic {name} is compacted, and several tables share it: {tables[name]} of pipeline.yml",
            expected="a compacted topic of one table: a tombstone does not say whose row it deletes",
            remedy="give each table a topic of its own, and correct source.topic",
        )
        for name, topic in topics.items()
        if topic.is_compacted and tables[name] > 1
    }
    unread = {name: dict.fromkeys(topics[name].kept, error) for name, error in shared.items()}
    return {name: replace(topic, unknown={**unread.get(name, {}), **topic.unknown}) for name, topic in topics.items()}


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
    topic = read_topics(client, cluster, (name,)).get(name) if found == 1 else None
    if topic is None:
        raise SourceError(
            f"the transaction topic {name} has {found} partitions"
            if found > 1
            else f"the cluster has no topic {name} that this user may read",
            expected="Debezium's transaction topic, with one partition",
            remedy="set provide.transaction.metadata = true in the connector, and give its topic one partition"
            " (topic.creation...) before the first transaction; or correct or leave out source.transactions",
        )
    refuse_unknown((topic,))
    return topic


def read_ends(
    client: KafkaClient, places: Collection[TopicPartition]
) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
    """Asks for the offsets after the last committed records of partitions, by one request to each broker."""
    return _offsets(client, places, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)


def read_offset(client: KafkaClient, answer: Future[ListOffsetsResultInfo]) -> int:
    """Waits for an offset that was asked for. Raises KafkaException as the client does.

    The client itself gives an offset below 0, and no error, for a partition whose broker did not answer.
    """
    offset = client.result(answer).offset
    if offset < 0:
        raise KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT))
    return offset


def _offsets(
    client: KafkaClient,
    places: Collection[TopicPartition],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
    if not places:
        return {}
    found: dict[TopicPartition, Future[ListOffsetsResultInfo]] = client.admin.list_offsets(
        dict.fromkeys(places, spec), isolation_level=isolation, request_timeout=CALL_SECONDS
    )
    return found


def _settings(client: KafkaClient, name: str, answers: TopicAnswers) -> dict[str, str]:
    """Raises SourceAway or SourceError if the cluster does not say how the topic deletes its records."""
    words = f"the cluster does not say how the topic {name} deletes its records"
    try:
        entries = client.result(answers.settings[ConfigResource(ConfigResource.Type.TOPIC, name)])
    except KafkaException as error:
        raise _not_said(words, error.args[0]) from error
    if "cleanup.policy" not in entries:
        raise _not_said(words, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    return {key: entry.value or "" for key, entry in entries.items()}


def _not_said(words: str, error: KafkaError) -> SourceError:
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return SourceError(
            f"{words}: {error.str()}",
            expected="a user who may describe the topic and its configuration",
            remedy="grant Describe and DescribeConfigs on the topic to source.username",
        )
    return SourceAway(
        f"{words}: {error.str()}",
        expected="a broker that leads the partition and answers",
        remedy="start a broker that has its records; the consumer tries again every half minute",
    )


def _retention(settings: Mapping[str, str]) -> timedelta | None:
    text = settings.get("retention.ms", "-1")
    milliseconds = int(text) if text.lstrip("-").isdigit() else -1
    is_kept = milliseconds < 0 or "delete" not in settings["cleanup.policy"]
    return None if is_kept else timedelta(milliseconds=min(milliseconds, _LONGEST))


_LONGEST = int(timedelta(days=36_500).total_seconds() * 1_000)
