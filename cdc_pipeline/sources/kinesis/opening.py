"""Opens the stream of shards at their registered places."""

from collections.abc import Mapping
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
    from cdc_pipeline.sources.kinesis.survey import ShardSurvey

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


def open_shards(
    survey: "ShardSurvey", client: ShardClient, shards: Mapping[int, ReadShard], start: StreamStart
) -> ShardsStream:
    """Returns the stream of all stream partitions of `start`. One that is not in `shards` stays at its offset.

    So does a shard whose parents other consumers still read, until one of them was read to its end.
    """
    parents = {parent for shard in shards.values() for parent in shard.parents} - start.progress.keys()
    of_parents = {number: place for number, place in survey.progress.items() if number in parents and place.offset}
    known = {**of_parents, **start.progress}
    decoder = _decoder(survey, shards, start, known)
    lines = _lines(survey.source, client, shards, known, decoder)
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
        streams=sorted({*survey.hidden_streams, *(shard.stream.name for shard in shards.values())}),
        lines=lines,
        shown=frozenset(shard_name(name, shard) for name, each in survey.streams.items() for shard in each.shards),
        awaits=bool(awaited),
        is_to_open=lambda: bool(awaited and awaited & survey.ended(survey.known.progress(awaited))),
        look_every=survey.source.look_every,
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
    survey: "ShardSurvey",
    shards: Mapping[int, ReadShard],
    start: StreamStart,
    known: Mapping[int, PartitionProgress],
) -> DebeziumDecoder:
    first = {number: shard.tables[0] for number, shard in shards.items()}
    registered = tuple(table for table in survey.listed if table.table in start.tables)
    return DebeziumDecoder(
        tables=DebeziumTables(registered, start.schemas, first, columns=start.columns, is_only=len(survey.listed) == 1),
        sequence_by=(),
        last_position=table_states(known, OWN_KEYS),
        horizons=start.horizons,
        alone=len(survey.stream_partitions) == 1,
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
