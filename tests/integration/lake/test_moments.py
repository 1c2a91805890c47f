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

from cdc_pipeline.areas import lake_key, staging_prefix
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.protocol import Compaction, LakePublication, LakeTable
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import arrow_schema
from tests.integration.lake.test_publication import published_table
from tests.support.delta_rows import seen
from tests.support.lake import Feed, event, lake_table_rows, table_of, version

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
    changes = [
        event("i", FENCE + 1, each["id"], **{name: value for name, value in each.items() if name != "id"})
        for each in inserted
    ]
    lake.upsert(table, feed.claim(changes))
    assert read_all(store, table) == [*snapshot, *inserted]
    lake.optimize(table)
    assert read_all(store, table) == [*snapshot, *inserted]
    assert kinds_of_moments(store, table) == {"INT64 microseconds"}


def read_all(store: LocalObjectStore, table: LakeTable) -> list[dict[str, Any]]:
    """By two readers that are not Spark: deltalake, and pyarrow, which reads the files as they are."""
    found = sorted(seen(lake_table_rows(store, table)), key=lambda each: int(each["id"]))
    names = list(table.schema.names)
    plain = pa.concat_tables([file.read(columns=names) for file in files_of(store, table)])
    assert plain.sort_by("id").to_pylist() == found
    return found
