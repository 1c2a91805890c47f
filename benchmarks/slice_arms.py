"""The contenders of the slice benchmark: each prepares its input, then hands out what is timed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.fold.model import Event
from cdc_pipeline.lake import KeyRange, LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, Column, TableSchema
from cdc_pipeline.steps import no_step
from tests.support.lake import Feed, table_of

ROWS = 1_000_000
CHANGES = 10_000
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
_FILLING = f"""
    SELECT id + 1 AS id, CAST(id % 1000 AS INT) AS customer, repeat(CAST(id AS STRING), 8) AS note, id AS amount,
           timestamp'2024-01-01' AS at, '' AS _cdc_version
    FROM range(0, {ROWS}, 1, 4)"""


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    prepare: Callable[[Sequence[Event]], Callable[[], object]]


def our_arm(session: SparkSession, store: LocalObjectStore) -> Arm:
    table = table_of(SCHEMA, name="bench.public.ours")
    lake = SparkLake(open_session=lambda: session, store=store, clock=lambda: datetime.now(UTC), on_step=no_step)
    lake.create_table(table)
    rows = f"SELECT *, false AS {DELETED} FROM ({_FILLING})"
    session.sql(f"INSERT INTO {_at(store, table)} BY NAME {rows}").collect()
    feed = Feed(store=store, table=table)

    def prepare(events: Sequence[Event]) -> Callable[[], object]:
        ids = [_id(each) for each in events]
        old = [id_ for id_ in ids if id_ <= ROWS]
        new = [id_ for id_ in ids if id_ > ROWS]
        ranges = (KeyRange(min(old), max(old)), KeyRange(min(new), max(new)))
        work = feed.claim(events, ranges=ranges)
        return lambda: lake.upsert(table, work)

    return Arm("this project", prepare)


def append_arm(session: SparkSession, store: LocalObjectStore) -> Arm:
    """The same rows into an equal table, without looking at what is there."""
    table = table_of(SCHEMA, name="bench.public.appended")
    SparkLake(open_session=lambda: session, store=store, clock=lambda: datetime.now(UTC), on_step=no_step).create_table(
        table
    )
    target = _at(store, table)
    session.sql(f"INSERT INTO {target} {_FILLING}").collect()
    feed = Feed(store=store, table=table)

    def prepare(events: Sequence[Event]) -> Callable[[], object]:
        url = store.spark_url(feed.slice(events).key)
        insert = f"INSERT INTO {target} SELECT id, customer, note, amount, at, _cdc_version FROM parquet.`{url}`"
        return lambda: session.sql(insert).collect()

    return Arm("append", prepare)


def documented_arm(session: SparkSession, store: LocalObjectStore) -> Arm:
    """Latest change per id by a window, then MERGE with SET * and INSERT *: all settings as they come."""
    table = table_of(SCHEMA, name="bench.public.documented")
    target = _at(store, table)
    session.sql(f"CREATE TABLE {target} USING delta AS {_FILLING}").collect()
    feed = Feed(store=store, table=table)

    def prepare(events: Sequence[Event]) -> Callable[[], object]:
        url = store.spark_url(feed.slice(events).key)
        merge = f"""
            MERGE INTO {target} AS t
            USING (SELECT * FROM (
                       SELECT id, customer, note, amount, at, _cdc_version, _cdc_op,
                              row_number() OVER (PARTITION BY id ORDER BY _cdc_version DESC) AS place
                       FROM parquet.`{url}`) WHERE place = 1) AS s
            ON t.id = s.id
            WHEN MATCHED AND s._cdc_op = 'd' THEN DELETE
            WHEN MATCHED THEN UPDATE SET *
            WHEN NOT MATCHED THEN INSERT *"""
        return lambda: session.sql(merge).collect()

    return Arm("documented", prepare)


def _at(store: LocalObjectStore, table: LakeTable) -> str:
    return table_at(store.spark_url(lake_key(table.name)))


def _id(each: Event) -> int:
    return int(str(each.id[0]))
