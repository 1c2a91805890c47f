"""What other readers see of a lake table: docs/how-to/read-the-lake.md has the same in a table."""

import json
import runpy
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.protocol import LakeTable
from cdc_pipeline.lake.reader_view import reader_view_sql
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.launcher.jars import DELTA, jars_of, present_jars, read_lock
from cdc_pipeline.launcher.project import JARS, JARS_LOCK
from cdc_pipeline.launcher.spark import spark_home
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.settings import PartitionBy
from tests.support.delta_rows import delta_rows, delta_url, seen
from tests.support.doc_pages import blocks
from tests.support.lake import Feed, event, table_of
from tests.support.shapes import columns
from tests.support.spark import QUICK_PROGRAM

PLAIN, STRANGE = ("name", "Größe", "at"), ("full name", "Größe", "at, when")
KERNEL_READER = Path(__file__).parents[2] / "support" / "KernelReader.java"
"""Of a program that lives for seconds."""
PAGE = "docs/how-to/read-the-lake.md"
NAMES = {False: "a b/é%", True: "plain"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
Rows = list[dict[str, Any]]


def by_pandas(url: str) -> Rows:
    rows: Rows = DeltaTable(url).to_pandas(types_mapper=None).to_dict("records")
    return [
        {name: value.to_pydatetime() if name.startswith("at") else value for name, value in row.items()} for row in rows
    ]


def by_pyarrow(url: str) -> Rows:
    rows: Rows = DeltaTable(url).to_pyarrow_table().to_pylist()
    return rows


def by_duckdb(url: str) -> Rows:
    return _by_duckdb(DeltaTable(url).to_pyarrow_dataset())


def by_duckdb_and_deltalake(url: str) -> Rows:
    found = QueryBuilder().register("found", DeltaTable(url)).execute("SELECT * FROM found").read_all()
    return _by_duckdb(pa.table(found))


def _by_duckdb(found: Any) -> Rows:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("found", found)
        rows: Rows = connection.sql("SELECT * FROM found").to_arrow_table().to_pylist()
    return rows


def by_polars(url: str) -> Rows:
    rows: Rows = pl.read_delta(url).to_dicts()
    return rows


def by_kernel(url: str) -> Rows:
    """Delta's own library for readers that are not Spark, in Java."""
    jars = [*present_jars(JARS, jars_of(read_lock(JARS_LOCK), [DELTA])), spark_home() / "jars" / "*"]
    command = ["java", *QUICK_PROGRAM, "-cp", ":".join(map(str, jars)), str(KERNEL_READER), url.removeprefix("file://")]
    found = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
    assert found.returncode == 0, found.stderr
    rows: Rows = [json.loads(line) for line in found.stdout.splitlines()]
    return [
        {name: EPOCH + timedelta(microseconds=value) if name.startswith("at") else value for name, value in row.items()}
        for row in rows
    ]


READERS: dict[str, Callable[[str], Rows]] = {
    "deltalake query": delta_rows,
    "deltalake to_pandas": by_pandas,
    "deltalake to_pyarrow_table": by_pyarrow,
    "duckdb over deltalake's dataset": by_duckdb,
    "duckdb over deltalake's query": by_duckdb_and_deltalake,
    "polars": by_polars,
    "kernel": by_kernel,
}
QUERIES = {"deltalake query", "duckdb over deltalake's query", "kernel"}
REFUSE = {"mapped": READERS.keys() - QUERIES, "vectors": READERS.keys() - QUERIES - {"polars"}, "plain": set[str]()}


def filled(lake: SparkLake, store: LocalObjectStore, names: tuple[str, str, str], *, vectors: bool) -> LakeTable:
    """With deletion vectors the data partitions have plain names: polars misses the vectors of others."""
    types = ("text", "int4", "timestamptz")
    known = tuple(
        Column(name=name, type=type_, number=number)
        for number, (name, type_) in enumerate(zip(("id", *names), ("int8", *types), strict=True), 1)
    )
    table = table_of(
        TableSchema(columns=known, key=("id",)),
        name="shop.My Schema.Café 50% t!ble",
        deletes="soft",
        partition_by=(PartitionBy(column=names[0]),),
    )
    table = replace(table, deletion_vectors=vectors)
    lake.create_table(table)
    feed, (text, number, moment) = Feed(store=store, table=table), names
    values: list[dict[str, Any]] = [
        {text: NAMES[vectors], number: 1, moment: EARLIEST},
        {text: NAMES[vectors], number: 2, moment: LATEST},
        {text: "c", number: 3, moment: EARLIEST},
    ]
    lake.upsert(table, feed.claim([event("i", id_, id_, **row) for id_, row in enumerate(values, 1)]))
    lake.upsert(table, feed.claim([event("u", 11, 1, **{number: 11}), event("d", 12, 3)]))
    return table


def shown(rows: Rows) -> Rows:
    return sorted(seen(rows), key=lambda row: int(row["id"]))


@pytest.mark.parametrize(
    ("names", "vectors", "kind"), [(PLAIN, False, "plain"), (PLAIN, True, "vectors"), (STRANGE, False, "mapped")]
)
def test_every_reader_sees_the_rows_of_its_source_or_refuses_the_table(
    lake: SparkLake,
    session: SparkSession,
    store: LocalObjectStore,
    names: tuple[str, str, str],
    *,
    vectors: bool,
    kind: str,
) -> None:
    table = filled(lake, store, names, vectors=vectors)
    expected = [
        dict(zip(("id", *names), (1, NAMES[vectors], 11, EARLIEST), strict=True)),
        dict(zip(("id", *names), (2, NAMES[vectors], 2, LATEST), strict=True)),
    ]
    frame = session.read.format("delta").load(store.spark_url(lake_key(table.name)))
    assert shown(frame.toArrow().to_pylist()) == expected
    url = delta_url(store, lake_key(table.name))
    for name, read in READERS.items():
        if name in REFUSE[kind]:
            with pytest.raises(DeltaProtocolError):
                read(url)
        else:
            assert shown(read(url)) == expected, name


def test_a_view_for_readers_has_the_source_s_columns_and_rows_alone(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore
) -> None:
    table = filled(lake, store, PLAIN, vectors=False)
    feed = Feed(store=store, table=table, next_number=3)
    schema = columns("id int8 1", "name text 2", "Age int4 3")
    lake.upsert(table, feed.claim([event("u", 21, 2, Age=22)], schema=schema))
    url = store.spark_url(lake_key(table.name))
    session.sql(reader_view_sql(table, url, lake.read_columns(table))).collect()
    found = session.table("My_Schema_Caf__50__t_ble").orderBy("id").toArrow()
    assert found.to_pylist() == [{"id": 1, "name": "a b/é%", "Age": 11}, {"id": 2, "name": "a b/é%", "Age": 22}]
    session.sql("DROP VIEW My_Schema_Caf__50__t_ble").collect()


def test_the_lines_of_the_page_give_what_the_view_gives(
    lake: SparkLake, store: LocalObjectStore, tmp_path: Path
) -> None:
    table = filled(lake, store, STRANGE, vectors=True)
    feed = Feed(store=store, table=table, next_number=3)
    schema = columns("id int8 1", "Größe int4 3")
    lake.upsert(table, feed.claim([event("u", 21, 2, Größe=22)], schema=schema))
    (lines,) = blocks(PAGE, "python")
    program = tmp_path / "page.py"
    program.write_text(lines)
    known = runpy.run_path(str(program), init_globals={"url": delta_url(store, lake_key(table.name))})
    assert shown(known["rows"].to_pylist()) == [{"id": 1, "Größe": 11}, {"id": 2, "Größe": 22}]


def test_a_table_that_may_have_vectors_no_longer_is_written_anew_and_read_by_all(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    table = filled(lake, store, PLAIN, vectors=True)
    feed = Feed(store=store, table=table, next_number=3)
    lake.upsert(replace(table, deletion_vectors=False), feed.claim([event("u", 21, 2, Größe=22)]))
    found = shown(by_pandas(delta_url(store, lake_key(table.name))))
    assert [(row["id"], row["Größe"]) for row in found] == [(1, 11), (2, 22)]
    lake.upsert(table, feed.claim([event("u", 31, 2, Größe=32)]))
    assert [row["Größe"] for row in shown(by_polars(delta_url(store, lake_key(table.name))))] == [11, 32]
