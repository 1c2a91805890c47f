"""The client of DynamoDB's streams."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from botocore.exceptions import ClientError

from cdc_pipeline.settings.aws import DynamodbSource
from cdc_pipeline.sources.kinesis.calls import StreamCalls, code_of, connected, opened_iterator, refusal
from cdc_pipeline.sources.kinesis.shards import Fetched, Shard, ShardRecord, ShardStream

RETENTION = timedelta(hours=24)
"""How long DynamoDB keeps the records of a stream. It cannot be changed."""
WHOLE_IMAGES = "NEW_AND_OLD_IMAGES"
_MOST_RECORDS = 1_000
_MISSING = "ResourceNotFoundException"
_EXPIRED, _TRIMMED = "ExpiredIteratorException", "TrimmedDataAccessException"
_REFUSED_PLACES = frozenset({_TRIMMED, "ValidationException"})
_SAME_TIME = timedelta(minutes=1)
_AT_THE_END = timedelta(0)


class DynamodbClient:
    """Implements `ShardClient` for the streams of tables. `folder`: that of pipeline.yml, where paths begin.

    `describe` returns a table without a stream, too: with a refusal and without shards.
    """

    def __init__(self, settings: DynamodbSource, folder: Path, calls: StreamCalls | None = None) -> None:
        self._tables, self._streams = (
            connected(service, settings, folder) for service in ("dynamodb", "dynamodbstreams")
        )
        self._calls = calls or StreamCalls()

    def describe(self, name: str) -> ShardStream | None:
        doing = f"describing the table {name}"
        try:
            table = self._calls(doing, lambda: self._tables.describe_table(TableName=name), "Table")["Table"]
            address = str(table.get("LatestStreamArn") or "")
            shards, since = self._shards(doing, address) if address else ({}, None)
        except ClientError as error:
            if code_of(error) == _MISSING:
                return None
            raise refusal(doing, error) from error
        return ShardStream(
            name=name,
            address=address,
            identity=address,
            created=table["CreationDateTime"],
            retention=RETENTION,
            shards=shards,
            key=tuple(part["AttributeName"] for part in table["KeySchema"]),
            refusal=_why_refused(name, table.get("StreamSpecification") or {}),
            lacks=""
            if since is None or since - table["CreationDateTime"] < _SAME_TIME
            else f"the stream of {name} began after the table, so it lacks the table's first rows",
        )

    def iterator(self, stream: ShardStream, shard: str, sequence: str) -> str | None:
        doing = f"opening {shard} of {stream.name}"
        at: dict[str, str] = {"ShardIteratorType": "TRIM_HORIZON"}
        if sequence:
            at = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": sequence}
        return opened_iterator(
            self._calls,
            doing,
            lambda: self._streams.get_shard_iterator(StreamArn=stream.address, ShardId=shard, **at),
            sequence=sequence,
            refused_places=_REFUSED_PLACES,
        )

    def fetch(self, stream: ShardStream, iterator: str) -> Fetched | None:
        doing = f"reading the stream of {stream.name}"
        try:
            answer = self._calls(
                doing, lambda: self._streams.get_records(ShardIterator=iterator, Limit=_MOST_RECORDS), "Records"
            )
        except ClientError as error:
            if code_of(error) in (_EXPIRED, _TRIMMED):
                return None
            raise refusal(doing, error) from error
        records = tuple(_record(record) for record in answer["Records"])
        following = answer.get("NextShardIterator")
        # The answer does not say how far it is behind, and an empty one may have records after it.
        return Fetched(records=records, following=following, behind=_AT_THE_END if following is None else None)

    def close(self) -> None:
        self._tables.close()
        self._streams.close()

    def _shards(self, doing: str, address: str) -> tuple[dict[str, Shard], datetime | None]:
        """Returns the shards, and when the stream was created."""
        found: dict[str, Shard] = {}
        after: dict[str, str] = {}
        while True:
            answer = self._described(doing, address, after)
            for shard in answer["Shards"]:
                parent = shard.get("ParentShardId")
                found[shard["ShardId"]] = Shard(
                    name=shard["ShardId"],
                    parents=(parent,) if parent else (),
                    last=shard["SequenceNumberRange"].get("EndingSequenceNumber", ""),
                )
            if not answer.get("LastEvaluatedShardId"):
                return found, answer.get("CreationRequestDateTime")
            after = {"ExclusiveStartShardId": answer["LastEvaluatedShardId"]}

    def _described(self, doing: str, address: str, after: Mapping[str, str]) -> Mapping[str, Any]:
        key = "StreamDescription"
        answer = self._calls(doing, lambda: self._streams.describe_stream(StreamArn=address, **after), key)
        found: Mapping[str, Any] = answer[key]
        return found


def _record(record: Mapping[str, Any]) -> ShardRecord:
    """Returns a record with its line: the record as AWS sends it, with values of bytes in base64."""
    change = record["dynamodb"]
    return ShardRecord(
        sequence=change["SequenceNumber"],
        arrived=change["ApproximateCreationDateTime"],
        line=msgspec.json.encode({"eventName": record.get("eventName"), "dynamodb": change}),
    )


def _why_refused(name: str, stream: Mapping[str, Any]) -> str:
    if not stream.get("StreamEnabled"):
        return f"the table {name} has no stream that is enabled"
    if stream.get("StreamViewType") != WHOLE_IMAGES:
        return f"the stream of {name} has {stream.get('StreamViewType')}, and only {WHOLE_IMAGES} shows whole rows"
    return ""
