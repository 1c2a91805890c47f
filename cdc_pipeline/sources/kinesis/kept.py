"""Finds out which shards surely have every record that was not read of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from graphlib import TopologicalSorter

from cdc_pipeline.errors import SourceError
from cdc_pipeline.sources.kinesis.opening import STREAM
from cdc_pipeline.sources.kinesis.shards import (
    Shard,
    ShardClient,
    ShardPlace,
    ShardStream,
    keeps_the_rest,
    place_of,
    shard_name,
    shards_by_stream,
)
from cdc_pipeline.sources.known import PartitionProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedShard:
    """A shard of a stream. `keeps_the_rest`: the stream surely keeps every record that was not read of it.

    True also if only a record could show it and none can be read now: whoever reads the shard finds out.
    `begins`: the shard has no older record that was not read. None for one that may begin late, since nothing of its
    stream was read before and the settings say that what is kept suffices.
    """

    keeps_the_rest: bool
    begins: datetime | None


def surveyed_shards(
    client: ShardClient,
    streams: Mapping[str, ShardStream],
    progress: Mapping[int, PartitionProgress],
    now: datetime,
    *,
    begins_kept: bool,
) -> dict[str, SurveyedShard]:
    """Returns every shard of the streams by its name, and those that were read and are not shown any more."""
    found, registered = {}, shards_by_stream(progress)
    for stream in streams.values():
        places = _places(stream, registered.get(stream.name, {}))
        begins = _beginnings(stream, places, begins_kept=begins_kept)
        for shard in stream.shards.keys() | {shard for shard, place in places.items() if place is not None}:
            found[shard_name(stream.name, shard)] = SurveyedShard(
                keeps_the_rest=_keeps(client, stream, shard, places.get(shard), begins[shard], now),
                begins=begins[shard],
            )
    return found


def reached(shard: Shard, place: ShardPlace | None) -> ShardPlace | None:
    """Returns the place; as ended if it is that of the closed shard's last record."""
    if place is None or not shard.last or place.is_ended or int(place.sequence or 0) < int(shard.last):
        return place
    return replace(place, is_ended=True)


def _places(stream: ShardStream, registered: Mapping[str, PartitionProgress]) -> dict[str, ShardPlace | None]:
    """Returns the places of the registered shards, without those of an earlier stream of the name."""
    return {
        shard: place_of(progress)
        for shard, progress in registered.items()
        if progress.last_position.get(STREAM, stream.identity) == stream.identity
    }


def _beginnings(
    stream: ShardStream, places: Mapping[str, ShardPlace | None], *, begins_kept: bool
) -> dict[str, datetime | None]:
    """Returns a time for each shard before which nothing of it is left to read, nor of the shards that came from it.

    A shard has no records from before the shards were closed that it came from.
    """
    parents = {shard: each.parents for shard, each in stream.shards.items()}
    found: dict[str, datetime | None] = {}
    is_unread = all(place is None for place in places.values())
    # A shard is read only when those that it came from are ended, or were gone at the stream's first read.
    passed = {parent for shard, each in parents.items() if places.get(shard) is not None for parent in each}
    for shard in (*TopologicalSorter(parents).static_order(), *places):
        place = places.get(shard)
        known = [each for each in parents.get(shard, ()) if each in places or each in stream.shards]
        if place is not None:
            found[shard] = place.known_until
        elif known:
            found[shard] = max((time for each in known if (time := found[each]) is not None), default=None)
        else:
            # A shard that is not shown any more may have had records since the stream was read for the first time.
            is_passed = shard in stream.shards or is_unread or shard in passed
            may_begin_late = begins_kept and shard in places and is_passed
            found[shard] = None if may_begin_late else stream.created
    return found


def _keeps(
    client: ShardClient,
    stream: ShardStream,
    shard: str,
    place: ShardPlace | None,
    begins: datetime | None,
    now: datetime,
) -> bool:
    if place is None:
        return begins is None or stream.keeps(begins, now)
    if shard not in stream.shards:
        return place.is_ended
    try:
        return keeps_the_rest(client, stream, shard, reached(stream.shards[shard], place) or place, now)
    except SourceError as error:
        if error.retryable:
            raise
        # Reading the shard makes the same call and the same comparison; an error there stops this shard alone.
        return True
