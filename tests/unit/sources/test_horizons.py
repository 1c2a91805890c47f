"""The oldest version that may come of a table whose events have topics, or a stream, of their own."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cdc_pipeline.record import PARTITION_NAME, TableName, encode_position
from cdc_pipeline.settings.aws import KinesisSource
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.kafka.source import KafkaTopics
from cdc_pipeline.sources.kinesis.source import kinesis_source
from cdc_pipeline.sources.known import PartitionProgress
from tests.support.shards import MemoryStreams

ORDERS, ITEMS = (TableName.parse(f"shop.public.{name}") for name in ("orders", "items"))
NAMES = {"kafka": "public.{table} [{number}]", "kinesis": "public.{table} shard-{number}"}


def place(kind: str, name: tuple[str, int], **positions: int) -> PartitionProgress:
    """A stream partition of the topic or stream `name`, and the position of each table in it."""
    table, number = name
    shown = {f"shop.public.{key}": f"{position:032x}" for key, position in positions.items()}
    named = {PARTITION_NAME: NAMES[kind].format(table=table, number=number)} if table else {}
    return PartitionProgress(offset=encode_position(7), last_position=named | shown)


def oldest(kind: str, places: Mapping[int, PartitionProgress], **settings: str) -> int:
    """The position of the version, -1 for none."""
    if kind == "kafka":
        kafka = {"kind": kind, "servers": "b:9092", "topic": "{schema}.{table}"} | settings
        topics = KafkaTopics(
            stream="shop", kind=kind, folder=Path("/"), settings=KafkaSource.model_validate(kafka), tables=()
        )
        found = topics.oldest_version_to_come(ORDERS, places)
    else:
        shards = KinesisSource.model_validate({"kind": kind, "stream": "{schema}.{table}"} | settings)
        source = kinesis_source(shards, stream="shop", tables=(), connect=MemoryStreams)
        found = source.oldest_version_to_come(ORDERS, places)
    return int(found[:32], 16) if found else -1


@pytest.mark.parametrize("kind", ["kafka", "kinesis"])
def test_partitions_of_other_tables_do_not_hold_a_horizon_back(kind: str) -> None:
    own = {0: place(kind, ("orders", 0), orders=900), 1: place(kind, ("orders", 1), orders=700)}
    other = place(kind, ("items", 0), items=100)
    assert oldest(kind, {**own, 2: other}) == 700
    assert oldest(kind, {2: other}) == -1


@pytest.mark.parametrize("kind", ["kafka", "kinesis"])
@pytest.mark.parametrize("name", [("orders", 2), ("items", 0), ("", 0)], ids=["own", "that had its events", "unnamed"])
def test_partitions_in_which_an_event_may_come_hold_it_back(kind: str, name: tuple[str, int]) -> None:
    positions = {"orders": 100} if name[0] == "items" else {}
    places = {0: place(kind, ("orders", 0), orders=900), 1: place(kind, name, **positions)}
    assert oldest(kind, places) == (100 if positions else 0)


@pytest.mark.parametrize(("kind", "settings"), [("kafka", {"topic": "all"}), ("kinesis", {"stream": "all"})])
def test_every_partition_counts_where_tables_share_them(kind: str, settings: Mapping[str, str]) -> None:
    names = {"kafka": "all [{}]", "kinesis": "all shard-{}"}[kind]
    places = {
        number: PartitionProgress(offset=encode_position(7), last_position={PARTITION_NAME: names.format(number)} | of)
        for number, of in enumerate(({str(ORDERS): f"{900:032x}"}, {str(ITEMS): f"{900:032x}"}))
    }
    assert oldest(kind, places, **settings) == 0


def test_the_transaction_topic_holds_nothing_back() -> None:
    places = {0: place("kafka", ("orders", 0), orders=900), 1: place("kafka", ("transaction", 0))}
    assert oldest("kafka", places, topic="public.{table}", transactions="public.transaction") == 900


def test_nothing_is_too_late_for_a_table_that_may_get_the_topic_of_one_more_server() -> None:
    """Its log begins far below those of the others."""
    places = {0: place("kafka", ("orders", 0), orders=900), 1: place("kafka", ("orders", 1), orders=700)}
    assert oldest("kafka", places, topic="^public\\.{table}") == -1
