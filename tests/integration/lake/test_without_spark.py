"""What the pipeline writes without Spark equals what Spark writes: new tables, and the lake file of few staged rows."""

import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key, staging_prefix
from cdc_pipeline.lake.compaction import compact
from cdc_pipeline.lake.delta_log import Action, DeltaLog
from cdc_pipeline.lake.few_rows import MOST_BYTES, compact_few
from cdc_pipeline.lake.new_table import create_plain_table
from cdc_pipeline.lake.protocol import Compaction, DataFile, LakePublication, LakeTable
from cdc_pipeline.lake.quoting import identifier, table_at
from cdc_pipeline.lake.repeated_ids import repeated_of_few, repeated_of_many
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.lake.table_ddl import create_sql
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.settings import PartitionBy
from cdc_pipeline.steps import no_step
from cdc_pipeline.types import arrow_schema
from tests.support.lake import NOW, lake_rows, table_of, version

MOMENT = datetime(2024, 2, 29, 23, 59, 59, 999_001, tzinfo=UTC)
VALUES: dict[str, tuple[str, list[Any]]] = {
    "key": ("int8", [3, 1, 2, 4]),
    "place": ("text", ["ü", "", None, "x" * 300]),
    "flag": ("boolean", [True, None, False, True]),
    "small": ("int2", [-32768, 32767, None, 0]),
    "number": ("int4", [-(2**31), 2**31 - 1, None, 0]),
    "real": ("float4", [0.5, float("nan"), None, float("-inf")]),
    "double": ("float8", [-0.0, float("inf"), None, 0.1]),
    "few_digits": ("numeric(9,2)", [Decimal("-1234567.89"), Decimal(0), None, Decimal("0.01")]),
    "digits": ("numeric(18,4)", [Decimal("-12345678901234.5678"), Decimal(0), None, Decimal("0.0001")]),
    "many_digits": ("numeric(38,10)", [Decimal("-1234567890123456789012345678.9"), Decimal(0), None, Decimal(1)]),
    "content": ("bytea", [b"", b"\x00\xff", None, b"a"]),
    "day": ("date", [date(1, 1, 1), date(9999, 12, 31), None, date(2024, 2, 29)]),
    "plain": ("timestamp", [MOMENT.replace(tzinfo=None), datetime(1, 1, 1), None, datetime(9999, 12, 31)]),  # noqa: DTZ001 as PostgreSQL's timestamp, without a zone
    "created_at": ("timestamptz", [MOMENT, MOMENT.replace(year=4), None, MOMENT.replace(year=9996)]),
    "labels": ("text[]", [["a", None], [], None, ["b"]]),
    "days": ("date[]", [[date(2024, 1, 1), None], [], None, [date(1, 1, 1)]]),
}
EVERY_TYPE = TableSchema(
    columns=tuple(Column(name=name, type=type_) for name, (type_, _) in VALUES.items()), key=("key",)
)
MAPPED = TableSchema(
    columns=(Column(name="the key", type="text"), Column(name="it", type="numeric(9,2)")), key=("the key",)
)


def stage(store: LocalObjectStore, table: LakeTable, rows: pa.Table, name: str) -> str:
    content = io.BytesIO()
    pq.write_table(rows, content)
    key = f"{staging_prefix(table.name, 's1')}/{name}.parquet"
    store.put_if_absent(key, content.getvalue())
    return key


def every_type() -> pa.Table:
    return pa.table({name: values for name, (_, values) in VALUES.items()}, arrow_schema(EVERY_TYPE))


def work_of(store: LocalObjectStore, table: LakeTable, *parts: pa.Table, **more: Any) -> Compaction:
    keys = tuple(stage(store, table, part, str(number)) for number, part in enumerate(parts))
    return Compaction(snapshot_id="s1", attempt="1", staged_keys=keys, target_files=1, version=version(100), **more)


def by_spark(session: SparkSession, store: LocalObjectStore, table: LakeTable, work: Compaction) -> DataFile:
    (file,) = compact(session, store, table, replace(work, attempt="by-spark"), no_step)
    return file


def without_spark(store: LocalObjectStore, table: LakeTable, work: Compaction) -> DataFile:
    written = compact_few(store, table, work, no_step)
    assert written is not None
    (file,) = written
    return file


def names_in(store: LocalObjectStore, file: DataFile) -> list[str]:
    return list(pq.read_schema(f"{store.filesystem()[1]}/{file.key}").names)


def described(store: LocalObjectStore, file: DataFile) -> list[tuple[object, ...]]:
    """Each column of the Parquet file: name, field id, types, and whether its values repeat."""
    with pq.ParquetFile(f"{store.filesystem()[1]}/{file.key}") as opened:
        fields = {field.name: (field.metadata or {}).get(b"PARQUET:field_id") for field in opened.schema_arrow}
        schema = opened.metadata.schema
        columns = [schema.column(number) for number in range(len(schema))]
    return [
        (
            each.path,
            fields[each.path.split(".")[0]],
            each.physical_type,
            str(each.logical_type),
            each.max_repetition_level,
        )
        for each in columns
    ]


@pytest.mark.parametrize("schema", [EVERY_TYPE, MAPPED], ids=["every type", "column mapping"])
def test_few_rows_become_the_file_that_spark_writes(
    session: SparkSession, lake: SparkLake, store: LocalObjectStore, schema: TableSchema
) -> None:
    table = table_of(schema)
    lake.create_table(table)
    rows = every_type() if schema is EVERY_TYPE else pa.table({"the key": ["b", "a"], "it": [Decimal(2), None]})
    rows = rows.cast(arrow_schema(schema))
    work = work_of(store, table, rows.slice(0, 1), rows.slice(1))
    spark, ours = by_spark(session, store, table, work), without_spark(store, table, work)
    assert described(store, ours) == described(store, spark)
    assert (ours.rows, ours.partition_values, json.loads(ours.stats)) == (spark.rows, (), json.loads(spark.stats))
    hashed = f"xxhash64({', '.join(map(identifier, names_in(store, spark)))})"
    hashes = [session.read.parquet(store.spark_url(file.key)).selectExpr(hashed).collect() for file in (ours, spark)]
    assert hashes[0] == hashes[1]
    lake.publish(table, LakePublication(snapshot_id="s1", files=(ours,), fence_number=0))
    url = store.spark_url(lake_key(table.name))
    keys = [row[0] for row in session.sql(f"SELECT `{schema.key[0]}` FROM {table_at(url)}").collect()]
    assert keys == sorted(rows[schema.key[0]].to_pylist())
    assert len(lake_rows(store, table)) == rows.num_rows


@pytest.mark.parametrize(
    ("partition_by", "value"),
    [(PartitionBy(column="created_at", unit="month"), "2024-02"), (PartitionBy(column="place"), "é b")],
)
def test_few_rows_of_a_data_partition_become_the_file_that_spark_writes(
    session: SparkSession, lake: SparkLake, store: LocalObjectStore, partition_by: PartitionBy, value: str
) -> None:
    columns = (
        Column(name="key", type="int8"),
        Column(name="place", type="text"),
        Column(name="created_at", type="date"),
    )
    table = table_of(TableSchema(columns=columns, key=("key",)), partition_by=(partition_by,))
    lake.create_table(table)
    rows = pa.table({"key": [2, 1], "place": ["é b"] * 2, "created_at": [date(2024, 2, 29)] * 2})
    work = work_of(store, table, rows.cast(arrow_schema(table.schema)), partition=((partition_by.lake_column, value),))
    spark, ours = by_spark(session, store, table, work), without_spark(store, table, work)
    assert described(store, ours) == described(store, spark)
    assert ours.partition_values == spark.partition_values == ((partition_by.lake_column, value),)
    assert json.loads(ours.stats) == json.loads(spark.stats)


@pytest.mark.parametrize("name", list(VALUES))
def test_an_id_that_is_staged_twice_is_the_one_that_spark_finds(
    session: SparkSession, store: LocalObjectStore, name: str
) -> None:
    """In one file and in two, of every type, also beside ids that are staged once. Some types are left to Spark."""
    column = Column(name=name, type=VALUES[name][0])
    table = table_of(TableSchema(columns=(column,), key=(name,)))
    distinct = every_type().select([name]).filter(pc.is_valid(pc.field(name)))
    first, rest = distinct.slice(0, 1), distinct.slice(1, 1)
    for number, (parts, expected) in enumerate((([first], 0), ([first, pa.concat_tables([rest, first])], 1))):
        at = replace(table, name=replace(table.name, table=f"t{number}"))
        keys = work_of(store, at, *parts).staged_keys
        assert len(repeated_of_many(session, store, at.schema, keys)) == expected
        few = repeated_of_few(store, at.schema, keys)
        is_left = pa.types.is_nested(first.schema.types[0]) or pa.types.is_floating(first.schema.types[0])
        assert few == (None if is_left else [(first[name][0].as_py(),)] * expected)


def test_spark_is_left_what_only_spark_can_do(store: LocalObjectStore) -> None:
    table = table_of(TableSchema(columns=(Column(name="key", type="int8"),), key=("key",)))
    assert create_plain_table(DeltaLog(store, lake_key(table.name)), table, lambda: NOW)
    many = work_of(store, table, pa.table({"key": np.arange(MOST_BYTES // 4)}))
    assert compact_few(store, table, many, no_step) is None
    few = work_of(store, replace(table, name=replace(table.name, table="few")), pa.table({"key": [1]}))
    assert compact_few(store, table, replace(few, target_files=2), no_step) is None
    by_double = replace(table, partition_by=(PartitionBy(column="key"),))
    assert compact_few(store, by_double, few, no_step) is None


def test_a_flipped_bit_in_any_page_is_found_when_the_file_is_read(store: LocalObjectStore) -> None:
    table = table_of(EVERY_TYPE)
    assert create_plain_table(DeltaLog(store, lake_key(table.name)), table, lambda: NOW)
    content = store.get(without_spark(store, table, work_of(store, table, every_type())).key)
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    for column in map(group.column, range(group.num_columns)):
        first = column.dictionary_page_offset or column.data_page_offset
        damaged = bytearray(content)
        damaged[first + column.total_compressed_size - 1] ^= 1
        with pytest.raises(OSError, match="CRC checksum verification failed"):
            pq.read_table(pa.BufferReader(damaged), page_checksum_verification=True)


def created(store: LocalObjectStore, table: LakeTable) -> tuple[Action, Action]:
    """The protocol and the metadata, as far as they do not differ from creation to creation."""
    log = DeltaLog(store, lake_key(table.name))
    metadata, protocol = log.newest("metaData", 0), log.newest("protocol", 0)
    metadata = {name: value for name, value in metadata.items() if name not in ("id", "createdTime")}
    return {name: sorted(value) if isinstance(value, list) else value for name, value in protocol.items()}, metadata | {
        "schemaString": json.loads(metadata["schemaString"])
    }


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("names", [("key", "day"), tuple(VALUES)], ids=["plain", "every type"])
def test_a_new_table_is_the_one_that_spark_creates(
    session: SparkSession, store: LocalObjectStore, names: tuple[str, ...], *, vectors: bool
) -> None:
    columns = tuple(
        Column(name=name, type=VALUES[name][0], number=number) for number, name in enumerate(names, start=1)
    )
    ours = replace(
        table_of(
            TableSchema(columns=columns, key=("key",), generation=3),
            partition_by=(PartitionBy(column="day", unit="month"),),
        ),
        deletion_vectors=vectors,
    )
    theirs = replace(ours, name=replace(ours.name, table="theirs"))
    assert create_plain_table(DeltaLog(store, lake_key(ours.name)), ours, lambda: NOW)
    session.sql(create_sql(theirs, store.spark_url(lake_key(theirs.name)))).collect()
    assert created(store, ours) == created(store, theirs)
    url = store.spark_url(lake_key(ours.name))
    session.sql(create_sql(ours, url)).collect()
    assert DeltaLog(store, lake_key(ours.name)).latest_version() == 0
    assert session.sql(f"SELECT * FROM {table_at(url)}").collect() == []


def test_a_table_with_column_mapping_is_left_to_spark(store: LocalObjectStore) -> None:
    table = table_of(MAPPED)
    assert not create_plain_table(DeltaLog(store, lake_key(table.name)), table, lambda: NOW)
    assert DeltaLog(store, lake_key(table.name)).latest_version() is None
