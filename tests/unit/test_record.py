"""Versions and positions order as text like the numbers in them; names and schemas go both ways."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.record import (
    Column,
    TableName,
    TableSchema,
    decode_position,
    encode_position,
    encode_version,
)

POSITIONS = st.integers(0, 2**64 - 1)
VERSIONS = st.tuples(POSITIONS, st.integers(0, 2**32 - 1))
PARTS = st.text(min_size=1) | st.text('."a', min_size=1)


@given(VERSIONS, VERSIONS)
def test_versions_order_like_commit_position_then_ordinal(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (encode_version(*one) < encode_version(*other)) == (one < other)
    assert (encode_version(*one) == encode_version(*other)) == (one == other)


@given(POSITIONS, POSITIONS)
def test_positions_order_like_numbers_and_decode_to_themselves(one: int, other: int) -> None:
    assert (encode_position(one) < encode_position(other)) == (one < other)
    assert decode_position(encode_position(one)) == one


@given(VERSIONS)
def test_a_version_begins_with_its_position(version: tuple[int, int]) -> None:
    assert encode_version(*version).startswith(encode_position(version[0]) + "-")


@given(PARTS, PARTS, PARTS)
def test_a_table_name_goes_both_ways(database: str, schema: str, table: str) -> None:
    name = TableName(database=database, schema=schema, table=table)
    assert TableName.parse(str(name)) == name


@pytest.mark.parametrize(
    ("dotted", "parts"),
    [
        ('shop.public."a.b"', ("shop", "public", "a.b")),
        ('shop."my schema"."say ""hi"""', ("shop", "my schema", 'say "hi"')),
        ("shop.public.my table", ("shop", "public", "my table")),
        ("shop.public.Ünï", ("shop", "public", "Ünï")),
    ],
)
def test_a_part_may_be_quoted_as_in_sql(dotted: str, parts: tuple[str, str, str]) -> None:
    name = TableName.parse(dotted)
    assert (name.database, name.schema, name.table) == parts


def test_the_source_s_sql_quotes_whatever_a_name_holds() -> None:
    assert TableName(database="d", schema="s", table='a".b').sql == '"s"."a"".b"'


@pytest.mark.parametrize("dotted", ["", "a", "a.b", "a.b.c.d", "a..c", ".b.c", "a.b.", 'a.b."c', 'a.b.""', 'a.b."c"d'])
def test_any_other_form_of_name_is_refused(dotted: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form db\.schema\.table"):
        TableName.parse(dotted)


@given(st.lists(st.text(), min_size=1, unique=True))
def test_a_schema_survives_json(names: list[str]) -> None:
    schema = TableSchema(columns=tuple(Column(name=name, type="text") for name in names), key=(names[0],))
    assert TableSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert schema.names == tuple(names)
    assert schema.key_columns == (Column(name=names[0], type="text"),)


@pytest.mark.parametrize("document", [{"columns": "a", "key": []}, {"columns": [], "key": "a"}])
def test_what_is_no_schema_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="is not a table schema"):
        TableSchema.from_json(document)
