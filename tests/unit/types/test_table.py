"""Promises of the table of types."""

import re

import pyarrow as pa
import pytest

from cdc_pipeline.record import Column, TableSchema
from cdc_pipeline.types import TABLE, arrow_schema, canonical_name, debezium_column, parse_text, resolve
from tests.support.doc_pages import text_of

PAGE = text_of("docs/reference/types.md")


def rows_of(heading: str) -> list[list[str]]:
    """Of the page's table whose first line begins so."""
    lines = PAGE.split(f"\n| {heading} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names_in(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def test_the_page_lists_exactly_what_the_code_has() -> None:
    lines = rows_of("PostgreSQL | Arrow")
    on_page = [
        (names_in(names), arrow.strip("`"), spark.strip("`"), kept, unfit)
        for names, arrow, spark, kept, unfit in lines
        if re.fullmatch(r"(`[^`(\[]+`(, )?)+", names)
    ]
    assert on_page == [(rule.names, str(rule.arrow), rule.spark, rule.kept, rule.unfit) for rule in TABLE]
    assert len(lines) == len(TABLE) + 4


@pytest.mark.parametrize(("type_name", "printed", "arrives"), rows_of("type | the source prints"))
def test_each_value_of_the_page_arrives_as_it_says(type_name: str, printed: str, arrives: str) -> None:
    parsed = parse_text(pa.array([printed[1:-1]]), resolve(type_name.strip("`")))
    if parsed.unfit is None:
        assert str(parsed.values[0].as_py()) == arrives[1:-1]
    else:
        assert (parsed.unfit.to_pylist(), parsed.values.to_pylist(), arrives) == ([True], [None], "quarantined")


@pytest.mark.parametrize(("fields", "type_name"), [row for row in rows_of("field") if row[1].count("`") == 2])
def test_each_field_of_debezium_on_the_page_has_the_type_that_it_says(fields: str, type_name: str) -> None:
    for name in names_in(fields):
        kind = {"type": "string", "name": name} if "." in name else {"type": name}
        assert debezium_column({"field": "value", **kind}).type == type_name.strip("`")


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
