"""Promises of type names in settings: PostgreSQL's spellings are understood, others refused."""

import pytest

from cdc_pipeline.errors import UsageError
from cdc_pipeline.types import TABLE, declared_type


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("int", "int4"),
        ("INTEGER", "int4"),
        ("bigserial", "int8"),
        ("bool", "boolean"),
        ("double  precision", "float8"),
        ("float(24)", "float4"),
        ("float(25)", "float8"),
        ("decimal", "numeric"),
        ("numeric(10)", "numeric(10,0)"),
        ("numeric(10, -2)", "numeric(10,-2)"),
        ("character varying (20)", "varchar(20)"),
        ("char(3)", "bpchar(3)"),
        ('"char"', "char"),
        ("bit varying(5)", "varbit(5)"),
        ("timestamp (3) with time zone", "timestamptz(3)"),
        ("timestamp without time zone", "timestamp"),
        ("time with time zone", "timetz"),
        ("int[]", "int4[]"),
        ("text[3][]", "text[]"),
        ("numeric(5,2) array", "numeric(5,2)[]"),
        ("shop.Mood", "shop.Mood"),
        ("public.geometry(Point,4326)", "public.geometry(Point,4326)"),
        ("odd (schema.mood", "odd (schema.mood"),
        ("citext", "citext"),
    ],
)
def test_each_spelling_of_a_type_becomes_its_canonical_name(written: str, canonical: str) -> None:
    assert declared_type(written) == canonical
    assert declared_type(canonical) == canonical or canonical == "char"


def test_every_name_of_the_table_may_be_declared() -> None:
    for name in (name for rule in TABLE for name in rule.names):
        assert declared_type(name) == {"char": "bpchar"}.get(name, name)


BAD = ("", "interger", "numeric(", "text; drop", "int4 int4", "numeric(12.2)", "numeric(12.2)[]", "timestamp(3.0)")
ODD_MODIFIERS = ("numeric(1,2,3)", "numeric(12,)", "numeric(1 2)", "bit(1,2)", "varchar(10,2)")


@pytest.mark.parametrize("written", BAD + ODD_MODIFIERS)
def test_a_name_that_is_no_type_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match="expected a type of PostgreSQL"):
        declared_type(written)


def test_a_mistyped_name_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="did you mean integer"):
        declared_type("interger")
