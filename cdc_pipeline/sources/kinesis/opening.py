"""Opens the stream of shards at their registered places."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cdc_pipeline.record import TableName, decode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.events_survey import PARTITION
from cdc_pipeline.sources.debezium.partition import Decode, PartitionLines, RestingPartition
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.kinesis.records import ShardRecords
from cdc_pipeline.sources.kinesis.shards import ShardClient, ShardPlace, ShardStream, shard_name
from cdc_pipeline.sources.kinesis.stream import ShardLines, ShardsStream
from cdc_pipeline.sources.known import PartitionProgress, StreamStart
from cdc_pipeline.time_slice import EPOCH

STREAM = "stream"
"""Key in `last_position`, beside the names of tables: the identity of the shard's stream."""
OWN_KEYS = (PARTITION, STREAM, FILE_DIGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadShard:
    """A shard that is read. `tables`: those with events in its stream. `parents`: by stream partition."""

    stream: ShardStream
    shard: str
    place: ShardPlace | None
    tables: tuple[TableName, ...]
    parents: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOpening:
    """How shards are read: `pause` between two reads of one, and what a line of theirs means."""

    listed: tuple[TableSettings, ...]
    pause: timedelta
    decode: Decode
    clock: Callable[[], datetime]

    def open(
        self, client: ShardClient, shards: Mapping[int, ReadShard], start: StreamStart, shown: frozenset[str]
    ) -> ShardsStream:
        """Returns the stream of all stream partitions of `start`. One that is not in `shards` stays at its offset."""
        decoder = self._decoder(shards, start)
        lines = {
            number: ShardLines(
                self._records(client, shards[number], place), self.decode, _inherit(decoder, number, shards)
            )
            for number, place in start.progress.items()
            if number in shards
        }
        for number, each in lines.items():
            each.parents = [lines[parent] for parent in shards[number].parents if parent in lines]
        resting = {
            number: PartitionLines(RestingPartition(offset=decode_position(place.offset)))
            for number, place in start.progress.items()
            if number not in lines
        }
        inner = DebeziumStream(
            partitions={**lines, **resting},
            progress={number: _named(place, shards.get(number)) for number, place in start.progress.items()},
            decoder=decoder,
            position=0 if start.last_cut is None else decode_position(start.last_cut.position),
            commit_time=start.commit_time or EPOCH,
            folders=start.progress.keys,
        )
        streams = sorted({shard.stream.name for shard in shards.values()})
        return ShardsStream(client=client, streams=streams, lines=lines, shown=shown, inner=inner)

    def _records(self, client: ShardClient, shard: ReadShard, place: PartitionProgress) -> ShardRecords:
        return ShardRecords(
            client=client,
            stream=shard.stream,
            shard=shard.shard,
            offset=decode_position(place.offset),
            place=shard.place,
            pause=self.pause,
            clock=self.clock,
        )

    def _decoder(self, shards: Mapping[int, ReadShard], start: StreamStart) -> DebeziumDecoder:
        known = {name: table.schema for name, table in start.tables.items() if table.schema is not None}
        first = {number: shard.tables[0] for number, shard in shards.items()}
        return DebeziumDecoder(
            tables=DebeziumTables(self.listed, known, first),
            sequence_by=(),
            last_position={
                number: {
                    TableName.parse(table): seen for table, seen in place.last_position.items() if table not in OWN_KEYS
                }
                for number, place in start.progress.items()
            },
            horizons={name: table.horizon for name, table in start.tables.items()},
            alone=len(start.progress) == 1,
        )


def place_of(progress: PartitionProgress) -> ShardPlace | None:
    """Returns how far a shard was read, None if it never was."""
    text = progress.last_position.get(FILE_DIGEST)
    return None if text is None else ShardPlace.decode(text)


def _inherit(decoder: DebeziumDecoder, number: int, shards: Mapping[int, ReadShard]) -> Callable[[], None]:
    return lambda: decoder.inherit(number, shards[number].parents)


def _named(place: PartitionProgress, shard: ReadShard | None) -> PartitionProgress:
    """Returns the place with the shard's name and its stream's identity, which the next survey compares."""
    if shard is None:
        return place
    own = {PARTITION: shard_name(shard.stream.name, shard.shard), STREAM: shard.stream.identity}
    return replace(place, last_position={**place.last_position, **own})
