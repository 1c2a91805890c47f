"""Checkpoints that the pipeline writes, beside those of Delta: Spark and others open the table from either."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.checkpoint import write_checkpoint
from cdc_pipeline.lake.checkpoint_rows import ROWS
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.steps import no_step
from tests.support.delta_rows import delta_url
from tests.support.lake import Feed, event, table_of

NAME, GROUP = "full name", "group, or none"
SCHEMA = TableSchema(
    columns=tuple(
        Column(name=name, type=type_, number=number)
        for number, (name, type_) in enumerate((("id", "int8"), (NAME, "text"), (GROUP, "text")), 1)
    ),
    key=("id",),
)
INTERVAL = 3


@pytest.fixture
def feed(store: LocalObjectStore) -> Feed:
    """Column mapping, data partitions, and soon deletion vectors."""
    return Feed(store=store, table=table_of(SCHEMA, partition_by=(PartitionBy(column=GROUP),)))


@pytest.fixture
def lake(session: SparkSession, store: LocalObjectStore, feed: Feed) -> SparkLake:
    """By the real time: Delta leaves out of a checkpoint what was removed long ago."""
    lake = SparkLake(open_session=lambda: session, store=store, clock=lambda: datetime.now(UTC), on_step=no_step)
    lake.create_table(feed.table)
    set_property(session, store, feed, "delta.checkpointInterval", INTERVAL)
    return lake


def set_property(session: SparkSession, store: LocalObjectStore, feed: Feed, name: str, value: object) -> None:
    table = table_at(store.spark_url(lake_key(feed.table.name)))
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{name}' = '{value}')").collect()


def apply_claims(lake: SparkLake, feed: Feed, count: int) -> None:
    """Each claim adds three rows, replaces one and deletes one."""
    for number in range(1, count + 1):
        rows = [event("i", number, 10 * number + add, **{NAME: f"n{add}", GROUP: f"ä {add % 2}"}) for add in range(3)]
        old = event("u", number, 10, **{NAME: f"u{number}", GROUP: None})
        lake.upsert(
            feed.table, feed.claim([*rows, *([old, event("d", number, 10 * number - 9)] if number > 1 else [])])
        )


def rows_of(path: Path) -> dict[str, list[str]]:
    """The actions of a checkpoint as sorted texts, without the fields that we leave out, and NULLs."""
    found = pq.read_table(path).to_pylist(maps_as_pydicts="strict")
    return {
        kind: sorted(
            json.dumps(_known(row[kind], {field.name for field in ROWS.field(kind).type}), sort_keys=True)
            for row in found
            if row.get(kind) is not None
        )
        for kind in ROWS.names
    }


def _known(action: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {
        name: _known(value, set(value)) if isinstance(value, dict) and name != "partitionValues" else value
        for name, value in action.items()
        if name in names and value is not None
    }


def test_a_checkpoint_of_ours_says_what_delta_s_own_says(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore, feed: Feed
) -> None:
    log = DeltaLog(store, lake_key(feed.table.name))
    apply_claims(lake, feed, 4)
    assert log.checkpoint_before(6) == (3, [log.checkpoint_key(3)])
    set_property(session, store, feed, "delta.checkpointInterval", 1)
    latest = log.latest_version()
    assert latest is not None
    (by_delta,) = (Path(delta_url(store, key)) for key in log.checkpoint_before(latest)[1])
    kept = by_delta.rename(by_delta.with_suffix(".away"))
    store.overwrite(log.last_checkpoint_key, json.dumps({"version": 3, "size": 1}).encode())
    since = datetime.now(UTC) - timedelta(days=7)
    write_checkpoint(store, log, latest, int(since.timestamp() * 1000), no_step)
    expected = rows_of(kept)
    assert [len(rows) > 1 for rows in expected.values()] == [False, True, True, False, False]
    assert rows_of(by_delta) == expected


def test_claims_without_rows_leave_checkpoints_too(lake: SparkLake, store: LocalObjectStore, feed: Feed) -> None:
    """Without them, each such claim would read more of the log than the one before."""
    log = DeltaLog(store, lake_key(feed.table.name))
    versions = [lake.upsert(feed.table, feed.claim([])).lake_version for _ in range(2 * INTERVAL)]
    assert versions[-1] - log.checkpoint_before(versions[-1])[0] < INTERVAL


def test_every_reader_opens_the_table_from_it_when_older_commits_are_gone(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore, feed: Feed, tmp_path: Path
) -> None:
    apply_claims(lake, feed, 5)
    url = store.spark_url(lake_key(feed.table.name))
    expected = sorted(map(str, session.read.format("delta").load(url).collect()))
    copy = tmp_path / "bucket" / "copy"
    shutil.copytree(delta_url(store, lake_key(feed.table.name)), copy)
    log = DeltaLog(store, "copy")
    version, _ = log.checkpoint_before(6)
    assert version == 2 * INTERVAL
    for number in range(version):
        store.delete(f"{log.folder}/{number:020d}.json")
        store.delete(f"{log.folder}/{number:020d}.crc")
    store.delete(log.checkpoint_key(INTERVAL))
    assert sorted(map(str, session.read.format("delta").load(store.spark_url("copy")).collect())) == expected
    assert (
        len(expected)
        == QueryBuilder().register("t", DeltaTable(str(copy))).execute("SELECT * FROM t").read_all().num_rows
    )
    assert session.sql(f"OPTIMIZE {table_at(store.spark_url('copy'))}").collect()
    assert sorted(map(str, session.read.format("delta").load(store.spark_url("copy")).collect())) == expected


def test_a_table_with_checkpoints_of_another_kind_gets_delta_s(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore, feed: Feed
) -> None:
    set_property(session, store, feed, "delta.checkpoint.writeStatsAsStruct", "true")
    apply_claims(lake, feed, 4)
    log = DeltaLog(store, lake_key(feed.table.name))
    version, (key,) = log.checkpoint_before(9)
    assert (version % INTERVAL, version > 0) == (0, True)
    assert "stats_parsed" in {field.name for field in pq.read_schema(delta_url(store, key)).field("add").type}
