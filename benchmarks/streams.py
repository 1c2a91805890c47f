"""streams: events per second from a server's stream to registered slices, beside its client reading into nothing.

Peak memory is that of a consumer in a process of its own, with few events and with many.
"""

import json
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from typing import Any, Protocol
from urllib.parse import urlsplit

from confluent_kafka import Consumer, Producer, TopicPartition
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.constants import BINLOG
from pymysqlreplication.row_event import UpdateRowsEvent, WriteRowsEvent

from benchmarks.arms import Arm, Contest
from benchmarks.bench import OURS, Bench, plus
from benchmarks.change_files import COLUMNS, changes, debezium_event
from benchmarks.consumer import register
from benchmarks.memory import LostRowsError
from benchmarks.results import RowFigures
from benchmarks.usage import peak_bytes
from cdc_pipeline.settings import Settings
from tests.support.aws import aws_client
from tests.support.kafka import Topics, started_kafka
from tests.support.mariadb import PASSWORD, USER, connected, fresh_mysql_database, run_mysql, started_mariadb
from tests.support.pipelines import mysql_settings, opened_pipeline, set_up_and_consume
from tests.support.postgres import fresh_store
from tests.support.s3 import ACCOUNT, started_moto
from tests.support.shards import KinesisStreams

CLIENT = "client into nothing"
TRANSACTION = 1_000
TIMEOUT_SECONDS = 60
_MOST_PUT = 500
_CREATE = """
CREATE TABLE orders (
    order_id bigint PRIMARY KEY, customer_id bigint, status varchar(20), amount decimal(12,2), paid boolean, day date,
    created_at datetime(6), updated_at datetime(6), ratio double, note text)
"""


class Stream(Protocol):
    """One table's stream. The client reads behind what it read before, or behind what was there at the beginning."""

    settings: Settings

    def write(self, number: int, events: int) -> None:
        """The changes of one round."""

    def read(self, events: int) -> int:
        """By the client alone. Returns how many events it saw; it ends when it has seen `events`."""


def measure(bench: Bench) -> RowFigures:
    sizes, contests = bench.sizes("streams"), []
    for name, opened in STREAMS.items():
        with contest(bench, name, opened, sizes["events"]) as found:
            contests.append(bench.clockwork.measure(found))
    values = {f"{found.name}: events/s over its client": found.speed(OURS, CLIENT) for found in contests}
    memory = {
        f"{name}: peak memory, many events over few": peak_ratio(bench, opened, sizes)
        for name, opened in STREAMS.items()
    }
    return RowFigures(contests=tuple(contests), values=plus(values) | memory, sizes=sizes)


def peak_ratio(bench: Bench, started: "Started", sizes: Mapping[str, int]) -> float:
    """Returns the peak of a consumer that reads `memory_times` as many events, over that of one that reads the first.

    Even the few are several slices, so that both processes had a full one.
    """
    peaks = []
    with ExitStack() as opened:
        store_url = opened.enter_context(fresh_store(bench.postgres))
        stream = started(bench, opened)
        source = stream.settings.source.model_copy(update={"slice_rows": sizes["memory_slice_rows"]})
        settings = stream.settings.model_copy(update={"source": source})
        with opened_pipeline(settings, store_url=store_url, spark_url="") as pipeline:
            set_up_and_consume(pipeline)
        for number, times in enumerate((1, sizes["memory_times"])):
            events = sizes["memory_events"] * times
            stream.write(number * sizes["memory_times"], events)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                rows, peak = process.submit(consumed, settings, store_url).result()
            if rows != events:
                message = f"a consumer registered {rows} rows of {events}"
                raise LostRowsError(message)
            peaks.append(peak)
    return peaks[1] / peaks[0]


def consumed(settings: Settings, store_url: str) -> tuple[int, int]:
    """In the process that is measured: registers what is there. Returns rows and the process's peak memory in bytes."""
    with opened_pipeline(settings, store_url=store_url, spark_url="") as pipeline:
        return register(pipeline, store_url), peak_bytes(os.getpid())


@contextmanager
def contest(bench: Bench, name: str, started: "Started", events: int) -> Iterator[Contest]:
    """Writing the events of a round is outside the clock."""
    with ExitStack() as opened:
        store_url = opened.enter_context(fresh_store(bench.postgres))
        stream = started(bench, opened)
        pipeline = opened.enter_context(opened_pipeline(stream.settings, store_url=store_url, spark_url=""))
        set_up_and_consume(pipeline)

        yield Contest(
            name=name,
            rows=events,
            arms=(
                Arm(name=CLIENT, run=lambda: stream.read(events)),
                Arm(name=OURS, run=lambda: register(pipeline, store_url)),
            ),
            prepare=lambda number: stream.write(number, events),
            parameters={"events": events, "columns": len(COLUMNS)},
        )


@dataclass(slots=True, kw_only=True)
class MariadbStream:
    """Half of the events insert rows, the other half updates them. The client decodes the rows that it reads."""

    url: str
    database: str
    settings: Settings
    begin: tuple[str, int] = ("", 0)

    def write(self, number: int, events: int) -> None:
        self.begin = self._end()
        rows = events // 2
        names, places = ", ".join(COLUMNS), ", ".join(f"%({name})s" for name in COLUMNS)
        with closing(connected(self.url, self.database)) as connection, connection.cursor() as cursor:
            for first in range(0, rows, TRANSACTION):
                many = range(number * rows + first, number * rows + min(first + TRANSACTION, rows))
                values = [_row(place) for place in many]
                cursor.executemany(f"INSERT INTO orders ({names}) VALUES ({places})", values)
                connection.commit()
                cursor.execute(
                    "UPDATE orders SET amount = amount + 1 WHERE order_id BETWEEN %s AND %s", (many[0], many[-1])
                )
                connection.commit()

    def read(self, events: int) -> int:
        parts = urlsplit(self.url)
        reader = BinLogStreamReader(
            connection_settings={"host": parts.hostname, "port": parts.port, "user": USER, "password": PASSWORD},
            server_id=secrets.randbelow(1 << 30) + 1,
            is_mariadb=True,
            blocking=True,
            resume_stream=True,
            log_file=self.begin[0],
            log_pos=self.begin[1],
            only_events=[WriteRowsEvent, UpdateRowsEvent],
            only_tables=["orders"],
            enable_logging=False,
        )
        seen = 0
        with closing(reader), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the package opens its own connections in an old way
            cut = BINLOG.BINLOG_CHECKSUM_LEN
            BINLOG.BINLOG_CHECKSUM_LEN = 4  # the pipeline's connection cuts checksums off, the library's does not
            while seen < events:
                seen += len(reader.fetchone().rows)
            BINLOG.BINLOG_CHECKSUM_LEN = cut
        return seen

    def _end(self) -> tuple[str, int]:
        ((file, position, *_),) = run_mysql(self.url, "SHOW MASTER STATUS")
        return str(file), int(position)


@dataclass(slots=True, kw_only=True)
class KafkaStream:
    """One partition with Debezium's events without schemas. The client does not look into the records."""

    servers: str
    topic: str
    settings: Settings
    consumer: Any

    def write(self, number: int, events: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "acks": "all", "queue.buffering.max.messages": 1 << 20})
        for place, row in enumerate(changes(number, events), number * events):
            key = json.dumps({"order_id": row["order_id"]})
            producer.produce(self.topic, key=key, value=json.dumps(debezium_event(place, row)), partition=0)
        if producer.flush(TIMEOUT_SECONDS):
            message = "the broker does not take the records"
            raise TimeoutError(message)

    def read(self, events: int) -> int:
        seen = 0
        while seen < events:
            seen += len(self.consumer.consume(min(events - seen, 10_000), TIMEOUT_SECONDS))
        return seen


@dataclass(slots=True, kw_only=True)
class KinesisStream:
    """One shard with Debezium's events on a server in memory. The client does not look into the records."""

    streams: KinesisStreams
    settings: Settings
    client: Any
    last: Mapping[str, str] = field(default_factory=lambda: {"ShardIteratorType": "TRIM_HORIZON"})

    def write(self, number: int, events: int) -> None:
        rows = enumerate(changes(number, events), number * events)
        while chosen := list(islice(rows, _MOST_PUT)):
            records = [{"Data": json.dumps(debezium_event(*each)).encode(), "PartitionKey": "key"} for each in chosen]
            self.client.put_records(StreamName=self.streams.name, Records=records)

    def read(self, events: int) -> int:
        (shard,) = self.client.list_shards(StreamName=self.streams.name)["Shards"]
        place = {"StreamName": self.streams.name, "ShardId": shard["ShardId"], **self.last}
        iterator, seen = self.client.get_shard_iterator(**place)["ShardIterator"], 0
        while seen < events:
            found = self.client.get_records(ShardIterator=iterator)
            iterator, records = found["NextShardIterator"], found["Records"]
            seen += len(records)
            if records:
                last = records[-1]["SequenceNumber"]
                self.last = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": last}
        return seen


def _row(place: int) -> dict[str, Any]:
    (row,) = changes(place, 1)
    return row | {"order_id": place, "paid": row["paid"] == "true"}


def _mariadb(bench: Bench, opened: ExitStack) -> MariadbStream:
    url = opened.enter_context(started_mariadb())
    database = opened.enter_context(fresh_mysql_database(url))
    run_mysql(url, _CREATE, database=database)
    settings = mysql_settings(bench.folder(opened), url, database, [{"name": "orders"}])
    return MariadbStream(url=url, database=database, settings=settings)


def _kafka(bench: Bench, opened: ExitStack) -> KafkaStream:
    servers, topic = opened.enter_context(started_kafka(bench.folder(opened))).split()[0], "shop.public.orders"
    Topics(servers=servers).create(topic)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    opened.callback(consumer.close)
    consumer.assign([TopicPartition(topic, 0, 0)])
    source = {"kind": "kafka", "servers": servers, "topic": "shop.{schema}.{table}"}
    return KafkaStream(servers=servers, topic=topic, settings=_settings(bench, opened, source), consumer=consumer)


def _kinesis(bench: Bench, opened: ExitStack) -> KinesisStream:
    os.environ.update(ACCOUNT)
    streams = KinesisStreams(endpoint=opened.enter_context(started_moto()))
    streams.create()
    source = {"kind": "kinesis", "stream": streams.name, "reads_per_second": 1_000, **streams.server}
    client = aws_client("kinesis", streams.endpoint)
    return KinesisStream(streams=streams, settings=_settings(bench, opened, source), client=client)


def _settings(bench: Bench, opened: ExitStack, source: Mapping[str, Any]) -> Settings:
    return Settings.model_validate(
        {
            "folder": bench.folder(opened),
            "name": "shop",
            "lake": "lake",
            "slice_length": "1h",
            "source": source,
            "tables": [{"name": "shop.public.orders", "id": ["order_id"], "columns": COLUMNS}],
        }
    )


Started = Callable[[Bench, ExitStack], Stream]
STREAMS: Mapping[str, Started] = {"MariaDB": _mariadb, "Kafka": _kafka, "Kinesis": _kinesis}
