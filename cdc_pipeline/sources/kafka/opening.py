"""Opens the stream of topic partitions at their registered offsets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cdc_pipeline.record import PARTITION_NAME, TableName, encode_position
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.memory import highest_position, table_states
from cdc_pipeline.sources.debezium.partition import PartitionLines
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.debezium.whole_transactions import WholeTransactions
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.kafka.client import KafkaClient
from cdc_pipeline.sources.kafka.records import PartitionRecords, TopicRecords
from cdc_pipeline.sources.kafka.stream import KafkaStream
from cdc_pipeline.sources.kafka.topics import partition_name
from cdc_pipeline.sources.kafka.whole_stream import WholeTransactionStream
from cdc_pipeline.sources.known import PartitionProgress, StreamStart

if TYPE_CHECKING:
    from cdc_pipeline.sources.kafka.survey import TopicSurvey

TOPIC = "topic"
"""Key in `last_position`, beside the names of tables: the id of the partition's topic."""
SINCE = "since"
"""Key in `last_position`: the offset from which on no record of the partition may be missing."""
OWN_KEYS = (PARTITION_NAME, TOPIC, SINCE)


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
    survey: "TopicSurvey",
    start: StreamStart,
    partitions: Mapping[int, ReadPartition],
    transactions: tuple[int, ReadPartition] | None,
) -> KafkaStream:
    """Opens a client that reads `partitions`, and returns the stream of all stream partitions of `start`.

    A stream partition that is not in `partitions` stays at its offset. `transactions`: that of the transaction topic,
    which says where all may be cut.
    """
    client = KafkaClient(survey.settings, survey.folder, group=survey.stream)
    try:
        read = dict(partitions) if transactions is None else {**partitions, transactions[0]: transactions[1]}
        records = TopicRecords(client, {number: _records(part, start) for number, part in read.items()})
        decoder = _decoder(survey, partitions, start)
        if transactions is None:
            inner = _stream(read, start, records, decoder)
        else:
            inner = _whole_stream(read, start, records, decoder, transactions[0], _collections(partitions))
        return KafkaStream(
            client=client,
            settings=survey.settings,
            tables=tuple(each.table for each in survey.listed if each.table not in survey.stale),
            records=records,
            shown=frozenset(survey.topic_partitions()),
            topic_ids={part.topic: part.topic_id for part in read.values()},
            inner=inner,
        )
    except BaseException:
        client.close()
        raise


def _stream(
    read: Mapping[int, ReadPartition], start: StreamStart, records: TopicRecords, decoder: DebeziumDecoder
) -> DebeziumStream:
    return DebeziumStream(
        partitions=_lines(records),
        progress=_progress(read, start),
        decoder=decoder,
        position=start.position,
        commit_time=start.commit_time,
        folders=start.progress.keys,
    )


def _whole_stream(
    read: Mapping[int, ReadPartition],
    start: StreamStart,
    records: TopicRecords,
    decoder: DebeziumDecoder,
    number: int,
    collections: Mapping[str, frozenset[int]],
) -> WholeTransactionStream:
    positions = {each: highest_position(start.progress[each], OWN_KEYS) for each in read if each != number}
    return WholeTransactionStream(
        partitions=_lines(records),
        progress=_progress(read, start),
        decoder=decoder,
        position=start.position,
        commit_time=start.commit_time,
        records=records.partitions,
        transactions=number,
        mark_ends=records.mark_ends,
        whole=WholeTransactions(collections=collections, positions=positions),
    )


def _lines(records: TopicRecords) -> dict[int, PartitionLines]:
    return {number: PartitionLines(part, part.content) for number, part in records.partitions.items()}


def _progress(read: Mapping[int, ReadPartition], start: StreamStart) -> dict[int, PartitionProgress]:
    return {number: _named(place, read.get(number)) for number, place in start.progress.items()}


def _collections(partitions: Mapping[int, ReadPartition]) -> dict[str, frozenset[int]]:
    """Returns the stream partitions of each data collection, by every name that Debezium may give it.

    PostgreSQL's is schema.table, MySQL's database.table, SQL Server's database.schema.table.
    """
    numbers_of: dict[TableName, set[int]] = {}
    for number, part in partitions.items():
        for table in part.tables:
            numbers_of.setdefault(table, set()).add(number)
    exact, others = {}, {}
    for table, numbers in numbers_of.items():
        exact[f"{table.database}.{table.schema}.{table.table}"] = frozenset(numbers)
        exact[f"{table.schema}.{table.table}"] = frozenset(numbers)
        others[f"{table.database}.{table.table}"] = frozenset(numbers)
    return others | exact


def _records(part: ReadPartition, start: StreamStart) -> PartitionRecords:
    records = PartitionRecords(topic=part.topic, partition=part.partition, offset=part.offset)
    if part.deletes_by_tombstone:
        known = start.tables[part.tables[0]]
        records.deleted_rows = known.name
        records.id = known.key if known.schema is None else known.schema.key
    return records


def _named(place: PartitionProgress, part: ReadPartition | None) -> PartitionProgress:
    """Returns the place where it is read, with the partition's name and what the next survey compares."""
    if part is None:
        return place
    own = {PARTITION_NAME: part.name, TOPIC: part.topic_id, SINCE: place.last_position.get(SINCE, str(part.offset))}
    return replace(place, offset=encode_position(part.offset), last_position={**place.last_position, **own})


def _decoder(survey: "TopicSurvey", partitions: Mapping[int, ReadPartition], start: StreamStart) -> DebeziumDecoder:
    read = tuple(table for table in survey.listed if table.table in start.tables and survey.is_live(table.table))
    of_partition = {number: part.tables[0] for number, part in partitions.items()}
    upserts = {table for part in partitions.values() if part.deletes_by_tombstone for table in part.tables}
    return DebeziumDecoder(
        tables=DebeziumTables(
            read, start.schemas, of_partition, upserts, start.columns, is_only=len(survey.listed) == 1
        ),
        sequence_by=(),
        last_position=table_states({**survey.progress, **start.progress}, OWN_KEYS),
        horizons=start.horizons,
        alone=len(survey.stream_partitions) == (1 if survey.of_transactions is None else 2),
    )
