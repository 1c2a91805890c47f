"""Opens the stream of topic partitions at their registered offsets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cdc_pipeline.record import PARTITION_NAME, TableName, decode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.partition import PartitionLines, RestingPartition
from cdc_pipeline.sources.debezium.record_line import record_content
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.records import PartitionRecords, TopicRecords
from cdc_pipeline.sources.kafka.stream import KafkaStream
from cdc_pipeline.sources.kafka.topics import partition_name
from cdc_pipeline.sources.known import PartitionProgress, StreamStart
from cdc_pipeline.time_slice import EPOCH

TOPIC = "topic"
"""Key in `last_position`, beside the names of tables: the id of the partition's topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPartition:
    """A topic partition that is read from `offset` on, and the `tables` of its topic.

    `deletes_by_tombstone`: the topic is compacted, so a delete may be gone where its tombstone is left.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    tables: tuple[TableName, ...]
    deletes_by_tombstone: bool

    @property
    def name(self) -> str:
        return partition_name(self.topic, self.partition)


def open_stream(
    *,
    stream: str,
    folder: Path,
    settings: KafkaSource,
    listed: tuple[TableSettings, ...],
    partitions: Mapping[int, ReadPartition],
    start: StreamStart,
    shown: frozenset[str],
    alone: bool,
) -> KafkaStream:
    """Opens a client that reads `partitions`, and returns the stream of all stream partitions of `start`.

    A stream partition that is not in `partitions` stays at its offset. `shown`: the names of all partitions of the
    topics, also of those that other consumers read. `alone`: the whole stream has one partition.
    """
    client = KafkaClient(settings, folder, group=stream)
    try:
        records = TopicRecords(client, {number: _records(part) for number, part in partitions.items()})
        lines = {number: PartitionLines(part, record_content) for number, part in records.partitions.items()}
        resting = {
            number: PartitionLines(RestingPartition(offset=decode_position(place.offset)))
            for number, place in start.progress.items()
            if number not in lines
        }
        inner = DebeziumStream(
            partitions=lines | resting,
            progress={number: _named(place, partitions.get(number)) for number, place in start.progress.items()},
            decoder=_decoder(listed, partitions, start, alone=alone),
            position=0 if start.last_cut is None else decode_position(start.last_cut.position),
            commit_time=start.commit_time or EPOCH,
            folders=start.progress.keys,
        )
        tables = tuple(table.table for table in listed)
        return KafkaStream(client=client, settings=settings, tables=tables, records=records, shown=shown, inner=inner)
    except BaseException:
        client.close()
        raise


def _records(part: ReadPartition) -> PartitionRecords:
    deleted_rows = part.tables[0] if part.deletes_by_tombstone else None
    return PartitionRecords(topic=part.topic, partition=part.partition, offset=part.offset, deleted_rows=deleted_rows)


def _named(place: PartitionProgress, part: ReadPartition | None) -> PartitionProgress:
    """Returns the place with the partition's name and its topic's id, which the next survey compares."""
    if part is None:
        return place
    return replace(place, last_position={**place.last_position, PARTITION_NAME: part.name, TOPIC: part.topic_id})


def _decoder(
    listed: tuple[TableSettings, ...], partitions: Mapping[int, ReadPartition], start: StreamStart, *, alone: bool
) -> DebeziumDecoder:
    known = {name: table.schema for name, table in start.tables.items() if table.schema is not None}
    of_partition = {number: part.tables[0] for number, part in partitions.items()}
    upserts = {table for part in partitions.values() if part.deletes_by_tombstone for table in part.tables}
    return DebeziumDecoder(
        tables=DebeziumTables(listed, known, of_partition, upserts),
        sequence_by=(),
        last_position={
            number: {
                TableName.parse(table): seen
                for table, seen in place.last_position.items()
                if table not in (PARTITION_NAME, TOPIC)
            }
            for number, place in start.progress.items()
        },
        horizons={name: table.horizon for name, table in start.tables.items()},
        alone=alone,
    )
