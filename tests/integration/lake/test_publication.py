"""Snapshots compacted by real Spark, published by one commit of our own, and merged into afterwards."""

import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key, staging_prefix
from cdc_pipeline.errors import FenceMismatch, LakeError
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.ledger_values import PublishedCommit, PublishedTable
from cdc_pipeline.lake.protocol import Compaction, DataFile, LakePublication, LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import DELETED, STATE, VERSION, Column, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.types import arrow_schema
from tests.support.delta_rows import delta_url
from tests.support.lake import (
    PEOPLE,
    Feed,
    by_id,
    event,
    lake_rows,
    lake_values,
    move,
    rows_by_spark,
    table_of,
    version,
)

FENCE = 7


def stage(store: LocalObjectStore, table: LakeTable, rows: list[dict[str, object]], snapshot_id: str) -> str:
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(table.schema)), content)
    key = f"{staging_prefix(table.name, snapshot_id)}/{len(rows)}.parquet"
    store.put_if_absent(key, content.getvalue())
    return key


def compacted(
    lake: SparkLake,
    store: LocalObjectStore,
    table: LakeTable,
    rows: list[dict[str, object]],
    snapshot_id: str = "s1",
    target_files: int = 1,
) -> tuple[DataFile, ...]:
    work = Compaction(
        snapshot_id=snapshot_id,
        attempt="task-1.1",
        staged_keys=(stage(store, table, rows, snapshot_id),),
        target_files=target_files,
        version=version(100),
    )
    return lake.compact(table, work)


def people(count: int) -> list[dict[str, object]]:
    return [{"id": number, "name": f"n{number}", "age": number % 90} for number in reversed(range(count))]


def published_table(table: LakeTable, files: tuple[DataFile, ...]) -> PublishedTable:
    return PublishedTable(
        table_uuid=UUID(table.table_uuid),
        source_oid=16_400,
        stream={"name": "shop", "slot": "o'clock"},
        settings={"id": ["id"]},
        schema=table.schema,
        snapshot_id="s1",
        fence_number=FENCE,
        cutoff_offset="00",
        cutoff_version=version(100),
        cutoff_time=datetime(2024, 1, 1, tzinfo=UTC),
        rows=1000,
        files=len(files),
        bytes=sum(file.size_bytes for file in files),
        description=({"columns": [{"name": "it's", "default": "'${user.home}' \\ü"}], "generation": 1 << 60},),
    )


def test_a_published_snapshot_is_the_table_and_slices_follow_it(lake: SparkLake, store: LocalObjectStore) -> None:
    table = replace(table_of(), table_uuid=str(UUID(int=7)))
    lake.create_table(table)
    files = compacted(lake, store, table, people(1000), target_files=4)
    assert lake_values(store, table) == {}
    kept = published_table(table, files)
    published = lake.publish(table, LakePublication(snapshot_id="s1", files=files, fence_number=FENCE, table=kept))
    assert published == lake.read_version(table)
    assert len(files) > 1
    assert sum(file.rows for file in files) == len(lake_values(store, table)) == 1000

    fence = lake.read_fence(table)
    assert fence is not None
    assert (fence.number, fence.snapshot_id) == (FENCE, "s1")
    feed = Feed(store=store, table=table, next_number=FENCE + 1)
    work = feed.claim([event("u", 101, 5, age=50), event("d", 102, 6), event("u", 99, 7, name="old", age=0)])
    work = replace(work, claim_id=str(UUID(int=8)), position="0f")
    outcome = lake.upsert(table, work)
    assert (outcome.counts.updated, outcome.counts.deleted, outcome.counts.ignored) == (1, 1, 1)
    rows = lake_values(store, table)
    assert (rows[(5,)], rows[(7,)], (6,) in rows) == (("n5", 50), ("n7", 7), False)

    lake.optimize(table)
    told = lake.read_ledger(table.name)
    assert told is not None
    assert (told.fence_number, told.published, told.is_whole) == (FENCE + 1, kept, True)
    first, (claim,) = told.steps[0], told.claims
    assert isinstance(first, PublishedCommit)
    assert (first.lake_version, first.table) == (published, kept)
    assert (claim.claim_id, claim.position, claim.lake_version) == (UUID(int=8), "0f", outcome.lake_version)
    assert claim.slices == tuple(content.identity for content in work.slices)


def test_files_are_sorted_by_id_and_their_bounds_do_not_overlap(
    lake: SparkLake, store: LocalObjectStore, tmp_path: Path
) -> None:
    table = table_of()
    lake.create_table(table)
    files = compacted(lake, store, table, people(1000), target_files=4)
    bounds = list[tuple[int, int]]()
    for file in files:
        ids = pq.read_table(tmp_path / "bucket" / file.key).column("id").to_pylist()
        stats = json.loads(file.stats)
        assert ids == sorted(ids)
        assert (stats["numRecords"], stats["nullCount"]["id"]) == (len(ids), 0)
        assert (stats["minValues"]["id"], stats["maxValues"]["id"]) == (ids[0], ids[-1])
        bounds.append((ids[0], ids[-1]))
    ends = [end for pair in sorted(bounds) for end in pair]
    assert ends == sorted(set(ends))
    assert len(ends) == 2 * len(files)


def test_publishing_again_after_a_crash_recognises_its_own_commit(lake: SparkLake, store: LocalObjectStore) -> None:
    table = table_of()
    lake.create_table(table)
    content = LakePublication(snapshot_id="s1", files=compacted(lake, store, table, people(10)), fence_number=FENCE)
    published = lake.publish(table, content)
    feed = Feed(store=store, table=table, next_number=FENCE + 1)
    lake.upsert(table, feed.claim([event("u", 101, 5, age=50)]))
    last = lake.read_version(table)
    assert lake.publish(table, content) == published
    assert lake.read_version(table) == last


def test_a_newer_snapshot_replaces_merged_rows_and_an_older_one_is_refused(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    table = table_of()
    lake.create_table(table)
    first = LakePublication(snapshot_id="s1", files=compacted(lake, store, table, people(50)), fence_number=0)
    lake.publish(table, first)
    feed = Feed(store=store, table=table)
    session.sql(
        f"ALTER TABLE {table_at(store.spark_url(lake_key(table.name)))}"
        " SET TBLPROPERTIES ('delta.checkpointInterval' = '3')"
    ).collect()
    for number in range(1, 6):
        lake.upsert(table, feed.claim([event("u", 100 + number, number, age=99), event("d", 100 + number, 40)]))
    files = compacted(lake, store, table, people(3), "s2")
    with pytest.raises(FenceMismatch, match="at slice 5"):
        lake.publish(table, LakePublication(snapshot_id="s2", files=files, fence_number=4))
    lake.publish(table, LakePublication(snapshot_id="s2", files=files, fence_number=5))
    assert set(lake_values(store, table)) == {(0,), (1,), (2,)}
    log = DeltaLog(store, lake_key(table.name))
    assert len(log.active_files(lake.read_version(table) or 0)) == len(files)
    assert lake.upsert(table, feed.claim([event("d", 200, 1)])).counts.deleted == 1


def test_an_independent_reader_of_delta_agrees(lake: SparkLake, store: LocalObjectStore) -> None:
    columns = (*PEOPLE.columns, Column(name="created_at", type="timestamptz"), Column(name="seen", type="timestamp"))
    table = table_of(
        TableSchema(columns=columns, key=("id",)), partition_by=(PartitionBy(column="created_at", unit="hour"),)
    )
    lake.create_table(table)
    moment = datetime(2024, 2, 29, 23, 59, 59, 999_001, tzinfo=UTC)
    rows = people(3)
    for row, created_at in zip(rows, (moment, moment - timedelta(microseconds=1500), None), strict=True):
        row |= {"created_at": created_at, "seen": moment.replace(tzinfo=None)}
    files = compacted(lake, store, table, rows)
    lake.publish(table, LakePublication(snapshot_id="s1", files=files, fence_number=FENCE))
    other = DeltaTable(delta_url(store, lake_key(table.name)))
    actions = pa.table(other.get_add_actions(flatten=True))
    assert other.transaction_version(table.app_id) == FENCE
    assert set(actions.column("partition._cdc_created_at_hour").to_pylist()) == {"2024-02-29T23", None}
    assert sum(actions.column("num_records").to_pylist()) == len(rows)


def test_strange_names_and_data_partitions_are_published_and_merged(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    columns = (
        Column(name="i d", type="int8"),
        Column(name="на;ме", type="text"),
        Column(name="at, day", type="date"),
        Column(name="amount", type="numeric(12,2)"),
    )
    table = table_of(
        TableSchema(columns=columns, key=("i d",)),
        name="shop.we ird.t%ble é",
        deletes="soft",
        partition_by=(PartitionBy(column="at, day", unit="month"), PartitionBy(column="на;ме")),
    )
    lake.create_table(table)
    rows: list[dict[str, object]] = [
        {"i d": 1, "на;ме": "a/b c=%41", "at, day": date(2024, 1, 31), "amount": None},
        {"i d": 2, "на;ме": None, "at, day": date(2024, 2, 1), "amount": None},
        {"i d": 3, "на;ме": "ü:'\\`", "at, day": None, "amount": None},
    ]
    files = compacted(lake, store, table, rows)
    lake.publish(table, LakePublication(snapshot_id="s1", files=files, fence_number=0))
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("d", 101, 1), *move(102, (2,), (4,), **{"на;ме": "new"})]))
    found = {
        id_[0]: (row["на;ме"], row["_cdc_на;ме_value"], row["_cdc_at, day_month"], row["_cdc_deleted"])
        for id_, row in by_id(table, rows_by_spark(session, store, table)).items()
    }
    assert found == {
        1: ("a/b c=%41", "a/b c=%41", "2024-01", True),
        2: (None, None, "2024-02", True),
        3: ("ü:'\\`", "ü:'\\`", None, False),
        4: ("new", "new", "2024-02", False),
    }


def test_an_empty_snapshot_is_published_too(lake: SparkLake, store: LocalObjectStore) -> None:
    table = table_of()
    lake.create_table(table)
    files = compacted(lake, store, table, [])
    assert files == ()
    lake.publish(table, LakePublication(snapshot_id="s1", files=files, fence_number=FENCE))
    assert lake_values(store, table) == {}


def test_without_a_table_nothing_is_published_or_merged(lake: SparkLake, store: LocalObjectStore) -> None:
    table = table_of()
    assert lake.read_fence(table) is None
    assert lake.read_version(table) is None
    with pytest.raises(LakeError, match="there is no lake table"):
        lake.publish(table, LakePublication(snapshot_id="s1", files=(), fence_number=0))
    with pytest.raises(LakeError, match="there is no lake table"):
        lake.upsert(table, Feed(store=store, table=table).claim([event("d", 1, 1)]))


def test_maintenance_changes_neither_content_nor_fence(lake: SparkLake, store: LocalObjectStore) -> None:
    table = table_of()
    lake.create_table(table)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    for number in range(1, 4):
        lake.upsert(table, feed.claim([event("i", number, number, name="n", age=number)]))
    before, fence = lake_rows(store, table), lake.read_fence(table)
    lake.optimize(table)
    lake.vacuum(table)
    after = lake.read_fence(table)
    assert fence is not None
    assert after is not None
    assert (after.number, after.slices) == (fence.number, fence.slices)
    assert len(DeltaLog(store, lake_key(table.name)).active_files(after.lake_version)) == 1
    assert lake_rows(store, table) == before


@pytest.mark.parametrize("names", [("id", "amount"), ("id", "the amount")])
def test_a_table_that_was_made_again_replaces_the_old_one_with_its_columns_in_one_commit(
    lake: SparkLake, store: LocalObjectStore, names: tuple[str, str]
) -> None:
    old = table_of()
    lake.create_table(old)
    lake.publish(
        old, LakePublication(snapshot_id="s1", files=compacted(lake, store, old, people(10)), fence_number=FENCE)
    )
    columns = (Column(name=names[0], type="text"), Column(name=names[1], type="numeric(10,2)"))
    new = replace(old, schema=TableSchema(columns=columns, key=("id",)))
    lake.create_table(new, snapshot_id="s2")
    files = compacted(lake, store, new, [{"id": "a", names[1]: Decimal("1.50")}], snapshot_id="s2")
    assert len(lake_rows(store, old)) == 10
    content = LakePublication(snapshot_id="s2", files=files, fence_number=FENCE + 1)
    assert lake.publish(new, content) == lake.publish(new, content)
    assert lake_values(store, new) == {("a",): (Decimal("1.50"),)}
    assert {*next(iter(lake_rows(store, new).values()))} == {*names, VERSION, DELETED, STATE}
    feed = Feed(store=store, table=new, next_number=FENCE + 2)
    lake.upsert(new, feed.claim([event("u", 101, "a", **{names[1]: Decimal(2)}), event("i", 102, "b")]))
    assert lake_values(store, new) == {("a",): (Decimal(2),), ("b",): (None,)}
