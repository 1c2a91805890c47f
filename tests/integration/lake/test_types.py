"""Every type of the page: source text -> Arrow -> slice file -> Delta -> what Spark reads, unchanged."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from cdc_pipeline.areas import lake_key, slice_key
from cdc_pipeline.lake.protocol import ClaimWork, LakeTable, SliceInput
from cdc_pipeline.lake.spark_lake import SparkLake
from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.record import COMMIT_TIME, OPERATION, VERSION, Column, TableSchema
from cdc_pipeline.slice_file import event_schema, write_slice_file
from cdc_pipeline.types import TABLE, parse_text, resolve
from tests.support.lake import NOW, table_of, version
from tests.support.source_values import shown

STAMPS = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1582-10-10 12:00:00", "1883-11-18 12:03:58.5")
BY_ARROW: dict[pa.DataType, tuple[str, ...]] = {
    pa.bool_(): ("t", "f"),
    pa.int16(): ("-32768", "32767"),
    pa.int32(): ("-2147483648", "2147483647"),
    pa.int64(): ("-9223372036854775808", "9223372036854775807"),
    pa.float32(): ("NaN", "Infinity", "-0", "1e-45"),
    pa.float64(): ("NaN", "-Infinity", "-0", "5e-324"),
    pa.binary(): ("\\x", "\\xdeadbeef", "\\x00"),
    pa.date32(): ("0001-01-01", "9999-12-31", "1582-10-10", "1500-02-28"),
    pa.timestamp("us"): STAMPS,
    pa.timestamp("us", "UTC"): tuple(f"{text}+00" for text in STAMPS),
    pa.string(): ("", "NULL", " \r\n\ufeff😀 ", "a\0b"),
}
OTHERS: dict[str, tuple[str, ...]] = {
    "numeric(1,0)": ("9", "-9"),
    "numeric(18,4)": ("99999999999999.9999", "-0.0001"),
    "numeric(38,0)": ("9" * 38, "-" + "9" * 38),
    "numeric(38,38)": ("0." + "9" * 38, "-0." + "0" * 37 + "1"),
    "numeric(50,2)": ("9" * 48 + ".99", "NaN"),
    "shop.mood": ("added later", ""),
    "int4[]": ("{}", "{1,NULL}", "{NULL}"),
    "text[]": ('{NULL,"NULL",""}', "{}"),
    "numeric(5,2)[]": ("{1.50,NULL}", "{}"),
    "timestamptz[]": ('{"0001-01-01 00:00:00+00",NULL}',),
    "bytea[]": ('{"\\\\x","\\\\x00"}',),
    "boolean[]": ("{t,NULL,f}",),
    "float8[]": ("{NaN,-0,NULL}",),
}
TEXTS = {**{rule.names[0]: BY_ARROW[arrow] for arrow, rule in {each.arrow: each for each in TABLE}.items()}, **OTHERS}
"""A column for each type of Arrow: below it, types that share one are not told apart."""
ROWS = 1 + max(map(len, TEXTS.values()))
SCHEMA = TableSchema(
    columns=(Column(name="id", type="int8"), *(Column(name=f"of {name}", type=name) for name in TEXTS)), key=("id",)
)
LARGE_COLUMN, LARGE = "shop.mood", "x" * (16 << 20)


def source_rows() -> dict[str, pa.Array]:
    """The first row is all NULL, the last one has a large text."""
    columns = {"id": pa.array(range(ROWS), pa.int64())}
    for name, texts in TEXTS.items():
        filled: list[str | None] = [None, *texts, *[None] * (ROWS - 1 - len(texts))]
        if name == LARGE_COLUMN:
            filled[-1] = LARGE
        parsed = parse_text(pa.array(filled, pa.string()), resolve(name))
        assert parsed.unfit is None
        columns[f"of {name}"] = parsed.values
    return columns


def claim(store: LocalObjectStore, table: LakeTable, columns: dict[str, pa.Array]) -> ClaimWork:
    own = {
        OPERATION: pa.array(["i"] * ROWS),
        VERSION: pa.array([version(row + 1) for row in range(ROWS)]),
        COMMIT_TIME: pa.array([NOW] * ROWS, pa.timestamp("us", "UTC")),
    }
    fields = event_schema(SCHEMA)
    arrays = [{**own, **columns}.get(field.name, pa.nulls(ROWS, field.type)) for field in fields]
    file = write_slice_file(pa.table(arrays, fields), SCHEMA)
    key = slice_key(table.name, 0, "1.parquet")
    store.put_if_absent(key, file.content)
    slice_ = SliceInput(number=1, slice_id="slice-1", key=key, rows=file.rows, sha256=file.sha256, schema=SCHEMA)
    return ClaimWork(claim_id="claim-1", first_number=1, last_number=1, slices=(slice_,))


def test_every_type_comes_back_from_the_lake_as_it_left_the_source_and_verify_sees_no_difference(
    lake: SparkLake, session: SparkSession, store: LocalObjectStore, tmp_path: Path
) -> None:
    table = table_of(SCHEMA)
    lake.create_table(table)
    columns = source_rows()
    assert lake.upsert(table, claim(store, table, columns)).counts.inserted == ROWS
    frame = session.read.format("delta").load(store.spark_url(lake_key(table.name)))
    found = frame.orderBy("id").toArrow()
    types = [frame.schema[column.name].dataType.simpleString() for column in SCHEMA.columns]
    assert types == [resolve(column.type).spark.lower() for column in SCHEMA.columns]
    for name, column in columns.items():
        assert shown(found[name].to_pylist()) == shown(column.to_pylist()), name
    pq.write_table(pa.table(columns), tmp_path / "source.parquet")
    store.put_file_if_absent("source.parquet", tmp_path / "source.parquet")
    lake_version = lake.read_version(table)
    assert lake_version is not None
    compared = lake.compare(table, "source.parquet", lake_version)
    assert (compared.source_rows, compared.lake_rows, compared.differing_rows) == (ROWS, ROWS, 0)
