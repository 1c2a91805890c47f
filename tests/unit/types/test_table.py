"""Promises of the table of types."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import TABLE, arrow_schema, canonical_name, resolve, spark_ddl

PAGE = Path(__file__).parents[3] / "docs" / "types.md"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n ").split("|")]


def test_the_page_lists_exactly_what_the_code_has() -> None:
    lines = [cells(line) for line in PAGE.read_text().splitlines() if line.startswith("|")][2:]
    on_page = [
        (tuple(re.findall(r"`([^`]+)`", names)), arrow.strip("`"), spark.strip("`"), unfit)
        for names, arrow, spark, unfit in lines
        if re.fullmatch(r"(`[^`(]+`(, )?)+", names)
    ]
    assert on_page == [(rule.names, str(rule.arrow), rule.spark, rule.unfit) for rule in TABLE]
    assert len(lines) == len(TABLE) + 4


def test_no_type_is_listed_twice() -> None:
    names = [name for rule in TABLE for name in rule.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "arrow", "spark"),
    [
        ("boolean", pa.bool_(), "BOOLEAN"),
        ("int2", pa.int16(), "SMALLINT"),
        ("int4", pa.int32(), "INT"),
        ("oid", pa.int64(), "BIGINT"),
        ("numeric", pa.string(), "STRING"),
        ("numeric(12,2)", pa.decimal128(12, 2), "DECIMAL(12,2)"),
        ("numeric(38,38)", pa.decimal128(38, 38), "DECIMAL(38,38)"),
        ("numeric(39,2)", pa.string(), "STRING"),
        ("numeric(5,-2)", pa.string(), "STRING"),
        ("numeric(2,3)", pa.string(), "STRING"),
        ("varchar(20)", pa.string(), "STRING"),
        ("timestamp(3)", pa.timestamp("us"), "TIMESTAMP_NTZ"),
        ("timestamptz", pa.timestamp("us", "UTC"), "TIMESTAMP"),
        ("shop.mood", pa.string(), "STRING"),
        ("shop.date", pa.string(), "STRING"),
        ("int4[]", pa.list_(pa.int32()), "ARRAY<INT>"),
        ("numeric(5,2)[]", pa.list_(pa.decimal128(5, 2)), "ARRAY<DECIMAL(5,2)>"),
        ("shop.mood[]", pa.list_(pa.string()), "ARRAY<STRING>"),
    ],
)
def test_a_name_resolves_to_one_arrow_and_one_delta_type(name: str, arrow: pa.DataType, spark: str) -> None:
    resolved = resolve(name)
    assert (resolved.name, resolved.arrow, resolved.spark) == (name, arrow, spark)
    assert spark_ddl(name) == spark


@pytest.mark.parametrize(
    ("namespace", "name", "modifier", "canonical"),
    [
        ("pg_catalog", "bool", -1, "boolean"),
        ("pg_catalog", "int4", -1, "int4"),
        ("pg_catalog", "numeric", -1, "numeric"),
        ("pg_catalog", "numeric", (12 << 16 | 2) + 4, "numeric(12,2)"),
        ("pg_catalog", "numeric", (5 << 16 | (-2 & 0x7FF)) + 4, "numeric(5,-2)"),
        ("pg_catalog", "numeric", (1000 << 16 | 1000) + 4, "numeric(1000,1000)"),
        ("pg_catalog", "varchar", 24, "varchar"),
        ("shop", "date", -1, "shop.date"),
    ],
)
def test_the_catalogue_s_name_becomes_the_canonical_one(
    namespace: str, name: str, modifier: int, canonical: str
) -> None:
    assert canonical_name(namespace=namespace, name=name, modifier=modifier) == canonical


def test_the_schema_of_a_table_keeps_the_source_s_order() -> None:
    table = TableSchema(columns=(Column(name="b", type="int8"), Column(name="a", type="text")), key=("b",))
    assert arrow_schema(table) == pa.schema([("b", pa.int64()), ("a", pa.string())])
