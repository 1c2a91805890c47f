"""The contenders of the slice benchmark: each prepares its input, then hands out what is timed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake import KeyRange, LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, OPERATION, VERSION, Column, TableSchema
from cdc_pipeline.steps import no_step
from tests.support.fold.model import Event
from tests.support.lake import Feed, table_of

SCHEMA = TableSchema(
    columns=(
        Column(name="id", type="int8"),
        Column(name="customer", type="int4"),
        Column(name="note", type="text"),
        Column(name="amount", type="int8"),
        Column(name="at", type="timestamptz"),
    ),
    key=("id",),
)
NAMES = ", ".join((*SCHEMA.names, VERSION))


def filling(rows: int) -> str:
    return f"""
        SELECT id + 1 AS id, CAST(id % 1000 AS INT) AS customer, repeat(CAST(id AS STRING), 8) AS note, id AS amount,
               timestamp'2024-01-01' AS at, '' AS {VERSION}
        FROM range(0, {rows}, 1, 4)"""


@dataclass(frozen=True, slots=True)
class Arm:
    """`target`: its table in SQL. `prepare` gives, for the changes of a round, the call that is timed."""

    name: str
    target: str
    prepare: Callable[[Sequence[Event]], Callable[[], object]]


def our_arm(session: SparkSession, store: LocalObjectStore, rows: int) -> Arm:
    table, lake = _filled_lake(session, store, "bench.public.ours", rows)
    feed = Feed(store=store, table=table)

    def prepare(events: Sequence[Event]) -> Callable[[], object]:
        ids = [_id(each) for each in events]
        old = [id_ for id_ in ids if id_ <= rows]
        new = [id_ for id_ in ids if id_ > rows]
        ranges = (KeyRange(min(old), max(old)), KeyRange(min(new), max(new)))
        work = feed.claim(events, ranges=ranges)
        return lambda: lake.upsert(table, work)

    return Arm("this project", _at(store, table), prepare)


def append_arm(session: SparkSession, store: LocalObjectStore, rows: int) -> Arm:
    """The same rows into an equal table, without looking at what is there."""
    table, _ = _filled_lake(session, store, "bench.public.appended", rows)
    target = _at(store, table)
    feed = Feed(store=store, table=table)

    def prepare(events: Sequence[Event]) -> Callable[[], object]:
        url = store.spark_url(feed.slice(events).key)
        insert = f"INSERT INTO {target} BY NAME SELECT {NAMES}, false AS {DELETED} FROM parquet.`{url}`"
        return lambda: session.sql(insert).collect()

    return Arm("append", target, prepare)


def _filled_lake(session: SparkSession, store: LocalObjectStore, name: str, rows: int) -> tuple[LakeTable, SparkLake]:
    table = table_of(SCHEMA, name=name)
    lake = SparkLake(open_session=lambda: session, store=store, clock=lambda: datetime.now(UTC), on_step=no_step)
    lake.create_table(table)
    insert = f"INSERT INTO {_at(store, table)} BY NAME SELECT *, false AS {DELETED} FROM ({filling(rows)})"
    session.sql(insert).collect()
    return table, lake


def documented_arm(session: SparkSession, store: LocalObjectStore, rows: int) -> Arm:
    """Latest change per id by a window, then MERGE with SET * and INSERT *: all settings as they come."""
    table = table_of(SCHEMA, name="bench.public.documented")
    target = _at(store, table)
    session.sql(f"CREATE TABLE {target} USING delta AS {filling(rows)}").collect()
    feed = Feed(store=store, table=table)

    def prepare(events: Sequence[Event]) -> Callable[[], object]:
        url = store.spark_url(feed.slice(events).key)
        merge = f"""
            MERGE INTO {target} AS t
            USING (SELECT * FROM (
                       SELECT {NAMES}, {OPERATION},
                              row_number() OVER (PARTITION BY id ORDER BY {VERSION} DESC) AS place
                       FROM parquet.`{url}`) WHERE place = 1) AS s
            ON t.id = s.id
            WHEN MATCHED AND s.{OPERATION} = 'd' THEN DELETE
            WHEN MATCHED THEN UPDATE SET *
            WHEN NOT MATCHED THEN INSERT *"""
        return lambda: session.sql(merge).collect()

    return Arm("documented", target, prepare)


def _at(store: LocalObjectStore, table: LakeTable) -> str:
    return table_at(store.spark_url(lake_key(table.name)))


def _id(each: Event) -> int:
    return int(str(each.id[0]))
