"""Moments of all years that the lake has, in files that every reader understands."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key, staging_prefix
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.lake.decay import EVERYTHING
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.protocol import Compaction, LakePublication, LakeTable
from cdc_pipeline.lake.quoting import table_at
from cdc_pipeline.lake.session import untuned_session
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import VERSION, Column, TableSchema
from cdc_pipeline.types import arrow_schema
from tests.integration.lake.test_publication import published_table
from tests.support.delta_rows import seen
from tests.support.lake import Feed, event, lake_table_rows, rows_by_spark, table_of, version

MOMENTS = TableSchema(
    columns=(
        Column(name="id", type="int8"),
        Column(name="zoned", type="timestamptz"),
        Column(name="local", type="timestamp"),
        Column(name="day", type="date"),
        Column(name="many", type="timestamptz[]"),
    ),
    key=("id",),
)
YEARS = (1, 1582, 1676, 1883, 1969, 2262, 9999)
FENCE = 7


def row(id_: int, year: int) -> dict[str, Any]:
    """The first or the last microsecond of a year."""
    first = datetime(year, 1, 1, tzinfo=UTC)
    zoned = first if id_ % 2 else datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    local = zoned.replace(tzinfo=None)
    return {"id": id_, "zoned": zoned, "local": local, "day": date(year, 10, 10), "many": [zoned, None]}


def without_id(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "id"}


def rows_of_years(first_id: int) -> list[dict[str, Any]]:
    return [row(first_id + place, year) for place, year in enumerate(sorted([*YEARS, *YEARS]))]


def publish(lake: SparkLake, store: LocalObjectStore, table: LakeTable, rows: Sequence[dict[str, Any]]) -> None:
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=arrow_schema(table.schema)), content)
    key = f"{staging_prefix(table.name, 's1')}/1.parquet"
    store.put_if_absent(key, content.getvalue())
    files = lake.compact(
        table,
        Compaction(snapshot_id="s1", attempt="1.1", staged_keys=(key,), target_files=1, version=version(0)),
    )
    lake.publish(
        table,
        LakePublication(snapshot_id="s1", files=files, fence_number=FENCE, table=published_table(table, files)),
    )


def files_of(store: LocalObjectStore, table: LakeTable) -> list[pq.ParquetFile]:
    """The files that the table has now."""
    log = DeltaLog(store, lake_key(table.name))
    latest = log.latest_version()
    assert latest is not None
    return [
        pq.ParquetFile(io.BytesIO(store.get(f"{lake_key(table.name)}/{path}"))) for path, _ in log.active_files(latest)
    ]


def kinds_of_moments(store: LocalObjectStore, table: LakeTable) -> set[str]:
    """Parquet's own types of all moments."""
    columns = [file.schema.column(place) for file in files_of(store, table) for place in range(len(file.schema))]
    return {
        f"{column.physical_type} {json.loads(column.logical_type.to_json()).get('timeUnit')}"
        for column in columns
        if column.path.split(".")[0] in {"zoned", "local", "many"}
    }


def test_moments_of_any_year_are_exact_for_other_readers_after_snapshot_merge_and_optimize(
    lake: SparkLake, store: LocalObjectStore
) -> None:
    table = replace(table_of(MOMENTS), table_uuid=str(UUID(int=7)))
    lake.create_table(table)
    snapshot, inserted = rows_of_years(1), rows_of_years(101)
    publish(lake, store, table, snapshot)
    assert read_all(store, table) == snapshot
    feed = Feed(store=store, table=table, next_number=FENCE + 1)
    changes = [event("i", FENCE + 1, each["id"], **without_id(each)) for each in inserted]
    lake.upsert(table, feed.claim(changes))
    assert read_all(store, table) == [*snapshot, *inserted]
    lake.optimize(table)
    assert read_all(store, table) == [*snapshot, *inserted]
    assert kinds_of_moments(store, table) == {"INT64 microseconds"}


def test_what_another_session_wrote_as_int96_is_exact_after_maintenance(
    lake: SparkLake, store: LocalObjectStore, session: SparkSession, spark_url: str
) -> None:
    table = table_of(MOMENTS, name="shop.public.int96", keeps_history=True)
    lake.create_table(table)
    feed, rows = Feed(store=store, table=table), rows_of_years(1)
    for part in (rows[::2], rows[1::2]):
        lake.upsert(table, feed.claim([event("i", 1, each["id"], **without_id(each)) for each in part]))
    optimize_by_defaults(spark_url, store, table)
    lake.upsert(table, feed.claim([event("d", 100, 1), event("u", 101, 2, day=rows[0]["day"])]))
    rows = [rows[1] | {"day": rows[0]["day"]}, *rows[2:]]
    history = by_number(rows_by_spark(session, store, history_of(table)))
    lake.optimize(table, EVERYTHING)
    assert read_all(store, table) == rows
    assert by_number(rows_by_spark(session, store, history_of(table))) == history
    for each in (table, history_of(table)):
        assert not has_int96(store, each), each.name


def optimize_by_defaults(spark_url: str, store: LocalObjectStore, table: LakeTable) -> None:
    session = untuned_session(spark_url)
    try:
        for each in (table, history_of(table)):
            session.sql(f"OPTIMIZE {table_at(store.spark_url(lake_key(each.name)))}").collect()
            assert has_int96(store, each), each.name
    finally:
        session.stop()


def has_int96(store: LocalObjectStore, table: LakeTable) -> bool:
    schemas = [file.schema for file in files_of(store, table)]
    return any(schema.column(place).physical_type == "INT96" for schema in schemas for place in range(len(schema)))


def by_number(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (int(row["id"]), str(row[VERSION])))


def read_all(store: LocalObjectStore, table: LakeTable) -> list[dict[str, Any]]:
    """By two readers that are not Spark: deltalake, and pyarrow, which reads the files as they are."""
    found = sorted(seen(lake_table_rows(store, table)), key=lambda each: int(each["id"]))
    names = list(table.schema.names)
    plain = pa.concat_tables([file.read(columns=names) for file in files_of(store, table)])
    assert plain.sort_by("id").to_pylist() == found
    return found
