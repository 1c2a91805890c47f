"""Columns of the source with names that Spark or the pipeline's own SQL could take for something else."""

import io
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import staging_prefix
from cdc_pipeline.errors import LakeError
from cdc_pipeline.lake.append_or_merge import Upsert
from cdc_pipeline.lake.columns import NULL_PARTITION, partition_label
from cdc_pipeline.lake.protocol import Compaction, LakePublication, LakeTable
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, Operation, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.types import arrow_schema
from tests.support.lake import Feed, event, lake_table_rows, lake_values, move, table_of, version
from tests.support.lakes import spark_lake
from tests.support.reference.model import Event

ODD_NAMES = ("copy", "copies", "unmatched", "found", "net", "version", "_metadata")


def test_a_keyless_table_may_have_columns_of_any_name(lake: SparkLake, store: LocalObjectStore) -> None:
    columns = tuple(Column(name=name, type="int8") for name in ODD_NAMES)
    table = table_of(TableSchema(columns=columns, key=()), name="shop.public.odd_bag")
    lake.create_table(table)
    feed = Feed(store=store, table=table)

    def row(operation: str, at: int, value: int) -> Event:
        values: dict[str, object] = dict.fromkeys(ODD_NAMES, value)
        return Event(operation=Operation(operation), version=version(at), id=(), values=values)

    assert lake.upsert(table, feed.claim([row("i", at, at % 2) for at in range(4)])).counts.inserted == 4
    assert lake.upsert(table, feed.claim([row("d", 5, 1)])).counts.deleted == 1
    found = [tuple(row[name] for name in ODD_NAMES) for row in lake_table_rows(store, table)]
    assert sorted(found) == [(0,) * len(ODD_NAMES)] * 2 + [(1,) * len(ODD_NAMES)]


def put_staged(store: LocalObjectStore, table: LakeTable, columns: dict[str, list[Any]]) -> str:
    content = io.BytesIO()
    pq.write_table(pa.table(columns, arrow_schema(table.schema)), content)
    key = f"{staging_prefix(table.name, 's1')}/1.parquet"
    store.put_if_absent(key, content.getvalue())
    return key


@pytest.mark.parametrize("rows_without_spark", [0, 1000])
def test_the_name_of_an_id_may_begin_with_a_dot(
    session: SparkSession, store: LocalObjectStore, rows_without_spark: int
) -> None:
    names = (".id", "id", ".other")
    schema = TableSchema(columns=tuple(Column(name=name, type="text") for name in names), key=(".id", "id"))
    table = table_of(schema, name=f"shop.public.dotted_{rows_without_spark}")
    lake = spark_lake(session, store, rows_without_spark)
    lake.create_table(table)
    key = put_staged(store, table, {".id": ["b", "a"], "id": ["1", "1"], ".other": ["o", "o"]})
    work = Compaction(snapshot_id="s1", attempt="1", staged_keys=(key,), target_files=1, version=version(0))
    lake.publish(table, LakePublication(snapshot_id="s1", files=lake.compact(table, work), fence_number=0))
    feed = Feed(store=store, table=table)
    lake.upsert(
        table, feed.claim([event("u", 1, "a", "1", **{".other": "p"}), event("i", 1, "a", "2", **{".other": "o"})])
    )
    lake.upsert(table, feed.claim([event("u", 2, "b", "1"), *move(3, ("a", "2"), ("c", "2"))]))
    assert lake.optimize(table).files_after == 1
    assert lake_values(store, table) == {("a", "1"): ("p",), ("b", "1"): ("o",), ("c", "2"): ("o",)}


@pytest.mark.parametrize("rows_without_spark", [0, 1000])
def test_a_column_may_have_the_name_of_what_spark_tells_about_files(
    session: SparkSession, store: LocalObjectStore, rows_without_spark: int
) -> None:
    names = ("id", "_metadata", "other")
    schema = TableSchema(columns=tuple(Column(name=name, type="text") for name in names), key=("id",))
    table = table_of(schema, name=f"shop.public.odd_{rows_without_spark}")
    lake = spark_lake(session, store, rows_without_spark)
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, id_, _metadata="x", other="o") for id_ in "ab"]))
    lake.upsert(table, feed.claim([event("u", 2, "a", _metadata="y")]))
    lake.upsert(table, feed.claim([event("u", 3, "b", other="p")]))
    assert lake_values(store, table) == {("a",): ("y", "o"), ("b",): ("x", "p")}


@pytest.mark.parametrize("upsert", ["append", pytest.param("merge", marks=pytest.mark.nightly)])
def test_the_text_that_names_the_folder_of_null_is_a_value_like_any_other(
    session: SparkSession, store: LocalObjectStore, upsert: Upsert
) -> None:
    table = table_of(name=f"shop.public.hive_{upsert}", partition_by=(PartitionBy(column="name"),))
    lake = spark_lake(session, store, 1000, upsert)
    lake.create_table(table)
    key = put_staged(store, table, {"id": [1], "name": [NULL_PARTITION], "age": [1]})
    work = Compaction(snapshot_id="s1", attempt="1", staged_keys=(key,), target_files=1, version=version(0))
    one = replace(work, partition=(("_cdc_name_value", NULL_PARTITION),))
    few, many = lake.compact(table, one), lake.compact(table, replace(work, attempt="2", target_files=2))
    assert [file.partition_values for file in (*few, *many)] == [(("_cdc_name_value", None),)] * 2
    lake.publish(table, LakePublication(snapshot_id="s1", files=few, fence_number=0))
    feed, texts = Feed(store=store, table=table), (None, NULL_PARTITION, "", "a")
    lake.upsert(table, feed.claim([event("i", 1, id_, name=text, age=1) for id_, text in enumerate(texts, 2)]))
    changes = [event("u", 2, 1, age=2), event("u", 2, 5, name=NULL_PARTITION), event("u", 2, 3, name="b")]
    lake.upsert(table, feed.claim([*changes, event("d", 2, 2)]))
    found = {row["id"]: (row["name"], row["_cdc_name_value"]) for row in lake_table_rows(store, table)}
    assert found == {1: (NULL_PARTITION, None), 3: ("b", "b"), 4: ("", None), 5: (NULL_PARTITION, None)}
    assert lake_values(store, table)[1,] == (NULL_PARTITION, 2)


@pytest.mark.parametrize("upsert", ["append", pytest.param("merge", marks=pytest.mark.nightly)])
def test_a_value_of_any_length_names_a_folder_that_a_file_system_takes(
    session: SparkSession, store: LocalObjectStore, upsert: Upsert
) -> None:
    name, texts = "n" * 63, ("%" * 60, "\U0001f600" * 300, "x" * 3000, "x" * 3001)
    schema = TableSchema(columns=(Column(name="id", type="int8"), Column(name=name, type="text")), key=("id",))
    table = table_of(schema, name=f"shop.public.long_{upsert}", partition_by=(PartitionBy(column=name),))
    lake = spark_lake(session, store, 1000, upsert)
    lake.create_table(table)
    key = put_staged(store, table, {"id": [0], name: [texts[2]]})
    work = Compaction(snapshot_id="s1", attempt="1", staged_keys=(key,), target_files=1, version=version(0))
    one = replace(work, partition=((f"_cdc_{name}_value", texts[2]),))
    few, many = lake.compact(table, one), lake.compact(table, replace(work, attempt="2", target_files=2))
    assert few[0].partition_values == many[0].partition_values
    lake.publish(table, LakePublication(snapshot_id="s1", files=few, fence_number=0))
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, id_, **{name: text}) for id_, text in enumerate(texts, 1)]))
    lake.upsert(table, feed.claim([event("u", 2, 0, **{name: texts[1]}), event("u", 2, 3)]))
    assert lake_values(store, table) == {
        (id_,): (text,) for id_, text in {0: texts[1], **dict(enumerate(texts, 1))}.items()
    }
    labels = {row["id"]: row[f"_cdc_{name}_value"] for row in lake_table_rows(store, table)}
    assert labels == {0: labels[2], **{id_: partition_label(text) for id_, text in enumerate(texts, 1)}}
    assert labels[1] == texts[0]
    assert labels[3] != labels[4]


def test_a_long_value_of_an_earlier_version_is_cut_when_its_row_is_written_again(
    session: SparkSession, store: LocalObjectStore
) -> None:
    """An earlier version wrote the whole value into the log, and made no folder of that name."""
    columns = (Column(name="id", type="int8", number=1), Column(name="name", type="text", number=2))
    before = TableSchema(columns=(*columns, Column(name="day", type="date", number=3)), key=("id",))
    after = TableSchema(columns=(*columns, Column(name="day", type="timestamp", number=3)), key=("id",))
    table = table_of(before, name="shop.public.earlier", partition_by=(PartitionBy(column="name"),))
    lake, text = spark_lake(session, store, 1000), "x" * 300
    lake.create_table(table)
    key = put_staged(store, table, {"id": [1, 2], "name": [text] * 2, "day": [date(2024, 1, 1)] * 2})
    work = Compaction(snapshot_id="s1", attempt="1", staged_keys=(key,), target_files=1, version=version(0))
    (file,) = lake.compact(table, replace(work, partition=(("_cdc_name_value", text),)))
    named = replace(file, partition_values=tuple((name, text) for name, _ in file.partition_values))
    lake.publish(table, LakePublication(snapshot_id="s1", files=(named,), fence_number=0))
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("u", 1, 1, name=text, day=datetime(2024, 1, 2))], schema=after))  # noqa: DTZ001
    labels = {row["id"]: row["_cdc_name_value"] for row in lake_table_rows(store, table)}
    assert labels == dict.fromkeys((1, 2), partition_label(text))


def test_an_error_says_that_the_name_of_a_data_partition_is_too_long(lake: SparkLake, store: LocalObjectStore) -> None:
    """It becomes the name of a folder, of which a file system takes 255 bytes. Spark itself says only what it wrote."""
    schema = TableSchema(columns=(Column(name="id", type="int8"), Column(name="n" * 250, type="text")), key=("id",))
    table = table_of(schema, name="shop.public.long", partition_by=(PartitionBy(column="n" * 250),))
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    with pytest.raises(LakeError, match=r"caused by java.io.IOException: Mkdirs failed to create"):
        lake.upsert(table, feed.claim([event("i", 1, 1, **{"n" * 250: "x"})]))


@pytest.mark.parametrize("upsert", ["append", pytest.param("merge", marks=pytest.mark.nightly)])
def test_a_data_partition_may_be_named_by_a_text_with_nul(
    session: SparkSession, store: LocalObjectStore, upsert: Upsert
) -> None:
    table, text = table_of(name=f"shop.public.nul_{upsert}", partition_by=(PartitionBy(column="name"),)), "a\0b"
    lake = spark_lake(session, store, 1000, upsert)
    lake.create_table(table)
    key = put_staged(store, table, {"id": [1, 2], "name": [text] * 2, "age": [1, 2]})
    work = Compaction(snapshot_id="s1", attempt="1", staged_keys=(key,), target_files=1, version=version(0))
    few = lake.compact(table, replace(work, partition=(("_cdc_name_value", text),)))
    many = lake.compact(table, replace(work, attempt="2", target_files=2))
    assert {file.partition_values for file in (*few, *many)} == {(("_cdc_name_value", partition_label(text)),)}
    lake.publish(table, LakePublication(snapshot_id="s1", files=few, fence_number=0))
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("u", 1, 1, age=3), event("i", 1, 3, name=text, age=1)]))
    assert lake_values(store, table) == {(1,): (text, 3), (2,): (text, 2), (3,): (text, 1)}
