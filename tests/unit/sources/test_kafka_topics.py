"""What brokers say of topics, and what is known of those partitions of which they do not say it."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigEntry, ConfigResource, ListOffsetsResultInfo

from cdc_pipeline.errors import SourceAway, SourceError
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.topics import KeptRecords, Topic, TopicAnswers, known_topic, refuse_unknown

ORDERS = "public.orders"
DELETE = {"cleanup.policy": ConfigEntry("cleanup.policy", "delete")}
NO_LEADER = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
T = TypeVar("T")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KafkaClient]:
    """A client that meets no broker: the answers are there."""
    settings = {"kind": "kafka", "servers": "127.0.0.1:1", "topic": "{schema}.{table}"}
    client = KafkaClient(KafkaSource.model_validate(settings), tmp_path, group="none")
    yield client
    client.close()


def answered(answer: T | KafkaError) -> Future[T]:
    future: Future[T] = Future()
    if isinstance(answer, KafkaError):
        future.set_exception(KafkaException(answer))
    else:
        future.set_result(answer)
    return future


def known(
    client: KafkaClient,
    first: Mapping[int, int | KafkaError],
    end: Mapping[int, int | KafkaError],
    settings: Mapping[str, ConfigEntry] | KafkaError = DELETE,
) -> Topic:
    def offsets(found: Mapping[int, int | KafkaError]) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        return {
            TopicPartition(ORDERS, number): answered(
                offset if isinstance(offset, KafkaError) else ListOffsetsResultInfo(offset, -1, 0)
            )
            for number, offset in found.items()
        }

    said: Future[dict[str, ConfigEntry]] = answered(settings if isinstance(settings, KafkaError) else dict(settings))
    answers = TopicAnswers(
        settings={ConfigResource(ConfigResource.Type.TOPIC, ORDERS): said}, first=offsets(first), end=offsets(end)
    )
    return known_topic(client, ORDERS, "A", list(answers.first), answers)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ],
)
@pytest.mark.parametrize("failing", ["first", "end"])
def test_a_partition_of_which_the_offsets_are_not_said_is_unknown_alone(
    code: int, failing: str, client: KafkaClient
) -> None:
    offsets: dict[str, dict[int, int | KafkaError]] = {"first": {0: 3, 1: 0}, "end": {0: 9, 1: 0}}
    offsets[failing][1] = KafkaError(code)
    topic = known(client, offsets["first"], offsets["end"])
    assert topic.kept == {0: KeptRecords(first=3, end=9)}
    assert topic.unknown.keys() == {1}
    assert f"which records it keeps of {ORDERS} [1]" in str(topic.unknown[1])
    assert topic.unknown[1].retryable == (code != KafkaError.TOPIC_AUTHORIZATION_FAILED)
    refuse_unknown([topic])


def test_an_offset_below_0_is_no_offset(client: KafkaClient) -> None:
    """The client gives it without an error if the leader died and no other one is known yet."""
    topic = known(client, {0: -1001, 1: 0}, {0: -1001, 1: 7})
    assert topic.kept == {1: KeptRecords(first=0, end=7)}
    assert isinstance(topic.unknown[0], SourceAway)


@pytest.mark.parametrize("settings", [REFUSED, {}], ids=["refused", "left out"])
def test_nothing_is_known_of_a_topic_whose_settings_are_hidden(
    settings: KafkaError | Mapping[str, ConfigEntry], client: KafkaClient
) -> None:
    topic = known(client, {0: 0, 1: 0}, {0: 5, 1: 5}, settings)
    assert topic.topic_id == "A"
    assert topic.kept == {}
    assert topic.unknown.keys() == {0, 1}
    assert f"how the topic {ORDERS} deletes its records" in str(topic.unknown[0])
    assert "DescribeConfigs" in topic.unknown[0].remedy


def test_a_cluster_that_says_nothing_is_away_unless_it_refuses_everything(client: KafkaClient) -> None:
    hidden, away = known(client, {0: 0}, {0: 5}, REFUSED), known(client, {0: NO_LEADER}, {0: NO_LEADER})
    refuse_unknown([])
    refuse_unknown([hidden, away, known(client, {0: 0}, {0: 5})])
    with pytest.raises(SourceAway, match="Leader not available"):
        refuse_unknown([hidden, away])
    with pytest.raises(SourceError, match="deletes its records") as refused:
        refuse_unknown([hidden])
    assert not refused.value.retryable
