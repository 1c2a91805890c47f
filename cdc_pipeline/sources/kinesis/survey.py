"""Compares the shards of streams with what is registered of them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from cdc_pipeline.errors import SourceError, TableStale
from cdc_pipeline.record import PARTITION_ENDED, PARTITION_NAME, TableName, decode_position
from cdc_pipeline.sources.debezium.events_survey import (
    EventsSurvey,
    numbered_partitions,
    read_together,
    stale_tables,
    warn_of_late_table,
)
from cdc_pipeline.sources.kinesis.kept import SurveyedShard, reached
from cdc_pipeline.sources.kinesis.opening import STREAM, ReadShard, open_shards
from cdc_pipeline.sources.kinesis.shards import ShardStream, place_of, shard_name, shards_by_stream
from cdc_pipeline.sources.kinesis.stream import ShardsStream
from cdc_pipeline.sources.known import (
    FoundTable,
    KnownStream,
    KnownTable,
    PartitionProgress,
    StreamIdentity,
    StreamStart,
)

if TYPE_CHECKING:
    from cdc_pipeline.sources.kinesis.source import ShardSource

_AGAIN = "have the table's rows sent again (a snapshot of Debezium, a full load of AWS DMS)"
_NEW_LAKE = f"{_AGAIN}, and read the stream with begin: kept under another pipeline name and lake"


@dataclass(frozen=True, kw_only=True)
class ShardSurvey(EventsSurvey):
    """Implements `SourceSurvey`. `progress`: the registered stream partitions; the offset is "" if one was never read.

    `streams`: by name, those that exist. `denied`: those that the credentials may not describe. `stream_of`: the name
    of each listed table's stream. `shards`: by name, those that are shown or registered. `known`: the stream as it is
    registered at a later time.
    """

    source: "ShardSource"
    progress: Mapping[int, PartitionProgress]
    registered: Mapping[TableName, KnownTable]
    streams: Mapping[str, ShardStream]
    denied: Mapping[str, SourceError]
    stream_of: Mapping[TableName, str]
    shards: Mapping[str, SurveyedShard]
    known: KnownStream
    now: datetime

    @property
    def identity(self) -> StreamIdentity:
        """The kind of source alone: each stream's own identity is kept with its shards."""
        return StreamIdentity(system=self.source.kind, timeline=0, channel=self.source.kind)

    @cached_property
    def stream_partitions(self) -> Mapping[int, str]:
        """The name of each stream partition: the registered shards, and new ones with the next numbers."""
        names = (
            shard_name(name, shard) for name in sorted(self.streams) for shard in sorted(self.streams[name].shards)
        )
        return numbered_partitions(self.progress, names)

    @property
    def tables(self) -> tuple[FoundTable, ...]:
        return self.found_tables(self._is_live)

    @cached_property
    def stale(self) -> Mapping[TableName, TableStale]:
        """Registered tables whose streams lack records that were not read, and those that are stale already."""
        return stale_tables(self.registered, self._gaps, expected="every record of its stream", remedy=_NEW_LAKE)

    @cached_property
    def refused(self) -> Mapping[TableName, SourceError]:
        found = {}
        for table in (each.table for each in self.listed):
            why = next(self._refusals(table), None)
            if why is not None and table not in self.stale:
                found[table] = SourceError(
                    why,
                    expected=f"every change of {table}",
                    remedy="correct source.stream or the stream; or write begin: kept under source, if what is kept has"
                    " every row",
                )
        return found | self._hidden

    @cached_property
    def resting(self) -> Mapping[int, SourceError]:
        """The shards of streams that are not shown: they may be hidden from these credentials, and are read later."""
        of_stream = {self.stream_of[table]: error for table, error in self._hidden.items()}
        streams = {
            number: place.last_position.get(PARTITION_NAME, "").rpartition(" ")[0]
            for number, place in self.progress.items()
            if PARTITION_ENDED not in place.last_position
        }
        return {number: of_stream[stream] for number, stream in streams.items() if stream in of_stream}

    def identities(self, table: TableName) -> Mapping[str, str]:
        stream = self.streams.get(self.stream_of[table])
        return {} if stream is None else {stream.name: stream.identity}

    def set_up(self) -> "ShardSurvey":
        """Creates nothing: the streams do not belong to the pipeline. Warns of a new table in one that was read."""
        for table in self.listed:
            name = self.stream_of[table.table]
            places = self._registered_shards.get(name, {}).values()
            is_read = any(decode_position(place.offset or "0") for place in places)
            if is_read and table.table not in self.registered and self._is_live(table.table):
                warn_of_late_table(table, kind="stream", name=name, again=_AGAIN)
        return self

    def open(self, start: StreamStart) -> ShardsStream:
        """Opens a client at the registered places. Streams of which no table is read stay where they are."""
        client = self.source.connect()
        try:
            return open_shards(self, client, self._read_shards(start), start)
        except BaseException:
            client.close()
            raise

    @property
    def hidden_streams(self) -> set[str]:
        """The names of the streams of tables that are not shown."""
        return {self.stream_of[table] for table in self._hidden}

    @cached_property
    def _hidden(self) -> dict[TableName, SourceError]:
        """Registered tables whose streams are not shown any more, and all whose streams may not be described."""
        return {
            table: self.denied.get(stream)
            or SourceError(
                f"the stream {stream} of {table} is not shown to these credentials any more",
                expected="every stream that was read",
                remedy=f"let them describe and read it. If it was deleted for good, take {table} out of pipeline.yml",
            )
            for table, stream in self.stream_of.items()
            if stream not in self.streams
            and table not in self.stale
            and (table in self.registered or stream in self.denied)
        }

    def _is_live(self, name: TableName) -> bool:
        return name not in self.stale and name not in self.refused

    def ended(self, progress: Mapping[int, PartitionProgress]) -> set[int]:
        """Returns those of `progress` that were read to their ends, and those of which nothing is kept any more."""
        shards = {
            shard_name(name, each): shard for name, of in self.streams.items() for each, shard in of.shards.items()
        }
        found = set()
        for number, registered in progress.items():
            name = self.stream_partitions[number]
            place = reached(shards[name], place_of(registered)) if name in shards else None
            if name not in shards or (place is not None and place.is_ended):
                found.add(number)
        return found

    def _read_shards(self, start: StreamStart) -> dict[int, ReadShard]:
        numbers = {name: number for number, name in self.stream_partitions.items()}
        ended, found, parents = self.ended(self.progress), dict[int, ReadShard](), dict[int, tuple[int, ...]]()
        for stream in self.streams.values():
            live = [each for each, of in self.stream_of.items() if of == stream.name and self._is_live(each)]
            tables = read_together(stream.name, live, self.registered)
            for shard in stream.shards.values():
                name = shard_name(stream.name, shard.name)
                number = numbers[name]
                if tables and number in start.progress:
                    named = (numbers.get(shard_name(stream.name, parent)) for parent in shard.parents)
                    parents[number] = tuple(parent for parent in named if parent is not None)
                    found[number] = ReadShard(
                        stream=stream,
                        shard=shard.name,
                        place=reached(shard, place_of(start.progress[number])),
                        begins=self.shards[name].begins,
                        tables=tables,
                        parents=parents[number],
                    )
        awaited = _awaited(parents, ended)
        return {number: replace(shard, awaits=awaited[number]) for number, shard in found.items()}

    def _refusals(self, table: TableName) -> Iterator[str]:
        """Yields why a table that was never read cannot be read now."""
        stream = self.streams.get(self.stream_of[table])
        if table in self.source.unfit:
            yield self.source.unfit[table]
        if stream is None:
            yield f"there is no stream {self.stream_of[table]} of {table} that these credentials may read"
        elif table not in self.registered:
            if stream.refusal:
                yield stream.refusal
            ids = next(each.id for each in self.listed if each.table == table)
            if stream.key and set(ids) != set(stream.key):
                yield f"the key of {stream.name} is {', '.join(stream.key)}, and id of {table} is {', '.join(ids)}"
            if stream.lacks and not self.source.begins_kept:
                yield stream.lacks
            if not self.source.begins_kept and not stream.keeps(stream.created, self.now):
                yield (
                    f"the stream {stream.name} of {table} is older ({stream.created:%Y-%m-%d}) than what it keeps"
                    f" ({stream.retention})"
                )

    @cached_property
    def _registered_shards(self) -> Mapping[str, Mapping[str, PartitionProgress]]:
        return shards_by_stream(self.progress)

    def _gaps(self, table: TableName) -> Iterator[str]:
        """Yields why records of the table's stream are missing."""
        stream = self.streams.get(self.stream_of[table])
        if stream is None:
            return
        known = self._registered_shards.get(stream.name, {})
        identities = {place.last_position.get(STREAM, stream.identity) for place in known.values()}
        if identities - {stream.identity}:
            yield f"the stream {stream.name} was deleted and created again since it was read"
            return
        if self.created_again(self.registered.get(table)):
            # Nothing of it was registered yet, so no shard says which stream it is of.
            yield f"the stream {stream.name} was deleted and created again since {table} was set up"
            return
        if stream.refusal:
            yield stream.refusal
        for name in sorted({*known, *stream.shards}) if known else ():
            shard, place = shard_name(stream.name, name), place_of(known[name]) if name in known else None
            if shard not in self.shards or self.shards[shard].keeps_the_rest:
                continue
            if place is None:
                yield f"{shard} was never read, and its first records may be gone"
            else:
                until = f"{place.known_until:%Y-%m-%d %H:%M} UTC"
                retention = place.kept_by(stream).retention
                yield f"{stream.name} keeps records for {retention}, and {name} was read up to {until}"


def _awaited(parents: Mapping[int, tuple[int, ...]], ended: Collection[int]) -> dict[int, frozenset[int]]:
    """Returns which shards of other consumers have to be read to their ends before each of the own, by `parents`."""
    found = dict[int, frozenset[int]]()
    for number in TopologicalSorter(parents).static_order():
        if number in parents:
            left = [parent for parent in parents[number] if parent not in ended]
            others = frozenset(parent for parent in left if parent not in parents)
            found[number] = others.union(*(found[parent] for parent in left if parent in parents))
    return found
