"""Streams of shards for tests, in memory at the project's own protocol or on moto's server; pipelines over them."""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cdc_pipeline.errors import SourceError, StreamDenied
from cdc_pipeline.operations.source_setup.set_up import SetUp
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.aws import KinesisSource
from cdc_pipeline.sources.kinesis.shards import Fetched, Shard, ShardRecord, ShardStream
from cdc_pipeline.sources.kinesis.source import kinesis_source
from cdc_pipeline.steps import OnStep, no_step
from cdc_pipeline.wiring import LakeFactory, Pipeline
from tests.support.aws import aws_client
from tests.support.event_files import NOBODY_LISTENS, Row, merged_rows
from tests.support.pipelines import opened_pipeline
from tests.support.s3 import REGION

FIRST_SEQUENCE = 49590338271490256608559692538361571095921575989136588898
"""Of 56 digits, as AWS writes them."""
RETENTION = timedelta(hours=24)
_PAGE = 3
OTHER_KINESIS, OTHER_DYNAMODB = "CDC_KINESIS", "CDC_DYNAMODB"
"""The environment variables with endpoints of other servers than moto's, to run the same tests over them."""


@dataclass(slots=True, kw_only=True)
class MemoryShard:
    parents: tuple[str, ...] = ()
    records: list[ShardRecord] = field(default_factory=list)
    is_closed: bool = False


@dataclass(slots=True, kw_only=True)
class MemoryStreams:
    """Implements `ShardClient`. Records expire after RETENTION of `now`; three at most are returned at once.

    An iterator is "stream/shard/number of the next record/generation"; those of an older generation have expired. As on
    AWS, an iterator at a record that expired begins at the oldest one that is kept. `refusals`: by stream. `denied`:
    the streams that nobody may describe. `unreadable`: why a stream's records cannot be read. `described`: the streams
    that were asked for, in order.
    """

    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    streams: dict[str, dict[str, MemoryShard]] = field(default_factory=dict)
    generation: int = 0
    identity: str = "first"
    refuses_expired: bool = False
    refusals: dict[str, str] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    unreadable: dict[str, SourceError] = field(default_factory=dict)
    described: list[str] = field(default_factory=list)
    _sequence: int = FIRST_SEQUENCE

    def put(self, stream: str, content: Any, shard: str = "shard-0") -> None:
        """Appends a record. What is no text is written as JSON."""
        line = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._sequence += 1 << 70
        records = self.streams.setdefault(stream, {}).setdefault(shard, MemoryShard()).records
        records.append(ShardRecord(sequence=str(self._sequence), arrived=self.now, line=line))

    def replace_shards(self, stream: str, parents: tuple[str, ...], *children: str) -> None:
        """Splits or merges shards."""
        for parent in parents:
            self.streams[stream][parent].is_closed = True
        for child in children:
            self.streams[stream][child] = MemoryShard(parents=parents)

    def describe(self, name: str) -> ShardStream | None:
        self.described.append(name)
        if name in self.denied:
            raise StreamDenied(f"describing the stream {name} failed", remedy="grant their owner the missing rights")
        found = self.streams.get(name)
        if found is None:
            return None
        return ShardStream(
            name=name,
            address=name,
            identity=self.identity,
            created=self.created,
            retention=RETENTION,
            shards={shard: Shard(name=shard, parents=each.parents) for shard, each in found.items()},
            refusal=self.refusals.get(name, ""),
        )

    def iterator(self, stream: ShardStream, shard: str, sequence: str) -> str | None:
        if stream.name in self.unreadable:
            raise self.unreadable[stream.name]
        records = self.streams[stream.name][shard].records
        number = next((at for at, each in enumerate(records) if int(each.sequence) >= int(sequence or 0)), len(records))
        if sequence and self.refuses_expired and number < self._first_kept(records):
            return None
        return f"{stream.name}/{shard}/{number}/{self.generation}"

    def fetch(self, stream: ShardStream, iterator: str) -> Fetched | None:
        _, shard, number, generation = iterator.split("/")
        if int(generation) != self.generation:
            return None
        found = self.streams[stream.name][shard]
        first = max(int(number), self._first_kept(found.records))
        end = min(first + _PAGE, len(found.records))
        at_end = end == len(found.records)
        return Fetched(
            records=tuple(found.records[first:end]),
            following=None if at_end and found.is_closed else f"{stream.name}/{shard}/{end}/{self.generation}",
            behind=timedelta(0) if at_end else max(self.now - found.records[end].arrived, timedelta(milliseconds=1)),
        )

    def close(self) -> None:
        """Does nothing."""

    def _first_kept(self, records: list[ShardRecord]) -> int:
        return sum(self.now - each.arrived >= RETENTION for each in records)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFeed:
    """A pipeline over `streams`, one stream per table. Tables are given as `schema.table`."""

    folder: Path
    store_url: str
    tables: tuple[Mapping[str, Any], ...]
    streams: MemoryStreams
    source: Mapping[str, Any] = field(default_factory=dict)
    look_every: timedelta = timedelta(seconds=30)

    @contextmanager
    def opened(self, on_step: OnStep = no_step, make_lake: LakeFactory | None = None) -> Iterator[Pipeline]:
        source = {"kind": "kinesis", "stream": "{schema}.{table}", "reads_per_second": 1_000, **self.source}
        document = {
            "folder": self.folder,
            "name": "shop",
            "lake": "lake",
            "slice_length": "1h",
            "source": source,
            "tables": [{**table, "name": f"shop.{table['name']}"} for table in self.tables],
        }
        settings = Settings.model_validate(document)
        assert isinstance(settings.source, KinesisSource)
        memory = kinesis_source(settings.source, stream="shop", tables=settings.tables, connect=lambda: self.streams)
        with opened_pipeline(
            settings, store_url=self.store_url, spark_url=NOBODY_LISTENS, on_step=on_step, make_lake=make_lake
        ) as pipeline:
            yield replace(pipeline, source=replace(memory, clock=lambda: self.streams.now, look_every=self.look_every))

    def write(self, table: str, id_: int, note: str | None, *, shard: str = "shard-0", operation: str = "c") -> None:
        """One event of PostgreSQL's Debezium; its position in the log is the same for all events of an id."""
        self.streams.put(table, debezium_event(table, id_, note, operation=operation), shard)

    def set_up(self) -> SetUp:
        with self.opened() as pipeline:
            return pipeline.source_setup().set_up()

    def consume(self) -> None:
        """Everything that is there now, after the set-up that people run."""
        self.set_up()
        self.go_on()

    def go_on(self, on_step: OnStep = no_step) -> None:
        """Everything that is there now, by a consumer that was not there before."""
        with self.opened(on_step) as pipeline:
            pipeline.consumer_runs().consume_until_idle()

    def rows(self, table: str) -> list[Row]:
        with self.opened() as pipeline:
            return merged_rows(pipeline, TableName.parse(f"shop.{table}"))

    def notes(self, table: str) -> dict[int, str]:
        return {row["id"]: row["note"] for row in self.rows(table)}

    def shown(self, query: str) -> list[Row]:
        with self.opened() as pipeline:
            return pipeline.store.inspection.run(query)


def debezium_event(table: str, id_: int, note: str | None, *, operation: str = "c") -> dict[str, Any]:
    """An event without a position in the source's log, so that the stream's order alone decides."""
    schema, name = table.split(".")
    row = {"id": id_, "note": note}
    images = {"before": row, "after": None} if operation == "d" else {"before": None, "after": row}
    return {"op": operation, **images, "source": {"db": "shop", "schema": schema, "table": name}}


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisStreams:
    """One stream of its own on a server that other tests use, too."""

    endpoint: str
    name: str = field(default_factory=lambda: f"shop-{secrets.token_hex(4)}")

    @property
    def server(self) -> dict[str, str]:
        """Settings of a source that reads it."""
        return {"endpoint": self.endpoint, "region": REGION}

    def create(self, shards: int = 1) -> None:
        aws_client("kinesis", self.endpoint).create_stream(StreamName=self.name, ShardCount=shards)
        self.wait()

    def wait(self) -> None:
        """Until the server has finished what was asked of it."""
        aws_client("kinesis", self.endpoint).get_waiter("stream_exists").wait(
            StreamName=self.name, WaiterConfig={"Delay": 1}
        )

    def put(self, *events: Any, key: str = "default") -> None:
        client = aws_client("kinesis", self.endpoint)
        for event in events:
            data = event if isinstance(event, bytes) else json.dumps(event).encode()
            client.put_record(StreamName=self.name, Data=data, PartitionKey=key)

    def put_all(self, events: Mapping[str, Any]) -> None:
        """One event by partition key."""
        records = [{"Data": json.dumps(event).encode(), "PartitionKey": key} for key, event in events.items()]
        aws_client("kinesis", self.endpoint).put_records(StreamName=self.name, Records=records)

    def split(self) -> None:
        """Each open shard into two halves."""
        for shard in self._open_shards():
            first, last = (int(shard["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey"))
            middle = str((first + last + 1) // 2)
            aws_client("kinesis", self.endpoint).split_shard(
                StreamName=self.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=middle
            )
            self.wait()

    def merge(self) -> None:
        """Pairs of neighbours into one each."""
        shards = [shard["ShardId"] for shard in self._open_shards()]
        for left, right in zip(shards[::2], shards[1::2], strict=True):
            aws_client("kinesis", self.endpoint).merge_shards(
                StreamName=self.name, ShardToMerge=left, AdjacentShardToMerge=right
            )
            self.wait()

    def _open_shards(self) -> list[Any]:
        """In the order of their hash keys."""
        shards = aws_client("kinesis", self.endpoint).list_shards(StreamName=self.name)["Shards"]
        still_open = [each for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]]
        return sorted(still_open, key=lambda each: int(each["HashKeyRange"]["StartingHashKey"]))

    def names(self) -> list[str]:
        return [
            name for name in aws_client("kinesis", self.endpoint).list_streams()["StreamNames"] if name == self.name
        ]
