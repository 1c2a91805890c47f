"""Ids like `BIGINT UNSIGNED`: claims replace their old rows, and search few files, whoever wrote these."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.append_or_merge import Upsert
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.key_ranges import ranges_of
from cdc_pipeline.lake.lake_files import LakeFiles
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange, LakeTable
from cdc_pipeline.lake.schema_change import latest_shape
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import resolve
from tests.support.history_tables import publish
from tests.support.lake import Feed, event, lake_values, rows_by_spark, table_of, values_by_id
from tests.support.lakes import spark_lake

MILLION = 10**6
SPREAD = (-(2**63), -MILLION, MILLION, 2**40, 2**63 - 1)
BEYOND = (2**63, 2**64 - 1)
WAYS: dict[str, tuple[Upsert, int]] = {
    "append": ("append", 100),
    "append, searched by Spark": ("append", 0),
    "merge": ("merge", 0),
}


def keyed_by(type_: str) -> LakeTable:
    columns = (Column(name="id", type=type_, number=1), Column(name="name", type="text", number=2))
    return table_of(TableSchema(columns=columns, key=("id",)))


def named(ids: Iterable[int], name: str) -> dict[tuple[object, ...], tuple[object, ...]]:
    return {(Decimal(id_),): (name,) for id_ in ids}


def ranges_in(table: LakeTable, ids: Iterable[int]) -> tuple[KeyRange, ...]:
    """Those that a slice file of these ids has."""
    type_ = resolve(table.schema.columns[0].type).arrow
    return ranges_of(pa.chunked_array([pa.array(map(Decimal, ids), type_)]))


def claim(feed: Feed, operation: str, at: int, ids: Sequence[int], name: str) -> ClaimWork:
    events = [event(operation, at, Decimal(id_), name=name) for id_ in ids]
    return feed.claim(events, ranges=ranges_in(feed.table, ids))


def searched(store: LocalObjectStore, table: LakeTable, *ids: int) -> int:
    log = DeltaLog(store, lake_key(table.name))
    columns = tuple((column.name, column.type) for column in latest_shape(log, table).columns)
    state = LakeTableStates().at(log, log.latest_version() or 0)
    return len(LakeFiles(store=store, table=table, state=state, columns=columns).candidates(ranges_in(table, ids)))


def bounds(store: LocalObjectStore, table: LakeTable) -> list[tuple[Any, Any]]:
    """Of the files that are in the table, without those that have none."""
    log = DeltaLog(store, lake_key(table.name))
    files = [json.loads(file["stats"]) for file in log.active_files(log.latest_version() or 0).values()]
    found = ((stats["minValues"].get("id"), stats["maxValues"].get("id")) for stats in files)
    return sorted(each for each in found if None not in each)


@pytest.mark.parametrize(
    "way", ["append", "append, searched by Spark", pytest.param("merge", marks=pytest.mark.nightly)]
)
def test_an_update_of_an_old_row_replaces_it(session: SparkSession, store: LocalObjectStore, way: str) -> None:
    upsert, rows_without_spark = WAYS[way]
    lake = spark_lake(session, store, rows_without_spark, upsert)
    table = keyed_by("numeric(20,0)")
    publish(lake, store, table, [(Decimal(id_), "snapshot") for id_ in (-3, -2, 7, 8)], at=1, fence=0)
    assert bounds(store, table) == [(-3, 8)]
    feed = Feed(store=store, table=table)
    for at, ids in enumerate([*((id_, id_ + 1) for id_ in SPREAD[:-1]), SPREAD[-1:], BEYOND], 2):
        lake.upsert(table, claim(feed, "u", at, ids, "first"))
    expected = named((-3, -2, 7, 8), "snapshot") | named([*SPREAD, *(id_ + 1 for id_ in SPREAD[:-1]), *BEYOND], "first")
    assert lake_values(store, table) == expected
    lows, highs = (set(ends) for ends in zip(*bounds(store, table), strict=True))
    assert lows >= {-(2**63), -MILLION, 2**40, 2**63 - 1}
    assert highs >= {1 - MILLION, 2**40 + 1, 2**63 - 1}
    assert searched(store, table, 2**40, 2**40 + 1) <= 4, "it, and the files of ids beyond 64 bits"
    assert searched(store, table, 2**63) >= len(SPREAD), "all"
    for at, ids in enumerate([(-2, 8), SPREAD, (MILLION + 1, 5), BEYOND], 20):
        outcome = lake.upsert(table, claim(feed, "u", at, ids, f"at {at}"))
        new = sum((Decimal(id_),) not in expected for id_ in ids)
        assert (outcome.counts.inserted, outcome.counts.updated) == (new, len(ids) - new)
        expected |= named(ids, f"at {at}")
        assert lake_values(store, table) == expected
    assert lake.upsert(table, claim(feed, "d", 30, (2**40, 2**40 + 1), "")).counts.deleted == 2
    lake.optimize(table)
    del expected[Decimal(2**40),], expected[Decimal(2**40 + 1),]
    assert lake_values(store, table) == values_by_id(table, rows_by_spark(session, store, table)) == expected


def test_an_id_that_gets_more_digits_is_found_in_older_files(lake: SparkLake, store: LocalObjectStore) -> None:
    short, long = keyed_by("numeric(5,0)"), keyed_by("numeric(20,0)")
    lake.create_table(short)
    feed = Feed(store=store, table=short)
    for at in (1, 2, 3):
        lake.upsert(short, claim(feed, "i", at, (-at, at, 10_000 * at), "short"))
    feed = replace(feed, table=long)
    for at, ids in enumerate([(20_000, 2**63), (2**62, -1)], 4):
        lake.upsert(long, claim(feed, "u", at, ids, "long"))
    before = (-2, -3, 1, 2, 3, 10_000, 30_000)
    assert lake_values(store, long) == named(before, "short") | named((20_000, 2**63, 2**62, -1), "long")
    assert searched(store, long, 2**62 - 1) <= 2
