"""The client of AWS Kinesis."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from cdc_pipeline.settings.aws import KinesisSource
from cdc_pipeline.sources.kinesis.calls import GONE, StreamCalls, code_of, connected, opened_iterator, refusal
from cdc_pipeline.sources.kinesis.shards import Fetched, Shard, ShardRecord, ShardStream

_MOST_RECORDS = 10_000
_SOME_TIME = timedelta(milliseconds=1)
_EXPIRED, _NO_SUCH_PLACE = "ExpiredIteratorException", "InvalidArgumentException"
_REFUSED_PLACES = frozenset({_NO_SUCH_PLACE, "ValidationException"})


class KinesisClient:
    """Implements `ShardClient` for Kinesis. `folder`: that of pipeline.yml, where paths begin."""

    def __init__(self, settings: KinesisSource, folder: Path, calls: StreamCalls | None = None) -> None:
        self._client = connected("kinesis", settings, folder)
        self._line = keyed_line if settings.format == "debezium" else bare_line
        self._calls = calls or StreamCalls()

    def describe(self, name: str) -> ShardStream | None:
        doing = f"describing the stream {name}"
        try:
            key = "StreamDescriptionSummary"
            found = self._calls(doing, lambda: self._client.describe_stream_summary(StreamName=name), key)[key]
            shards = self._shards(doing, name)
        except ClientError as error:
            if code_of(error) in GONE:
                return None
            raise refusal(doing, error) from error
        created = found["StreamCreationTimestamp"]
        return ShardStream(
            name=name,
            address=name,
            identity=identity_of(found["StreamARN"], created),
            created=created,
            retention=timedelta(hours=found["RetentionPeriodHours"]),
            shards=shards,
        )

    def iterator(self, stream: ShardStream, shard: str, sequence: str) -> str | None:
        doing = f"opening {shard} of {stream.name}"
        at: dict[str, str] = {"ShardIteratorType": "TRIM_HORIZON"}
        if sequence:
            at = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": sequence}
        return opened_iterator(
            self._calls,
            doing,
            lambda: self._client.get_shard_iterator(StreamName=stream.address, ShardId=shard, **at),
            sequence=sequence,
            refused_places=_REFUSED_PLACES,
        )

    def fetch(self, stream: ShardStream, iterator: str) -> Fetched | None:
        doing = f"reading {stream.name}"
        try:
            answer = self._calls(
                doing, lambda: self._client.get_records(ShardIterator=iterator, Limit=_MOST_RECORDS), "Records"
            )
        except ClientError as error:
            if code_of(error) == _EXPIRED:
                return None
            raise refusal(doing, error) from error
        records, said = answer["Records"], answer.get("MillisBehindLatest")
        behind = None if said is None else timedelta(milliseconds=said)
        # Whole milliseconds: records that arrived together with the last one of a full answer count as 0.
        if behind is not None and len(records) == _MOST_RECORDS:
            behind = max(behind, _SOME_TIME)
        return Fetched(
            records=tuple(
                ShardRecord(
                    sequence=record["SequenceNumber"],
                    arrived=record["ApproximateArrivalTimestamp"],
                    line=self._line(record),
                )
                for record in records
            ),
            following=answer.get("NextShardIterator"),
            behind=behind,
        )

    def close(self) -> None:
        self._client.close()

    def _shards(self, doing: str, name: str) -> dict[str, Shard]:
        found: dict[str, Shard] = {}
        asked: dict[str, str] = {"StreamName": name}
        while True:
            answer = self._calls(doing, partial(self._client.list_shards, **asked), "Shards")
            for shard in answer["Shards"]:
                parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
                found[shard["ShardId"]] = Shard(
                    name=shard["ShardId"],
                    parents=tuple(parent for parent in parents if parent),
                    last=shard["SequenceNumberRange"].get("EndingSequenceNumber", ""),
                )
            if "NextToken" not in answer:
                return found
            asked = {"NextToken": answer["NextToken"]}


def identity_of(name: str, created: datetime) -> str:
    """Returns a stream's identity. AWS's client gives `created` in the time zone of the machine."""
    return f"{name} {created.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def bare_line(record: Mapping[str, Any]) -> bytes:
    """Returns the content of a record of AWS DMS."""
    return bytes(record["Data"])


def keyed_line(record: Mapping[str, Any]) -> bytes:
    """Returns a record of Debezium as one line: JSON with key and value, each a text inside of it.

    Debezium writes the event's key as the partition key. Other partition keys are left out. A record with invalid UTF-8
    becomes a line that is no JSON; it is quarantined with all its bytes.
    """
    data, key = bytes(record["Data"]), str(record["PartitionKey"])
    if not data:
        return b""
    try:
        value = data.decode()
    except UnicodeDecodeError:
        return data
    return json.dumps(
        {"key": key if _is_object(key) else None, "value": value}, separators=(",", ":"), ensure_ascii=False
    ).encode()


def _is_object(text: str) -> bool:
    try:
        return text.startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
