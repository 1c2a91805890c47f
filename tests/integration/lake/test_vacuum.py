"""VACUUM deletes unused files alone, whatever the folders are called that data partitions name."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.append_or_merge import Upsert
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.lake_files import LakeFiles
from cdc_pipeline.lake.protocol import LakePublication, LakeTable
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.settings import PartitionBy
from tests.integration.lake.test_publication import compacted
from tests.support.lake import NOW, Feed, event, lake_values, table_of
from tests.support.lakes import spark_lake

PRINTABLE = [chr(code) for code in range(0x20, 0x7F)]
LABELS = (
    "".join(PRINTABLE[:48]),
    "".join(PRINTABLE[48:]),
    "ü",
    "北京",
    "e\u0301",
    "\xa0\u2028\x85\x7f\t",
    "\U0001f600",
)


def files_of(store: LocalObjectStore, table: LakeTable) -> tuple[set[str], set[str]]:
    """The keys of all data files, and of those that the latest version has."""
    log = DeltaLog(store, lake_key(table.name))
    state = LakeTableStates().at(log, log.latest_version() or 0)
    files = LakeFiles(store=store, table=table, state=state, columns=())
    found = {each.key for each in store.list_prefix(log.table_key) if each.key.endswith(".parquet")}
    return {key for key in found if "/_delta_log/" not in key}, {files.key_of(path) for path in state.files.paths()}


def make_old(store: LocalObjectStore, table: LakeTable) -> None:
    """Sets back the times of all data files to those of the lake's commits, months ago."""
    for key in files_of(store, table)[0]:
        os.utime(f"{store.filesystem()[1]}/{key}", (NOW.timestamp(), NOW.timestamp()))


@pytest.mark.parametrize("upsert", ["append", pytest.param("merge", marks=pytest.mark.nightly)])
def test_files_in_use_stay_whatever_names_their_data_partitions_have(
    session: SparkSession, store: LocalObjectStore, upsert: Upsert
) -> None:
    columns = (Column(name="id", type="int8"), Column(name="größe", type="text"))
    schema = TableSchema(columns=columns, key=("id",))
    table = table_of(schema, name="shop.public.a (ü)", partition_by=(PartitionBy(column="größe"),))
    lake = spark_lake(session, store, upsert=upsert)
    lake.create_table(table)
    files = compacted(lake, store, table, [{"id": id_, "größe": label} for id_, label in enumerate(LABELS)])
    lake.publish(table, LakePublication(snapshot_id="s1", files=files, fence_number=0))
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, 10 + id_, größe=label) for id_, label in enumerate(LABELS)]))
    expected = {(id_,): (label,) for first in (0, 10) for id_, label in enumerate(LABELS, first)}
    found, used = files_of(store, table)
    assert used == found
    make_old(store, table)
    lake.vacuum(table)
    assert files_of(store, table) == (found, found)
    assert lake_values(store, table) == expected


@pytest.mark.parametrize(
    ("upsert", "column", "partitions"),
    [
        ("append", "a/b", ("a/b", "a/b")),
        ("append", "label", ("label", "id")),
        pytest.param("merge", "label", ("label", "id"), marks=pytest.mark.nightly),
        pytest.param("merge", "a/b", ("a/b", "a/b"), marks=pytest.mark.nightly),
    ],
)
def test_replaced_files_go_also_where_vacuum_passes_over_their_folder(
    session: SparkSession, store: LocalObjectStore, upsert: Upsert, column: str, partitions: tuple[str, str]
) -> None:
    """A data partition is a former one, or Spark escapes its column's name in names of folders."""
    schema = TableSchema(columns=(Column(name="id", type="int8"), Column(name=column, type="text")), key=("id",))
    feed, labels = Feed(store=store, table=table_of(schema)), ("a b", "50%", "ü", None)
    lake = spark_lake(session, store, upsert=upsert)
    for snapshot_id, name in zip(("s1", "s2"), partitions, strict=True):
        table = replace(feed.table, partition_by=(PartitionBy(column=name),))
        lake.create_table(table, snapshot_id=None if snapshot_id == "s1" else snapshot_id)
        rows: list[dict[str, object]] = [{"id": id_, column: label} for id_, label in enumerate(labels)]
        files = compacted(lake, store, table, rows, snapshot_id)
        number = feed.next_number
        lake.publish(table, LakePublication(snapshot_id=snapshot_id, files=files, fence_number=number - 1))
        lake.upsert(table, feed.claim([event("i", number, 10 + i, **{column: text}) for i, text in enumerate(labels)]))
    found, used = files_of(store, table)
    expected = {(id_,): (label,) for first in (0, 10) for id_, label in enumerate(labels, first)}
    assert used < found
    make_old(store, table)
    spark_lake(session, store, now=datetime.now(UTC) + timedelta(days=8)).vacuum(table)
    assert files_of(store, table) == (used, used)
    assert lake_values(store, table) == expected
