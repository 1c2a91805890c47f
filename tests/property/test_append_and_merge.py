"""Random claims leave the same rows by append, with and without Spark's search, and by MERGE; hidden ones too."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.append_or_merge import Upsert
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange, LakeTable
from cdc_pipeline.lake.session import connect
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, STATE, VERSION, Column, TableSchema
from cdc_pipeline.settings import PartitionBy
from tests.support.lake import Feed, event, lake_table_rows, move, rows_by_spark, table_of
from tests.support.lakes import spark_lake
from tests.support.reference.model import Event

CLAIMS, EVENTS, IDS = 3, 80, 40
OTHERS = ("name", "full name", "kind")
KEYED = TableSchema(
    columns=(Column(name="id", type="int8"), *(Column(name=name, type="text") for name in OTHERS)), key=("id",)
)
PLAIN = replace(KEYED, columns=tuple(replace(each, name=each.name.replace(" ", "_")) for each in KEYED.columns))
BAG = TableSchema(columns=(Column(name="a", type="int4"), Column(name="b", type="float8")), key=())
PARTITIONED = (PartitionBy(column="kind"),)
BY_SPARK = "append, searched by Spark"
WAYS: dict[str, tuple[Upsert, int]] = {
    "append": ("append", EVENTS * CLAIMS),
    BY_SPARK: ("append", 0),
    "merge": ("merge", 0),
}
Rows = Counter[str]
Events = list[Event]


def whole_rows(chance: Random, number: int, schema: TableSchema) -> Events:
    """Also events that are as old as what the lake has."""
    return [
        event(chance.choice("iuud"), _version(chance, number, place), chance.randrange(IDS), **_values(chance, schema))
        for place in range(EVENTS)
    ]


def partial_rows(chance: Random, number: int, schema: TableSchema) -> Events:
    """Some columns have a value in each event of a claim, so that they can be one register."""
    found: Events = []
    may_lack = {name for name in schema.names if chance.random() < 0.6}
    for place in range(EVENTS):
        values = {
            name: value
            for name, value in _values(chance, schema).items()
            if name not in may_lack or chance.random() < 0.6
        }
        version = 1000 * number + place
        if chance.random() < 0.2:
            old, new = chance.sample(range(IDS), 2)
            found += move(version, (old,), (new,), **values)
        else:
            found.append(event(chance.choice("iuud"), version, chance.randrange(IDS), **values))
    return found


def copies(chance: Random, number: int, _schema: TableSchema) -> Events:
    return [
        event(chance.choice("iid"), 1000 * number + place, a=chance.randrange(3), b=chance.choice([None, float("nan")]))
        for place in range(EVENTS)
    ]


ONLY_NIGHTLY = {"whole rows", "partial rows", "soft deletes, partitioned", "any order", "no key"}
"""The other kinds have the properties of these in other combinations."""
KINDS: dict[str, tuple[LakeTable, Callable[[Random, int, TableSchema], Events]]] = {
    "whole rows": (table_of(PLAIN), whole_rows),
    "whole rows, mapped and partitioned": (table_of(KEYED, partition_by=PARTITIONED), whole_rows),
    "partial rows": (table_of(KEYED), partial_rows),
    "soft deletes, partitioned": (table_of(PLAIN, deletes="soft", partition_by=PARTITIONED), partial_rows),
    "any order": (table_of(PLAIN, ordered=False), partial_rows),
    "soft deletes, any order, partitioned": (
        table_of(PLAIN, deletes="soft", ordered=False, partition_by=PARTITIONED),
        partial_rows,
    ),
    "no key": (table_of(BAG), copies),
    "no key, any order": (table_of(BAG, ordered=False), copies),
}


@pytest.fixture
def session(spark_url: str) -> Iterator[SparkSession]:
    session = connect(spark_url)
    yield session
    session.stop()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.nightly if kind in ONLY_NIGHTLY else ()) for kind in KINDS]
)
def test_append_leaves_what_merge_leaves(kind: str, session: SparkSession, tmp_path: Path) -> None:
    table, events_of = KINDS[kind]
    appends = ("append",) if table.schema.is_keyless else ("append", BY_SPARK)  # without a key there is one search
    ways = (*appends, "merge")
    chance = Random(kind)
    stores = {way: LocalObjectStore(tmp_path / way) for way in ways}
    lakes = {way: _lake(session, stores[way], way) for way in ways}
    feeds = {way: Feed(store=stores[way], table=table) for way in ways}
    for lake in lakes.values():
        lake.create_table(table)
    for number in range(1, CLAIMS + 1):
        events = events_of(chance, number, table.schema)
        for way, lake in lakes.items():
            lake.upsert(table, _claim(feeds[way], events, number))
        if number == CLAIMS // 2:
            for way in appends:
                lakes[way].optimize(table)
                lakes[way] = _lake(session, stores[way], way)
        left = {way: _rows(table, lake_table_rows(stores[way], table)) for way in ways}
        assert all(left[way] == left["merge"] for way in appends)
    for way in appends:
        assert "CDC UPSERT" in _operations(stores[way], table)
        assert _rows(table, rows_by_spark(session, stores[way], table)) == left["merge"]
    assert "CDC UPSERT" not in _operations(stores["merge"], table)


def _lake(session: SparkSession, store: LocalObjectStore, way: str) -> SparkLake:
    upsert, rows_without_spark = WAYS[way]
    return spark_lake(session, store, rows_without_spark, upsert)


def _claim(feed: Feed, events: Events, number: int) -> ClaimWork:
    """Every other one with the ranges of its ids, and one that comes late."""
    ids = [int(str(each.id[0])) for each in events if each.id]
    ranges = (KeyRange(min(ids), max(ids)),) if ids and number % 2 else ()
    late = bool(ids) and number == CLAIMS - 1
    return replace(feed.claim(events, ranges=ranges), late=late, tombstones=late)


def _version(chance: Random, number: int, place: int) -> int:
    """Some of the first claim's age."""
    return place if chance.random() < 0.05 else 1000 * number + place


def _values(chance: Random, schema: TableSchema) -> dict[str, object]:
    values: dict[str, object] = {name: f"v{chance.randrange(99)}" for name in schema.names if name != "id"}
    return values | {"kind": chance.choice(["x/y", None])}


def _rows(table: LakeTable, rows: list[dict[str, Any]]) -> Rows:
    """Without tombstones that nothing waits for any more: the two ways remove them at different times."""
    kept = (row for row in rows if not (table.ordered and table.deletes == "hard" and _is_dead(row)))
    return Counter(json.dumps(_plain(row), sort_keys=True, default=str) for row in kept)


def _is_dead(row: dict[str, Any]) -> bool:
    return bool(row[DELETED] and row[STATE] and row[STATE]["deletion"] >= row[VERSION])


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The order of a row's versions says nothing."""
    state = row[STATE]
    if state is not None:
        state = {**state, "columns": sorted(dict(state["columns"] or {}).items())}
    return {**row, STATE: state, DELETED: bool(row[DELETED])}


def _operations(store: LocalObjectStore, table: LakeTable) -> set[str]:
    log = DeltaLog(store, lake_key(table.name))
    return {str(commit.info.get("operation")) for commit in log.backwards(log.latest_version() or 0)}
