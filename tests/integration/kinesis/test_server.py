"""Streams on a server that speaks Kinesis's protocol."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest
from botocore.exceptions import ClientError

from cdc_pipeline.errors import SettingsError, SourceAway, SourceError, StreamDenied, StreamMoved
from cdc_pipeline.settings.aws import DynamodbSource, KinesisSource
from cdc_pipeline.sources.dynamodb.client import DynamodbClient
from cdc_pipeline.sources.kinesis.calls import StreamCalls, refusal
from cdc_pipeline.sources.kinesis.client import KinesisClient, identity_of
from cdc_pipeline.sources.kinesis.shards import Fetched, ShardClient
from tests.support.aws import aws_client
from tests.support.served import served
from tests.support.shards import KinesisStreams, MemoryStreams, debezium_event

ORDERS = "public.orders"


@pytest.fixture
def streams(kinesis_endpoint: str) -> KinesisStreams:
    streams = KinesisStreams(endpoint=kinesis_endpoint)
    streams.create(shards=2)
    return streams


def settings(**changes: object) -> KinesisSource:
    return KinesisSource.model_validate({"kind": "kinesis", "stream": "shop", "region": "eu-west-1"} | changes)


def test_shards_show_whom_they_came_from_and_records_their_order_and_time(
    streams: KinesisStreams, tmp_path: Path
) -> None:
    client = KinesisClient(settings(**streams.server), tmp_path)
    streams.put(*(debezium_event(ORDERS, number, "new") for number in range(3)), b"", b"\xff", key='{"id": 1}')
    server = aws_client("kinesis", streams.endpoint)
    first = client.describe(streams.name)
    assert first is not None
    assert (len(first.shards), first.retention) == (2, timedelta(hours=24))
    found = {shard: client.iterator(first, shard, "") for shard in first.shards}
    fetched = {shard: client.fetch(first, iterator or "") for shard, iterator in found.items()}
    (records,) = [each.records for each in fetched.values() if each is not None and each.records]
    assert [int(record.sequence) for record in records] == sorted({int(record.sequence) for record in records})
    assert records[0].line.startswith(b'{"key":"{\\"id\\": 1}","value":"{')
    assert [record.line for record in records[3:]] == [b"", b"\xff"]
    assert {each.behind for each in fetched.values() if each is not None} == {timedelta(0)}

    left, right = sorted(first.shards)
    server.merge_shards(StreamName=streams.name, ShardToMerge=left, AdjacentShardToMerge=right)
    streams.wait()
    merged = client.describe(streams.name)
    assert merged is not None
    assert merged.identity == first.identity
    (child,) = merged.shards.keys() - first.shards.keys()
    assert set(merged.shards[child].parents) == {left, right}
    assert merged.shards[child].last == ""
    assert merged.shards[left].last


def test_a_record_is_found_again_by_its_sequence_number(streams: KinesisStreams, tmp_path: Path) -> None:
    client = KinesisClient(settings(**streams.server), tmp_path)
    streams.put(*(debezium_event(ORDERS, number, "new") for number in range(3)))
    stream = client.describe(streams.name)
    assert stream is not None
    for shard in stream.shards:
        whole = client.fetch(stream, client.iterator(stream, shard, "") or "")
        assert whole is not None
        for number, record in enumerate(whole.records):
            again = client.fetch(stream, client.iterator(stream, shard, record.sequence) or "")
            assert again is not None
            assert again.records == whole.records[number:]


def test_a_full_answer_is_not_the_end_of_the_shard(streams: KinesisStreams, tmp_path: Path) -> None:
    """The server says that it is 0 ms behind if the records left out arrived with the last one that it returned."""
    client, server = KinesisClient(settings(**streams.server), tmp_path), aws_client("kinesis", streams.endpoint)
    server.put_record(StreamName=streams.name, Data=b"the first one", PartitionKey="one")
    for _ in range(20):  # the server takes the last two of the same request in one millisecond
        server.put_records(StreamName=streams.name, Records=[{"Data": b"{}", "PartitionKey": "one"}] * 500)
    stream = client.describe(streams.name)
    assert stream is not None
    found = [client.fetch(stream, client.iterator(stream, shard, "") or "") for shard in stream.shards]
    (full,) = [each for each in found if each is not None and each.records]
    assert len(full.records) == 10_000
    assert full.behind is not None
    assert full.behind > timedelta(0)
    rest = client.fetch(stream, full.following or "")
    assert rest is not None
    assert (len(rest.records), rest.behind) == (1, timedelta(0))


def test_a_stream_has_the_same_identity_in_every_time_zone() -> None:
    created = datetime(2026, 7, 1, 10, 0, 5, tzinfo=UTC)
    zones = [timezone(timedelta(hours=hours)) for hours in (0, 2, -7)]
    assert {identity_of("arn", created.astimezone(zone)) for zone in zones} == {"arn 2026-07-01T10:00:05"}


def test_a_stream_that_does_not_exist_is_none(streams: KinesisStreams, tmp_path: Path) -> None:
    assert KinesisClient(settings(**streams.server), tmp_path).describe("nowhere") is None


class Deleting(BaseHTTPRequestHandler):
    """Answers as Kinesis does for a stream that is being deleted; GetRecords says nothing that is optional."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        summary = {"StreamARN": "arn", "StreamCreationTimestamp": 1, "RetentionPeriodHours": 24}
        status, answer = {
            "DescribeStreamSummary": (200, {"StreamDescriptionSummary": {**summary, "StreamStatus": "DELETING"}}),
            "ListShards": (400, {"__type": "ResourceInUseException", "message": "in state DELETING"}),
            "GetShardIterator": (400, {"__type": "ResourceNotFoundException", "message": "no such stream"}),
            "GetRecords": (200, {"Records": [], "NextShardIterator": "next"}),
        }[self.headers["X-Amz-Target"].rpartition(".")[2]]
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Denying(BaseHTTPRequestHandler):
    """Answers every call as AWS does if no policy allows it."""

    def do_POST(self) -> None:
        content = json.dumps({"__type": "AccessDeniedException", "Message": "no policy allows it"}).encode()
        self.send_response(400)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def test_a_stream_that_no_policy_allows_is_denied_in_the_words_of_aws(tmp_path: Path) -> None:
    with served(Denying) as endpoint:
        tables = DynamodbSource.model_validate({"kind": "dynamodb", "endpoint": endpoint, "region": "eu-west-1"})
        for client in KinesisClient(settings(endpoint=endpoint), tmp_path), DynamodbClient(tables, tmp_path):
            with pytest.raises(StreamDenied, match=r"shop failed: AccessDeniedException.*grant their owner"):
                client.describe("shop")
            client.close()


def test_a_stream_that_is_being_deleted_is_gone_and_ends_no_reader_of_others(tmp_path: Path) -> None:
    with served(Deleting) as endpoint, closing(KinesisClient(settings(endpoint=endpoint), tmp_path)) as client:
        assert client.describe("shop") is None
        stream = MemoryStreams(streams={"shop": {}}).describe("shop")
        assert stream is not None
        with pytest.raises(StreamMoved, match="opening shard-0 of shop failed: ResourceNotFoundException"):
            client.iterator(stream, "shard-0", "")
        assert client.fetch(stream, "iterator") == Fetched(records=(), following="next", behind=None)


class Page(BaseHTTPRequestHandler):
    """Answers every call with status 200 and the first one of `contents`, of which it leaves the last one."""

    contents: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        content = self.contents.pop(0) if len(self.contents) > 1 else self.contents[0]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.mark.parametrize("content", [b"<html>log in</html>", b"", b"{}", b'{"Records": ['])
def test_an_answer_that_is_not_of_aws_is_an_outage(tmp_path: Path, content: bytes) -> None:
    class Proxy(Page):
        contents: ClassVar[list[bytes]] = [content]

    found = MemoryStreams(streams={"shop": {}}).describe("shop")
    assert found is not None
    stream, shard = replace(found, address="arn:aws:dynamodb:eu-west-1:1:table/shop/stream/1"), f"shardId-{1:020}"
    with served(Proxy) as endpoint:
        calls, own = StreamCalls(timedelta(0)), settings(endpoint=endpoint)
        tables = DynamodbSource.model_validate({"kind": "dynamodb", "endpoint": endpoint, "region": "eu-west-1"})
        clients: list[ShardClient] = [KinesisClient(own, tmp_path, calls), DynamodbClient(tables, tmp_path, calls)]
        for client in clients:
            for call in (
                partial(client.describe, "shop"),
                partial(client.iterator, stream, shard, ""),
                partial(client.fetch, stream, "iterator"),
            ):
                with pytest.raises(SourceAway, match="the answer is not AWS's, but perhaps a proxy's: it has no"):
                    call()
            client.close()


def test_a_call_is_repeated_until_the_answer_is_of_aws(tmp_path: Path) -> None:
    class Proxy(Page):
        contents: ClassVar[list[bytes]] = [b"<html>log in</html>", b'{"Records": []}']

    stream = MemoryStreams(streams={"shop": {}}).describe("shop")
    assert stream is not None
    with served(Proxy) as endpoint, closing(KinesisClient(settings(endpoint=endpoint), tmp_path)) as client:
        assert client.fetch(stream, "iterator") == Fetched(records=(), following=None, behind=None)


def test_credentials_that_are_refreshed_and_still_expired_are_an_outage(tmp_path: Path) -> None:
    """The next refresh may bring valid ones."""
    answer = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "hidden", "SessionToken": "c"}
    (tmp_path / "answer").write_text(json.dumps({**answer, "Expiration": "2020-01-01T00:00:00Z"}))
    (tmp_path / "keys").write_text(f"[cdc]\ncredential_process = cat {tmp_path / 'answer'}\n")
    own = settings(profile="cdc", credentials_file="keys")
    with closing(KinesisClient(own, tmp_path, StreamCalls(timedelta(0)))) as client:
        with pytest.raises(SourceAway, match=r"still expired.*credentials that are valid now") as caught:
            client.describe("shop")
        assert "hidden" not in str(caught.value)


def test_a_server_that_does_not_answer_is_an_outage(tmp_path: Path) -> None:
    client = KinesisClient(settings(endpoint="http://127.0.0.1:1"), tmp_path, StreamCalls(timedelta(0)))
    with pytest.raises(SourceAway, match="describing the stream shop failed"):
        client.describe("shop")


def test_credentials_of_a_profile_are_in_the_file_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("[cdc]\naws_access_key_id = a\naws_secret_access_key = hidden\n")
    KinesisClient(settings(profile="cdc", credentials_file="keys"), tmp_path)
    with pytest.raises(SettingsError, match=r"nobody.*correct region, endpoint, profile or credentials_file") as caught:
        KinesisClient(settings(profile="nobody", credentials_file="keys"), tmp_path)
    assert "hidden" not in str(caught.value)


def error(code: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": "so"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "GetRecords")


def failing(errors: list[Exception]) -> Callable[[], dict[str, str]]:
    def call() -> dict[str, str]:
        if errors:
            raise errors.pop()
        return {"Records": "done"}

    return call


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "LimitExceededException"])
def test_a_throttled_call_is_repeated_until_it_is_taken(code: str) -> None:
    answer = StreamCalls()("reading", failing([error(code), error("InternalFailure", 500)]), "Records")
    assert answer["Records"] == "done"
    with pytest.raises(SourceAway, match=code):
        StreamCalls(timedelta(0))("reading", failing([error(code)]), "Records")


def test_a_refused_call_is_not_repeated_and_names_the_right() -> None:
    with pytest.raises(ClientError) as caught:
        StreamCalls()("reading", failing([error("AccessDeniedException")]), "Records")
    said = refusal("reading", caught.value)
    assert isinstance(said, SourceError)
    assert "AccessDeniedException so" in said.found
    assert "grant their owner" in said.remedy


def test_another_error_of_the_client_is_no_outage() -> None:
    """A mistake in a program comes as it is, at once."""
    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        StreamCalls()("reading", failing([RuntimeError("cannot schedule new futures after shutdown")]), "Records")
