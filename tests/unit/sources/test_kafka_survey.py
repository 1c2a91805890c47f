"""What is missing of topics, by the offsets that the broker keeps and those that are registered."""

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc_pipeline.errors import SourceAway
from cdc_pipeline.record import PARTITION_NAME, TableName, encode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.kafka.survey import TopicSurvey, topics_of_tables
from cdc_pipeline.sources.kafka.topics import Cluster, KeptRecords, Topic
from cdc_pipeline.sources.known import KnownTable, PartitionProgress

ORDERS = TableName.parse("shop.public.orders")
KNOWN = KnownTable(name=ORDERS, source_id=0, key=("id",), published_as="")
MOST_SECONDS = 1.5
"""Of the processor: other tests run beside this one."""


def kafka(**changes: str) -> KafkaSource:
    return KafkaSource.model_validate({"kind": "kafka", "servers": "b:9092", "topic": "{schema}.{table}"} | changes)


def place(number: int, offset: int, **more: str) -> PartitionProgress:
    """As a cut registers it."""
    last_position = {PARTITION_NAME: f"public.orders [{number}]", "topic": "A", **more}
    return PartitionProgress(offset=encode_position(offset), last_position=last_position)


def survey(
    source: KafkaSource,
    kept: Mapping[int, KeptRecords],
    progress: Mapping[int, PartitionProgress],
    *,
    is_compacted: bool = False,
) -> TopicSurvey:
    table = TableSettings(name=str(ORDERS), id=("id",))
    topic = Topic(name="public.orders", topic_id="A", is_compacted=is_compacted, retention=timedelta(days=1), kept=kept)
    return TopicSurvey(
        stream="shop",
        folder=Path("/"),
        settings=source,
        listed=(table,),
        progress=progress,
        registered={ORDERS: KNOWN} if progress else {},
        cluster=Cluster(cluster_id="c", topics={topic.name: len(kept)}),
        topics={topic.name: topic},
        of_transactions=None,
        topics_of=topics_of_tables(source, (table,), [topic.name]),
    )


READ = KeptRecords(first=5_000, end=5_100)
GROWN = KeptRecords(first=40, end=50)
UNKNOWN = SourceAway("the cluster does not say which records it keeps")


def why_stale(found: TopicSurvey) -> str:
    return str(found.stale.get(ORDERS, ""))


def test_records_of_an_empty_partition_that_came_and_expired_are_missed_with_begin_kept() -> None:
    """Cuts named it while it was empty, so it began with its very first record."""
    found = survey(kafka(begin="kept"), {0: READ, 1: GROWN}, {0: place(0, 5_050), 1: place(1, 0, since="0")})
    assert "[1] from offset 40 on, and it is read up to offset 0" in why_stale(found)


@pytest.mark.parametrize(
    "begun",
    [
        PartitionProgress(offset="", last_position={PARTITION_NAME: "public.orders [1]"}),
        PartitionProgress(offset=encode_position(0), last_position={PARTITION_NAME: "public.orders [1]"}),
        place(1, 0),
        place(1, 40, since="40"),
    ],
    ids=["registered", "taken by a consumer", "of a cut that does not say where it began", "begun late"],
)
def test_what_a_partition_lacked_when_it_began_is_not_missed_with_begin_kept(begun: PartitionProgress) -> None:
    found = survey(kafka(begin="kept"), {0: READ, 1: GROWN}, {0: place(0, 5_050), 1: begun})
    assert why_stale(found) == ""


def test_records_of_a_partition_that_was_added_to_a_topic_are_missed_with_begin_kept() -> None:
    found = survey(kafka(begin="kept"), {0: READ, 1: GROWN}, {0: place(0, 5_050)})
    assert "[1] from offset 40 on, and it is read up to offset 0" in why_stale(found)
    whole = {0: READ, 1: KeptRecords(first=0, end=10)}
    assert why_stale(survey(kafka(begin="kept"), whole, {0: place(0, 5_050)})) == ""
    assert survey(kafka(begin="kept"), {0: READ, 1: GROWN}, {}).refused == {}


def test_records_that_retention_deleted_from_a_compacted_topic_are_missed() -> None:
    """Compaction keeps the offset at which the log begins; `cleanup.policy = compact,delete` raises it."""
    upserts = kafka(compacted="upserts")
    found = survey(upserts, {0: KeptRecords(first=500, end=510)}, {0: place(0, 100)}, is_compacted=True)
    assert "[0] from offset 500 on, and it is read up to offset 100" in why_stale(found)
    compacted = survey(upserts, {0: KeptRecords(first=0, end=510)}, {0: place(0, 100)}, is_compacted=True)
    assert why_stale(compacted) == ""


@pytest.mark.parametrize("offset", ["", encode_position(0)], ids=["registered", "taken by a consumer"])
def test_a_topic_that_is_created_again_before_its_first_cut_is_another_one(offset: str) -> None:
    place = PartitionProgress(offset=offset, last_position={PARTITION_NAME: "public.orders [0]"})
    found = survey(kafka(), {0: KeptRecords(first=0, end=10)}, {0: place})
    (table,) = found.tables
    set_up = replace(found, registered={ORDERS: replace(KNOWN, published_as=table.published_as)})
    assert why_stale(set_up) == ""
    (topic,) = found.topics.values()
    again = replace(set_up, topics={topic.name: replace(topic, topic_id="B")})
    assert f"{topic.name} was deleted and created again since {ORDERS} was set up" in why_stale(again)


def test_a_topic_that_is_not_shown_rests_alone_and_its_table_is_read_from_the_others() -> None:
    hidden = PartitionProgress(offset=encode_position(3), last_position={PARTITION_NAME: "b.orders [0]"})
    both = kafka(topic="^(public|b).{table}")
    found = survey(both, {0: READ}, {0: place(0, 5_050), 1: hidden})
    assert [table.name for table in found.tables] == [ORDERS]
    assert found.resting.keys() == {1}
    assert "does not show the topic b.orders of shop.public.orders" in str(found.resting[1])
    assert "let source.topic match it no longer" in found.resting[1].remedy
    assert survey(kafka(), {0: READ}, {0: place(0, 5_050), 1: hidden}).resting == {}


def test_a_table_of_which_no_topic_is_shown_is_refused() -> None:
    found = replace(survey(kafka(), {0: READ}, {0: place(0, 5_050)}), topics={}, topics_of={})
    assert found.refused[ORDERS] is not None
    assert found.resting.keys() == {0}


def test_what_many_tables_cost_does_not_grow_with_the_cube_of_their_number() -> None:
    """If each partition is compared with all topics or tables, 600 tables of four take several seconds."""
    tables = [TableSettings(name=f"shop.public.t{number}", id=("id",)) for number in range(600)]
    one = survey(kafka(), dict.fromkeys(range(4), READ), {0: place(0, 5_050)})
    found = replace(
        one,
        listed=tuple(tables),
        registered={each.table: replace(KNOWN, name=each.table) for each in tables},
        topics={name: replace(one.topics["public.orders"], name=name) for name in (f"public.t{n}" for n in range(600))},
        topics_of={each.table: (f"public.{each.table.table}",) for each in tables},
        progress={
            number: place(0, 5_050, **{PARTITION_NAME: f"public.t{number // 4} [{number % 4}]"})
            for number in range(4 * 600)
        },
    )
    before = time.process_time()
    assert (found.stale, found.refused, found.resting) == ({}, {}, {})
    assert time.process_time() - before < MOST_SECONDS


def with_unknown(found: TopicSurvey, *numbers: int) -> TopicSurvey:
    """The survey of a topic that also has these partitions, of which the cluster does not say what it keeps."""
    (topic,) = found.topics.values()
    return replace(found, topics={topic.name: replace(topic, unknown=dict.fromkeys(numbers, UNKNOWN))})


def test_a_partition_of_which_nothing_is_known_rests_alone_and_is_not_judged() -> None:
    found = with_unknown(survey(kafka(), {0: READ}, {0: place(0, 5_050), 1: place(1, 9)}), 1)
    assert (found.stale, found.refused, found.resting) == ({}, {}, {1: UNKNOWN})
    assert [table.name for table in found.tables] == [ORDERS]
    hidden = with_unknown(survey(kafka(), {}, {0: place(0, 5_050), 1: place(1, 9)}), 0, 1)
    assert (hidden.stale, hidden.refused, hidden.resting) == ({}, {}, {0: UNKNOWN, 1: UNKNOWN})
    assert [table.published_as for table in hidden.tables] == [table.published_as for table in found.tables]


def test_a_new_partition_of_which_nothing_is_known_is_registered_once_it_can_be_read() -> None:
    """Until then nobody knows whether it began with its first record."""
    progress = {0: place(0, 5_050)}
    found = with_unknown(survey(kafka(begin="kept"), {0: READ}, progress), 1)
    assert (found.resting, found.stream_partitions) == ({}, {0: "public.orders [0]"})
    only_new = with_unknown(survey(kafka(begin="kept"), {1: GROWN}, progress), 0)
    assert "[1] from offset 40 on, and it is read up to offset 0" in why_stale(only_new)


def test_a_new_table_of_which_a_partition_is_not_known_is_refused() -> None:
    found = with_unknown(survey(kafka(), {0: KeptRecords(first=0, end=10)}, {}), 1)
    assert found.refused == {ORDERS: UNKNOWN}


@pytest.mark.parametrize("offset", [0, 5_050])
def test_a_new_table_in_a_topic_that_is_read_already_is_warned_of(offset: int) -> None:
    found = replace(survey(kafka(), {0: KeptRecords(first=0, end=5_100)}, {0: place(0, offset)}), registered={})
    assert found.refused == {}
    with capture_logs() as logs:
        found.set_up()
    assert [(each["table"], each["found"]) for each in logs] == (
        [("shop.public.orders", "public.orders, which was read without it so far")] if offset else []
    )
