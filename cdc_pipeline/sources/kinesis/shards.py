"""A stream of shards, and the client that reads it: what Kinesis and DynamoDB's streams have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, Self

from cdc_pipeline.record import PARTITION_NAME
from cdc_pipeline.sources.files.partition_files import FILE_DIGEST
from cdc_pipeline.sources.known import PartitionProgress
from cdc_pipeline.time_slice import EPOCH

CLOCK_MARGIN = timedelta(minutes=10)
"""Clocks may differ by so much. AWS refuses a caller whose clock is wrong by more than five minutes."""
EMPTY_ANSWERS = 20
"""After so many in a row, an open shard counts as read to its present end, if the server does not say where that is."""
_NO_SEQUENCE = "-"
_AT_THE_END = timedelta(0)
_OPEN, _ENDED = "open", "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A shard. `parents`: those that were split or merged into it. `last`: its last sequence number, "" while open."""

    name: str
    parents: tuple[str, ...] = ()
    last: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStream:
    """A stream as its server describes it. `shards`: by name, without those whose records have all expired.

    `address`: by which the client reads it. `identity`: differs for a new stream of the same name. `refusal`: why its
    records cannot show every change, "" if they can. `lacks`: which changes were never in it, "" if it has all. `key`:
    the id that its records have, () if the server does not know it.
    """

    name: str
    address: str
    identity: str
    created: datetime
    retention: timedelta
    shards: Mapping[str, Shard]
    refusal: str = ""
    lacks: str = ""
    key: tuple[str, ...] = ()

    def counts_as_read(self, shard: str, empty_answers: int) -> bool:
        """Returns whether the shard counts as read to its present end after so many empty answers in a row.

        For a server that does not say it. A closed shard shows its end by itself.
        """
        found = self.shards.get(shard)
        return empty_answers >= EMPTY_ANSWERS and (found is None or not found.last)

    def keeps(self, since: datetime, now: datetime) -> bool:
        """Returns whether every record that arrived after `since` is surely still kept."""
        return now - since < self.retention - CLOCK_MARGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """A record. `line`: its content as one line for the decoder. `arrived`: when the server took it, about."""

    sequence: str
    arrived: datetime
    line: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The answer to one read. `following`: the next iterator, None at the end of a closed shard.

    `behind`: how long ago the newest record arrived that was not returned yet; zero at the shard's present end. None if
    the server does not say: then records may follow an empty answer.
    """

    records: tuple[ShardRecord, ...]
    following: str | None
    behind: timedelta | None


class ShardClient(Protocol):
    """Reads streams of shards. Repeats throttled calls.

    Raises SourceAway, SourceError or SettingsError; StreamDenied if the credentials have no right to the call.
    """

    def describe(self, name: str) -> ShardStream | None:
        """Returns the stream, None if there is none."""

    def iterator(self, stream: ShardStream, shard: str, sequence: str) -> str | None:
        """Returns an iterator at the record `sequence`, at the oldest kept one if that is "".

        Returns None if the server knows that the record is not kept any more. A server may also return an iterator at
        a later record.
        """

    def fetch(self, stream: ShardStream, iterator: str) -> Fetched | None:
        """Returns the next records, None if the iterator has expired."""

    def close(self) -> None:
        """Closes the connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlace:
    """How far a shard was read: after the record `sequence`, or before its first one if that is "".

    `known_until`: every record up to this time was read. So nothing is missing as long as the stream keeps what arrived
    after it. `is_ended`: the shard is closed and was read to its end. Then `known_until` is a time when it was open,
    so no shard that came from it has an older record. `retention`: that of the stream when the place was read, None if
    it is not known. A longer one brings nothing back that had expired before it was set.
    """

    sequence: str
    known_until: datetime
    is_ended: bool = False
    retention: timedelta | None = None

    def kept_by(self, stream: ShardStream) -> ShardStream:
        """Returns the stream with the retention that counts for the records after this place: the shorter one."""
        return replace(stream, retention=min(stream.retention, self.retention or stream.retention))

    def encode(self) -> str:
        """Returns the place as text for the metadata store."""
        seconds = int((self.known_until - EPOCH).total_seconds())
        retention = "" if self.retention is None else f" {int(self.retention.total_seconds())}"
        return f"{self.sequence or _NO_SEQUENCE} {seconds} {_ENDED if self.is_ended else _OPEN}{retention}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """Reads the text that `encode` wrote, in an earlier release without the retention."""
        sequence, seconds, state, *retention = text.split(" ")
        return cls(
            sequence="" if sequence == _NO_SEQUENCE else sequence,
            known_until=EPOCH + timedelta(seconds=int(seconds)),
            is_ended=state == _ENDED,
            retention=timedelta(seconds=int(retention[0])) if retention else None,
        )


def place_of(progress: PartitionProgress) -> ShardPlace | None:
    """Returns how far a shard was read, None if it never was."""
    text = progress.last_position.get(FILE_DIGEST)
    return None if text is None else ShardPlace.decode(text)


def shard_name(stream: str, shard: str) -> str:
    """Returns the name of a stream's shard, as people read it in the metadata store and in messages."""
    return f"{stream} {shard}"


def shards_by_stream(progress: Mapping[int, PartitionProgress]) -> dict[str, dict[str, PartitionProgress]]:
    """Returns the registered shards of each stream by their names."""
    found = dict[str, dict[str, PartitionProgress]]()
    for place in progress.values():
        stream, _, shard = place.last_position.get(PARTITION_NAME, "").rpartition(" ")
        found.setdefault(stream, {})[shard] = place
    return found


def keeps_the_rest(client: ShardClient, stream: ShardStream, shard: str, place: ShardPlace, now: datetime) -> bool:
    """Returns whether the stream surely keeps every record after `place`. Reads at most one record.

    If the time does not show it, the record at `place` does, as long as it is kept itself.
    """
    if place.is_ended or place.kept_by(stream).keeps(place.known_until, now):
        return True
    iterator, silent = client.iterator(stream, shard, place.sequence) if place.sequence else None, 0
    while iterator is not None:
        fetched = client.fetch(stream, iterator)
        silent += fetched is not None and fetched.behind is None
        is_end = fetched is None or fetched.behind == _AT_THE_END or stream.counts_as_read(shard, silent)
        if fetched is None or fetched.records or is_end:
            return fetched is not None and [each.sequence for each in fetched.records[:1]] == [place.sequence]
        iterator = fetched.following
    return False
