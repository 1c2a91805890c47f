"""The worker finds the lake's rows of a small claim without Spark, and they are those that Spark finds."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key
from cdc_pipeline.lake.claim_rows import claim_rows
from cdc_pipeline.lake.claim_view import claim_shape, name_events, opened_views
from cdc_pipeline.lake.delta_log import DeltaLog
from cdc_pipeline.lake.few_events import FewEvents
from cdc_pipeline.lake.lake_files import FILE, IS_DELETE, IS_NEWER, LakeFiles
from cdc_pipeline.lake.protocol import ClaimWork, KeyRange, LakeTable
from cdc_pipeline.lake.schema_change import Fitted, latest_shape
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.lake.table_state import LakeTableStates
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import Column, TableSchema
from tests.support.lake import Feed, claim_of, event, move, rows_by_spark, table_of

FEW = 100
MOMENT = datetime(2024, 2, 29, 23, 59, 59, 999_001, tzinfo=UTC)
MIDNIGHT, MORNING = datetime.fromisoformat("2024-02-28"), datetime.fromisoformat("2024-02-28T05:00")
IDS: dict[tuple[str, ...], tuple[tuple[object, ...], ...]] = {
    ("int8",): ((1,), (-(2**40),), (7,)),
    ("numeric(20,0)",): ((Decimal(2**64 - 1),), (Decimal(-7),), (Decimal(2**63),)),
    ("numeric(9,2)", "int2"): ((Decimal("0.01"), 1), (Decimal("-70.5"), 1), (Decimal(10), 1)),
    ("int4", "text", "date"): (
        (1, "ü", date(2024, 2, 29)),
        (1, "u", date(2024, 2, 29)),
        (2, "", date(1, 1, 1)),
    ),
    ("timestamptz", "numeric(9,2)"): (
        (MOMENT, Decimal("0.01")),
        (MOMENT, Decimal("-0.01")),
        (MOMENT.replace(year=4), Decimal(1)),
    ),
    ("boolean", "bytea", "uuid", "int2"): (
        (True, b"", "0c1bb5a9-1a2b-4f60-8d53-1d1f70a2c5e4", 1),
        (True, b"\0", "0c1bb5a9-1a2b-4f60-8d53-1d1f70a2c5e4", 1),
        (False, b"\xff", "0c1bb5a9-1a2b-4f60-8d53-1d1f70a2c5e5", -1),
    ),
}
Found = set[tuple[str, tuple[int, ...], bool, bool]]


def keyed_by(types: tuple[str, ...]) -> LakeTable:
    ids = tuple(Column(name=f".id {number}", type=type_) for number, type_ in enumerate(types))
    return table_of(TableSchema(columns=(*ids, Column(name="name", type="text")), key=tuple(each.name for each in ids)))


def files_of(store: LocalObjectStore, table: LakeTable) -> tuple[LakeFiles, Fitted]:
    log = DeltaLog(store, lake_key(table.name))
    version, shape = log.latest_version() or 0, latest_shape(log, table)
    columns = tuple((column.name, column.type) for column in shape.columns)
    files = LakeFiles(store=store, table=table, state=LakeTableStates().at(log, version), columns=columns)
    return files, Fitted(table=table, shape=shape, version=version)


def without_spark(store: LocalObjectStore, table: LakeTable, work: ClaimWork, *, most_rows: int = FEW) -> Found | None:
    files, fitted = files_of(store, table)
    few = FewEvents(files=files, fitted=fitted, work=work, key=table.schema.key, most_rows=most_rows)
    found = few.found()
    return None if found is None else plain(found)


def by_spark(session: SparkSession, store: LocalObjectStore, table: LakeTable, work: ClaimWork) -> Found:
    files, fitted = files_of(store, table)
    shape = claim_shape(table, work, fitted.shape)
    with opened_views(session) as views:
        name_events(views, store, table, work, fitted.shape, shape)
        few = FewEvents(files=files, fitted=fitted, work=work, key=table.schema.key, most_rows=0)
        rows = claim_rows(views, files, shape, table, work, in_general=False, few_events=few)
        return plain(session.sql(str(rows.found)).toArrow())


def plain(found: pa.Table) -> Found:
    """Spark and the worker write the URLs of files differently."""
    names = [url.rpartition("/")[2] for url in found[FILE].to_pylist()]
    rows = [tuple(sorted(each)) for each in found["rows"].to_pylist()]
    return set(zip(names, rows, found[IS_DELETE].to_pylist(), found[IS_NEWER].to_pylist(), strict=True))


@pytest.mark.parametrize("types", IDS, ids=" ".join)
def test_the_worker_finds_what_spark_finds(
    session: SparkSession, lake: SparkLake, store: LocalObjectStore, tmp_path: Path, types: tuple[str, ...]
) -> None:
    table, (first, second, third) = keyed_by(types), IDS[types]
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 10, *first, name="a"), event("i", 30, *second, name="b")]))
    lake.upsert(table, feed.claim([event("i", 20, *third, name="c"), event("u", 40, *first, name="d")]))
    changes = [
        *(event("u", 41, *first, name="e"), event("d", 42, *first)),
        event("u", 29, *second, name="older than the lake's row"),
        *(event("u", 43, *third, name="f"), event("u", 44, *third, name="g")),
    ]
    work = feed.claim(changes)
    found = without_spark(store, table, work)
    assert found == by_spark(session, store, table, work)
    assert found is not None
    assert len(found) == 5
    assert ("", (1,), True, True) in found
    for path in (tmp_path / "bucket" / lake_key(table.name)).rglob("*.parquet"):
        pq.write_table(pq.read_table(path), path, row_group_size=1, use_deprecated_int96_timestamps=True)
    assert without_spark(store, table, work) == found, "some row groups are not searched"


@pytest.mark.parametrize("type_", ["int8", "numeric(20,0)", "numeric(9,2)"])
def test_row_groups_without_an_id_of_the_claim_are_not_read(
    lake: SparkLake, store: LocalObjectStore, tmp_path: Path, type_: str
) -> None:
    table = keyed_by((type_,))
    lake.create_table(table)
    feed, (low, high) = Feed(store=store, table=table), (1, 9) if type_ == "int8" else (Decimal(-9), Decimal(1))
    lake.upsert(table, feed.claim([event("i", 1, low, name="a"), event("i", 2, high, name="b")]))
    (path,) = (tmp_path / "bucket" / lake_key(table.name)).rglob("claim-*/*.parquet")
    pq.write_table(pq.read_table(path), path, row_group_size=1, write_page_checksum=True)
    ids, content = pq.read_metadata(path).row_group(0).column(0), bytearray(path.read_bytes())
    content[(ids.dictionary_page_offset or ids.data_page_offset) + ids.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    assert without_spark(store, table, feed.claim([event("u", 3, high, name="c")])) is not None
    assert without_spark(store, table, feed.claim([event("u", 4, low, name="c")])) is None, "the damaged one is"


def test_without_rows_of_these_ids_only_the_deletes_are_counted(lake: SparkLake, store: LocalObjectStore) -> None:
    table = table_of()
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    work = feed.claim([event("d", 1, 7), event("i", 1, 8, name="a", age=1)], ranges=(KeyRange(7, 8),))
    assert without_spark(store, table, work) == {("", (1,), True, True)}


def test_a_date_as_an_id_is_the_midnight_of_a_lake_that_has_times_by_now(
    session: SparkSession, lake: SparkLake, store: LocalObjectStore
) -> None:
    table = keyed_by(("timestamp",))
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, MORNING, name="a"), event("i", 2, MIDNIGHT, name="b")]))
    work = feed.claim([event("u", 3, MIDNIGHT.date(), name="c")], schema=keyed_by(("date",)).schema)
    found = without_spark(store, table, work)
    assert found == by_spark(session, store, table, work)
    assert sum(len(rows) for name, rows, *_ in found or () if name) == 1


def test_a_claim_may_change_an_id_first_as_a_date_and_then_as_a_time(
    session: SparkSession, lake: SparkLake, store: LocalObjectStore
) -> None:
    by_day, table = keyed_by(("date",)), keyed_by(("timestamp",))
    lake.create_table(table)
    feed, later = Feed(store=store, table=table), timedelta(days=1)
    lake.upsert(table, feed.claim([event("i", 1, MORNING, name="a"), event("i", 2, MIDNIGHT, name="b")]))
    first = move(3, (MIDNIGHT.date(),), ((MIDNIGHT + later).date(),))
    second = move(4, (MORNING,), (MORNING + later,))
    slices = [feed.slice(first, schema=by_day.schema), feed.slice(second)]
    lake.upsert(table, claim_of(slices, [*first, *second], slices[0].number, slices[1].number))
    shown = {row[".id 0"]: row["name"] for row in rows_by_spark(session, store, table)}
    assert shown == {MIDNIGHT + later: "b", MORNING + later: "a"}


def test_spark_is_left_what_is_large_or_damaged_or_has_ids_that_it_compares_otherwise(
    lake: SparkLake, store: LocalObjectStore, tmp_path: Path
) -> None:
    table = table_of()
    lake.create_table(table)
    feed = Feed(store=store, table=table)
    lake.upsert(table, feed.claim([event("i", 1, 7, name="a", age=1)]))
    work = feed.claim([event("u", 2, 7, name="b", age=1), event("u", 3, 7, name="c", age=1)])
    assert without_spark(store, table, work, most_rows=1) is None
    assert without_spark(store, table, work) is not None
    (file,) = (tmp_path / "bucket" / lake_key(table.name)).rglob("claim-*/*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    assert without_spark(store, table, work) is None
    by_double = table_of(TableSchema(columns=(Column(name="id", type="float8"),), key=("id",)), name="shop.public.real")
    lake.create_table(by_double)
    assert without_spark(store, by_double, Feed(store=store, table=by_double).claim([event("i", 1, 0.5)])) is None
