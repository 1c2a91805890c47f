"""Opens the stream of shards at their registered places."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from cdc_pipeline.record import PARTITION_ENDED, PARTITION_NAME, TableName, decode_position
from cdc_pipeline.sources.debezium.decoder import DebeziumDecoder
from cdc_pipeline.sources.debezium.memory import table_states
from cdc_pipeline.sources.debezium.tables import DebeziumTables
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST
from cdc_pipeline.sources.files.stream import DebeziumStream
from cdc_pipeline.sources.kinesis.records import ShardRecords
from cdc_pipeline.sources.kinesis.shards import ShardClient, ShardPlace, ShardStream, shard_name
from cdc_pipeline.sources.kinesis.stream import ShardLines, ShardsStream
from cdc_pipeline.sources.known import PartitionProgress, StreamStart

if TYPE_CHECKING:
    from cdc_pipeline.sources.kinesis.source import ShardSource

STREAM = "stream"
"""Key in `last_position`, beside the names of tables: the identity of the shard's stream."""
OWN_KEYS = (PARTITION_NAME, PARTITION_ENDED, STREAM, FILE_DIGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadShard:
    """A shard that is read. `tables`: those with events in its stream. `parents`: by stream partition.

    `begins`: see `SurveyedShard`. `awaits`: those of its ancestors that other consumers did not read to their ends yet.
    """

    stream: ShardStream
    shard: str
    place: ShardPlace | None
    begins: datetime | None
    tables: tuple[TableName, ...]
    parents: tuple[int, ...]
    awaits: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherShards:
    """What a consumer has to know of shards that it does not read. `shown`: the names of all shards of the streams.

    `parents`: registered state of the parents that are not in the consumer's share. `hidden`: the names of streams that
    were read and are not shown. `alone`: the whole stream has one partition. `are_ended`: returns whether one of these
    stream partitions was read to its end by now.
    """

    shown: frozenset[str]
    parents: Mapping[int, PartitionProgress]
    hidden: frozenset[str]
    alone: bool
    are_ended: Callable[[frozenset[int]], bool]


def open_shards(
    source: "ShardSource", client: ShardClient, shards: Mapping[int, ReadShard], start: StreamStart, others: OtherShards
) -> ShardsStream:
    """Returns the stream of all stream partitions of `start`. One that is not in `shards` stays at its offset.

    So does a shard whose parents other consumers still read, until one of them was read to its end.
    """
    decoder = _decoder(source, shards, start, others)
    lines = _lines(source, client, shards, {**others.parents, **start.progress}, decoder)
    inner = DebeziumStream(
        partitions=lines,
        progress={number: _named(place, shards.get(number)) for number, place in start.progress.items()},
        decoder=decoder,
        position=start.position,
        commit_time=start.commit_time,
        folders=start.progress.keys,
    )
    awaited = frozenset().union(*(shard.awaits for shard in shards.values()))
    return ShardsStream(
        client=client,
        streams=sorted({*others.hidden, *(shard.stream.name for shard in shards.values())}),
        lines=lines,
        shown=others.shown,
        awaits=bool(awaited),
        is_to_open=lambda: bool(awaited) and others.are_ended(awaited),
        look_every=source.look_every,
        inner=inner,
    )


def _lines(
    source: "ShardSource",
    client: ShardClient,
    shards: Mapping[int, ReadShard],
    known: Mapping[int, PartitionProgress],
    decoder: DebeziumDecoder,
) -> dict[int, ShardLines]:
    lines = {}
    for number, shard in shards.items():
        if not shard.awaits:
            records = ShardRecords(
                client=client,
                stream=shard.stream,
                shard=shard.shard,
                offset=_first_offset(number, shards, known),
                place=shard.place,
                begins=shard.begins,
                pause=source.pause,
                clock=source.clock,
            )
            lines[number] = ShardLines(records, source.decode_line, partial(decoder.inherit, number, shard.parents))
    for number, each in lines.items():
        each.parents = [lines[parent] for parent in shards[number].parents if parent in lines]
    return lines


def _decoder(
    source: "ShardSource", shards: Mapping[int, ReadShard], start: StreamStart, others: OtherShards
) -> DebeziumDecoder:
    first = {number: shard.tables[0] for number, shard in shards.items()}
    return DebeziumDecoder(
        tables=DebeziumTables(source.tables, start.schemas, first, columns=start.columns),
        sequence_by=(),
        last_position=table_states({**others.parents, **start.progress}, OWN_KEYS),
        horizons=start.horizons,
        alone=others.alone,
    )


def _first_offset(number: int, shards: Mapping[int, ReadShard], known: Mapping[int, PartitionProgress]) -> int:
    """Returns the shard's offset; for one that was never read, at least those of its parents."""
    own = decode_position(known[number].offset)
    if shards[number].place is not None:
        return own
    return max([own, *(decode_position(known[parent].offset) for parent in shards[number].parents if parent in known)])


def _named(place: PartitionProgress, shard: ReadShard | None) -> PartitionProgress:
    """Returns the place with the shard's name and its stream's identity, which the next survey compares."""
    if shard is None:
        return place
    own = {PARTITION_NAME: shard_name(shard.stream.name, shard.shard), STREAM: shard.stream.identity}
    if shard.place is not None and shard.place.is_ended:
        own[FILE_DIGEST] = shard.place.encode()
    return replace(place, last_position={**place.last_position, **own})
