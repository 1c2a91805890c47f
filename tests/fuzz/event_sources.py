"""The sources of changes that come as events: how each words the log, and how its lines reach the pipeline."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import Any, Protocol

from confluent_kafka import Producer

from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.aws import DynamodbSource, KinesisSource
from cdc_pipeline.sources.dynamodb.source import dynamodb_source
from cdc_pipeline.sources.kinesis.source import ShardSource, kinesis_source
from cdc_pipeline.wiring import Pipeline
from tests.crash.world import as_opened
from tests.fuzz.arriving import Arriving, EventLines, LogLine, RowFiles, ShardRecords
from tests.fuzz.debezium_wording import DebeziumWording
from tests.fuzz.event_changes import WEIGHTS
from tests.fuzz.event_log import KEYLESS, Change
from tests.fuzz.row_wording import (
    OPERATION,
    ORDER,
    DatastreamWording,
    DmsWording,
    DynamodbWording,
    RowWording,
    time_at,
)
from tests.fuzz.topic_records import TopicRecords
from tests.support.kafka import Topics
from tests.support.shards import MemoryStreams

LATE_BY = 6
"""How many transactions, which are a second apart, a line may be late where `late_by` is set."""


class Wording(Protocol):
    """What a program makes of a change."""

    @property
    def partitions(self) -> int: ...

    def lines(self, change: Change) -> list[LogLine]: ...


def from_the_start(settled: int) -> str:
    """Of a stream whose offsets do not say what an export has."""
    del settled
    return "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """`source`: of pipeline.yml. `declares`: whether pipeline.yml lists the columns. `with_source`: as in `World`.

    `as_of`: a position of the log -> what `cdc snapshot --as-of` is told.
    """

    wording: Wording
    arriving: Arriving
    source: Mapping[str, Any]
    verbs: Sequence[str]
    declares: bool = True
    with_source: Callable[[Pipeline], Pipeline] = as_opened
    as_of: Callable[[int], str] = from_the_start


class Build(Protocol):
    """Chooses how lines are worded and ordered. `names`: the tables."""

    def __call__(self, chance: Random, folder: Path, names: Sequence[str], *, ordered: bool) -> EventSource: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """`has_keyless`: whether tables may be without a key, if the lines are ordered."""

    build: Build
    has_keyless: bool = False


def debezium_source(chance: Random, folder: Path, names: Sequence[str], *, ordered: bool) -> EventSource:
    """Half a key change that comes apart from the other half, and shows neither, may leave out no value."""
    del names
    records = chance.random() < 0.7
    wording = DebeziumWording(
        schemas=chance.random() < 0.5,
        records=records,
        whole=chance.random() < 0.3,
        blocks=chance.random() < 0.3,
        partitions=chance.choice((1, 2, 3)) if records else 1,
    )
    for partition in range(wording.partitions):
        (folder / "events" / str(partition)).mkdir(parents=True)
    late_by = chance.choice((None, LATE_BY))
    source: dict[str, Any] = {"kind": "debezium_files", "path": "events/", "ordered": ordered}
    return EventSource(
        wording=wording,
        arriving=Arriving(paper=EventLines(folder=folder / "events"), ordered=ordered, late_by=late_by),
        source=source if ordered else {**source, "sequence_by": ["source.lsn"], **limited(late_by)},
        verbs=[verb for verb in WEIGHTS if verb != "move" or ordered or records or wording.whole],
        declares=not wording.schemas,
        as_of=from_the_start if ordered or wording.schemas else str,
    )


def row_source(chance: Random, folder: Path, names: Sequence[str], *, ordered: bool) -> EventSource:
    format_ = chance.choice(("dms", "upserts"))
    suffix = chance.choice((".csv", ".parquet", *([".jsonl"] if format_ == "upserts" else [])))
    wording = RowWording(names=names, whole=chance.random() < 0.5, ordered=ordered)
    paper = RowFiles(folder=folder / "files", names=names, suffix=suffix, is_named_by_order=ordered)
    source = change_files(format_) | ({} if ordered else {"order_by": [ORDER]})
    return EventSource(
        wording=wording,
        arriving=Arriving(paper=paper, ordered=ordered),
        source=source | ({"operation_column": OPERATION} if format_ == "upserts" else {}),
        verbs=[verb for verb in WEIGHTS if verb != "truncate" or format_ == "upserts"],
        as_of=from_the_start if ordered else str,
    )


def datastream_source(chance: Random, folder: Path, names: Sequence[str], *, ordered: bool) -> EventSource:
    """Its files come in any order, as far as `late_by` allows it."""
    del ordered
    late_by = chance.choice((None, LATE_BY))
    paper = RowFiles(folder=folder / "files", names=names, suffix=".jsonl", is_named_by_order=late_by is not None)
    return EventSource(
        wording=DatastreamWording(names=names),
        arriving=Arriving(paper=paper, ordered=False, late_by=late_by),
        source=change_files("datastream") | limited(late_by),
        verbs=[verb for verb in WEIGHTS if verb != "truncate"],
        as_of=time_at,
    )


def limited(late_by: int | None) -> dict[str, Any]:
    return {} if late_by is None else {"late_by": f"{late_by}s"}


def change_files(format_: str) -> dict[str, Any]:
    return {"kind": "change_files", "path": "files", "format": format_, "folder": "{table}", "list_every": "1s"}


def kinesis_source_of(chance: Random, folder: Path, names: Sequence[str], *, ordered: bool) -> EventSource:
    """Of key changes the records do not show which two belong together, so that no value may be left out of them."""
    del folder, names, ordered
    wording = DebeziumWording(
        schemas=chance.random() < 0.5,
        records=False,
        whole=chance.random() < 0.5,
        blocks=chance.random() < 0.3,
        partitions=chance.choice((2, 3)),
    )
    return replace(
        one_stream(wording, merges=chance.random() < 0.7),
        verbs=[verb for verb in WEIGHTS if wording.whole or verb != "move"],
        declares=not wording.schemas,
    )


def dms_stream(chance: Random, folder: Path, names: Sequence[str], *, ordered: bool) -> EventSource:
    del folder, names, ordered
    by_key = chance.random() < 0.6
    wording = DmsWording(partitions=chance.choice((2, 3)), by_key=by_key, whole=not by_key and chance.random() < 0.6)
    found = one_stream(wording, merges=chance.random() < 0.7)
    return replace(found, source={**found.source, "format": "dms"})


def one_stream(wording: Wording, *, merges: bool) -> EventSource:
    """A stream of Kinesis with a shard for each partition."""

    def open_source(settings: Settings, streams: MemoryStreams) -> ShardSource:
        assert isinstance(settings.source, KinesisSource)
        return kinesis_source(settings.source, stream=settings.name, tables=settings.tables, connect=lambda: streams)

    shards = {partition: ("events", f"shard-{partition}") for partition in range(wording.partitions)}
    source = {"kind": "kinesis", "stream": "events", "reads_per_second": 1_000}
    return of_shards(wording, shards, source, open_source, merges=merges)


def dynamodb_source_of(chance: Random, folder: Path, names: Sequence[str], *, ordered: bool) -> EventSource:
    del folder, ordered
    wording = DynamodbWording(names=names, shards=chance.choice((1, 2)))

    def open_source(settings: Settings, streams: MemoryStreams) -> ShardSource:
        assert isinstance(settings.source, DynamodbSource)
        return dynamodb_source(settings.source, stream=settings.name, tables=settings.tables, connect=lambda: streams)

    shards = {
        partition: (names[partition // wording.shards], f"shard-{partition}") for partition in range(wording.partitions)
    }
    found = of_shards(wording, shards, {"kind": "dynamodb", "reads_per_second": 1_000}, open_source, merges=False)
    return replace(found, verbs=[verb for verb in WEIGHTS if verb != "truncate"])


def of_shards(
    wording: Wording,
    shards: dict[int, tuple[str, str]],
    source: Mapping[str, Any],
    open_source: Callable[[Settings, MemoryStreams], ShardSource],
    *,
    merges: bool,
) -> EventSource:
    """Streams in memory. `shards`: the stream and the shard of each partition. `open_source`: reads the streams."""
    streams = MemoryStreams()

    def with_source(pipeline: Pipeline) -> Pipeline:
        opened = open_source(pipeline.settings, streams)
        return replace(pipeline, source=replace(opened, clock=lambda: streams.now))

    return EventSource(
        wording=wording,
        arriving=Arriving(
            paper=ShardRecords(streams=streams, shards=shards, merges=merges), ordered=True, holds=not merges
        ),
        source=source,
        verbs=list(WEIGHTS),
        with_source=with_source,
    )


def kafka_kind(servers: str) -> SourceKind:
    """Topics of a broker."""

    def build(chance: Random, folder: Path, names: Sequence[str], *, ordered: bool) -> EventSource:
        del folder, ordered
        grows = chance.random() < 0.5
        most = chance.choice((1, 2, 3))
        wording = DebeziumWording(
            schemas=chance.random() < 0.5,
            records=True,
            whole=chance.random() < 0.3,
            blocks=chance.random() < 0.3,
            partitions=most,
            names_table=True,
        )
        paper = TopicRecords(
            topics=Topics(servers=servers),
            producer=Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 2}),
            prefix=f"p{token_hex(4)}",
            counts={name: 1 if grows or name == KEYLESS else most for name in names},
            grows=grows,
            most=most,
        )
        return EventSource(
            wording=wording,
            arriving=Arriving(paper=paper, ordered=True, holds=not grows),
            source={"kind": "kafka", "servers": servers, "topic": f"{paper.prefix}.{{schema}}.{{table}}"},
            verbs=list(WEIGHTS),
            declares=not wording.schemas,
        )

    return SourceKind(build=build, has_keyless=True)


SOURCES: dict[str, SourceKind] = {
    "debezium": SourceKind(build=debezium_source, has_keyless=True),
    "rows": SourceKind(build=row_source, has_keyless=True),
    "datastream": SourceKind(build=datastream_source),
    "kinesis": SourceKind(build=kinesis_source_of, has_keyless=True),
    "dms_stream": SourceKind(build=dms_stream),
    "dynamodb": SourceKind(build=dynamodb_source_of),
}
