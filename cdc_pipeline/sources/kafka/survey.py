"""Compares the topics of a cluster with what is registered of them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path

import structlog

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import PARTITION_NAME, TableName, decode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.settings.kafka import KafkaSource
from cdc_pipeline.sources.debezium.events_survey import (
    EventsSurvey,
    numbered_partitions,
    read_together,
    stale_tables,
    warn_of_late_table,
)
from cdc_pipeline.sources.kafka.opening import SINCE, TOPIC, ReadPartition, open_stream
from cdc_pipeline.sources.kafka.stream import KafkaStream
from cdc_pipeline.sources.kafka.topics import Cluster, KeptRecords, Topic, partition_name, topic_of
from cdc_pipeline.sources.known import FoundTable, KnownTable, PartitionProgress, StreamIdentity, StreamStart

log = structlog.get_logger()

_SHORT_RETENTION = timedelta(hours=1)
_MILLISECOND = timedelta(milliseconds=1)
_CHANNEL = "kafka"
_AGAIN = "have Debezium send the table's rows again (an ad hoc snapshot)"
_NEW_LAKE = f"{_AGAIN}, and read the topic with begin: kept under another pipeline name and lake"


def topics_of_tables(
    source: KafkaSource, tables: Sequence[TableSettings], names: Collection[str]
) -> dict[TableName, tuple[str, ...]]:
    """Finds the topics of each table among `names`. The transaction topic is that of no table."""
    patterns = {table.table: source.topic_pattern(table.table) for table in tables}
    of_tables = sorted(name for name in names if name != source.transactions)
    return {table: tuple(filter(pattern.fullmatch, of_tables)) for table, pattern in patterns.items()}


@dataclass(frozen=True, kw_only=True)
class TopicSurvey(EventsSurvey):
    """Implements `SourceSurvey`. `progress`: the registered stream partitions; the offset is "" if one was never read.

    `registered`: the registered tables of pipeline.yml. `topics`: those of the listed tables, by name. `topics_of`: the
    names of each table's topics.
    `of_transactions`: the transaction topic, None if the settings name none.
    """

    stream: str
    folder: Path
    settings: KafkaSource
    progress: Mapping[int, PartitionProgress]
    registered: Mapping[TableName, KnownTable]
    cluster: Cluster
    topics: Mapping[str, Topic]
    of_transactions: Topic | None
    topics_of: Mapping[TableName, tuple[str, ...]]

    @property
    def identity(self) -> StreamIdentity:
        return StreamIdentity(system=self.cluster.cluster_id, timeline=0, channel=_CHANNEL)

    @cached_property
    def stream_partitions(self) -> Mapping[int, str]:
        """The name of each stream partition in Kafka: the registered ones, and new ones with the next numbers."""
        return numbered_partitions(self.progress, self.topic_partitions())

    @property
    def tables(self) -> tuple[FoundTable, ...]:
        return self.found_tables(self.is_live)

    @cached_property
    def stale(self) -> Mapping[TableName, TableStale]:
        """Registered tables whose topics lack records that were not read, and those that are stale already."""
        return stale_tables(self.registered, self._gaps, expected="every record of its topics", remedy=_NEW_LAKE)

    @cached_property
    def refused(self) -> Mapping[TableName, SourceError]:
        """New tables whose records are not all there or not known, and registered ones without any topic.

        With the transaction topic, also those with resting partitions: their transactions would never be whole.
        """
        new = [table.table for table in self.listed if table.table not in self.registered]
        gaps = {name: next(self._gaps(name), None) for name in new}
        found = {
            name: SourceError(
                why,
                expected=f"every record of the topics of {name}",
                remedy="correct source.topic or the topic's cleanup.policy; or write begin: kept (compacted: upserts)"
                f" under source, if what is kept has every row. If it has not: {_AGAIN}",
            )
            for name, why in gaps.items()
            if why is not None
        }
        for name in new:
            unknown = [error for topic in self.topics_of.get(name, ()) for error in self.topics[topic].unknown.values()]
            if unknown and name not in found:
                found[name] = unknown[0]
        for name in self.registered.keys() - self.stale.keys():
            resting = self._resting(name)
            if resting and (self.of_transactions is not None or not self.topics_of.get(name)):
                found[name] = resting[min(resting)]
        return found

    @cached_property
    def resting(self) -> Mapping[int, SourceError]:
        """Those of topics that are not shown: they may be hidden from this user, and are read once they are shown.

        Also those of which the cluster does not say what it keeps.
        """
        live = self.registered.keys() - self.stale.keys()
        return {number: error for name in live for number, error in self._resting(name).items()}

    def identities(self, table: TableName) -> Mapping[str, str]:
        return {name: self.topics[name].topic_id for name in self.topics_of.get(table, ())}

    def set_up(self) -> "TopicSurvey":
        """Creates nothing: the topics do not belong to the pipeline.

        Warns of topics that are soon deleted, and of those whose events of a new table were passed over.
        """
        more = () if self.of_transactions is None else (self.of_transactions,)
        for topic in (*self.topics.values(), *more):
            if topic.retention is not None and topic.retention < _SHORT_RETENTION:
                log.warning(
                    "records may be deleted before they are read",
                    topic=topic.name,
                    found=f"retention.ms = {topic.retention // _MILLISECOND}",
                    expected="days: the table of a consumer that was stopped for longer is stale",
                    remedy="raise retention.ms of the topic",
                )
        read = {
            topic_of(place.last_position.get(PARTITION_NAME, ""))
            for place in self.progress.values()
            if decode_position(place.offset or "0")
        }
        for table in self.listed:
            for name in sorted(read.intersection(self.topics_of.get(table.table, ()))):
                if table.table not in self.registered:
                    warn_of_late_table(table, kind="topic", name=name, again=_AGAIN)
        return self

    def open(self, start: StreamStart) -> KafkaStream:
        """Opens a client at the registered offsets. Partitions of which no table is read stay where they are."""
        known = set(self.stream_partitions.values())
        for name, error in self._unknown.items():
            if name not in known:
                log.warning("new partition not read", found=error.found, remedy=error.remedy)
        return open_stream(self, start, self._read_partitions(start), self._transaction_partition(start))

    def topic_partitions(self) -> list[str]:
        """Returns the names of all partitions of the topics, also of those that other consumers read."""
        names = [partition_name(name, number) for name in sorted(self.topics) for number in self.topics[name].kept]
        return names if self.of_transactions is None else [*names, partition_name(self.of_transactions.name, 0)]

    def is_live(self, name: TableName) -> bool:
        """Returns whether the table is read."""
        return name not in self.stale and name not in self.refused

    def _read_partitions(self, start: StreamStart) -> dict[int, ReadPartition]:
        numbers = {name: number for number, name in self.stream_partitions.items()}
        found = {}
        for topic in self.topics.values():
            live = [table for table, names in self.topics_of.items() if topic.name in names and self.is_live(table)]
            tables = read_together(topic.name, live, self.registered)
            for number, kept in topic.kept.items():
                stream_partition = numbers[partition_name(topic.name, number)]
                if tables and number not in topic.unknown and stream_partition in start.progress:
                    place = start.progress[stream_partition]
                    offset, is_late = decode_position(place.offset), self._may_begin_late(topic, place)
                    found[stream_partition] = ReadPartition(
                        topic=topic.name,
                        topic_id=topic.topic_id,
                        partition=number,
                        offset=max(offset, kept.first) if is_late else offset,
                        tables=tables,
                        deletes_by_tombstone=topic.is_compacted,
                    )
        return found

    def _transaction_partition(self, start: StreamStart) -> tuple[int, ReadPartition] | None:
        """Returns the transaction topic's stream partition, and where it is read from. Warns if records are missing.

        A topic that is named later is read from its end: its earlier transactions were registered without it.
        """
        topic = self.of_transactions
        if topic is None:
            return None
        name, kept = partition_name(topic.name, 0), topic.kept[0]
        number = next(number for number, found in self.stream_partitions.items() if found == name)
        place = start.progress[number]
        offset, was = decode_position(place.offset), place.last_position.get(TOPIC)
        is_new = was is None and offset == 0
        if is_new:
            is_named_later = any(decode_position(other.offset) for other in start.progress.values())
            offset = kept.end if is_named_later else kept.first
        elif was not in (None, topic.topic_id) or not kept.first <= offset <= kept.end:
            log.warning(
                "records of the transaction topic are missing: boundaries may have parts of their transactions",
                topic=topic.name,
                found=f"it is read up to offset {offset}, and the broker keeps {kept.first} to {kept.end}",
                expected="every record of the topic with which the stream began",
                remedy="no event is lost. Raise retention.ms of the topic, and do not create it again",
            )
            offset = kept.first
        part = ReadPartition(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=0,
            offset=offset,
            tables=(),
            deletes_by_tombstone=False,
        )
        return number, part

    def _may_begin_late(self, topic: Topic, place: PartitionProgress | None) -> bool:
        """Returns whether a partition may begin with what is kept of it: one of which no cut says where it began.

        `place` is None for a partition that is not registered. If its topic was read before, it was added since.
        """
        if self.settings.begin != "kept":
            return False
        if place is not None:
            return decode_position(place.offset or "0") == 0 and SINCE not in place.last_position
        read = (each.last_position for each in self.progress.values() if TOPIC in each.last_position)
        return not any(topic_of(each.get(PARTITION_NAME, "")) == topic.name for each in read)

    def _gaps(self, table: TableName) -> Iterator[str]:
        """Yields why records of the table's topics are missing."""
        names = self.topics_of.get(table, ())
        if not names and table not in self.registered:
            yield f"the cluster has no topic of {table} that this user may read: {self.settings.topic}"
        for topic in (self.topics[name] for name in names):
            if topic.is_compacted and self.settings.compacted == "refuse":
                yield f"the topic {topic.name} of {table} is compacted, so it has only the newest records of each key"
            for number, kept in topic.kept.items():
                name = partition_name(topic.name, number)
                yield from self._gap(topic, name, kept, self._places.get(name))
        if again := self.created_again(self.registered.get(table)):
            # Nothing of it was registered yet, so no partition says which topic it is of.
            yield f"the topic {again} was deleted and created again since {table} was set up"

    @cached_property
    def _unknown(self) -> Mapping[str, SourceError]:
        return {
            partition_name(topic.name, number): error
            for topic in self.topics.values()
            for number, error in topic.unknown.items()
        }

    @cached_property
    def _places(self) -> Mapping[str, PartitionProgress]:
        """The registered stream partitions by name."""
        return {place.last_position.get(PARTITION_NAME, ""): place for place in self.progress.values()}

    @cached_property
    def _unreadable(self) -> Mapping[int, str]:
        """The names of the registered stream partitions that cannot be read now, of whatever tables."""
        shown = {*self.topics, self.settings.transactions}
        names = {number: place.last_position.get(PARTITION_NAME, "") for number, place in self.progress.items()}
        return {number: name for number, name in names.items() if name in self._unknown or topic_of(name) not in shown}

    def _resting(self, table: TableName) -> dict[int, SourceError]:
        """Returns the stream partitions of a registered table that cannot be read now, each with the reason."""
        if not self._unreadable:
            return {}
        pattern = self.settings.topic_pattern(table)
        found = {number: name for number, name in self._unreadable.items() if pattern.fullmatch(topic_of(name))}
        return {number: self._unknown.get(name) or _hidden(topic_of(name), table) for number, name in found.items()}

    def _gap(self, topic: Topic, name: str, kept: KeptRecords, place: PartitionProgress | None) -> Iterator[str]:
        offset = decode_position(place.offset) if place is not None and place.offset else 0
        was = None if place is None else place.last_position.get(TOPIC)
        if was is not None and was != topic.topic_id:
            yield f"the topic {topic.name} was deleted and created again since it was read"
        elif offset < kept.first and not self._may_begin_late(topic, place):
            yield f"the broker keeps {name} from offset {kept.first} on, and it is read up to offset {offset}"
        elif offset > kept.end:
            yield f"{name} ends at offset {kept.end}, and it was read up to offset {offset}"


def _hidden(topic: str, table: TableName) -> SourceError:
    return SourceError(
        f"the cluster does not show the topic {topic} of {table} to this user any more",
        expected="every topic that was read",
        remedy="let source.username describe and read it. If it was deleted for good, let source.topic match it"
        f" no longer, or take {table} out of pipeline.yml",
    )
