"""Promises of Debezium's fields and JSON values: the source's own type and value, or a mark that it does not fit."""

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdc_pipeline.errors import UsageError
from cdc_pipeline.record import Column
from cdc_pipeline.types import debezium_column, declared_type, is_placeholder, parse_debezium, resolve

UNFIT = object()
DECIMAL = "org.apache.kafka.connect.data.Decimal"
CREATED = datetime(2024, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)

RECORDED: tuple[tuple[dict[str, Any], str, object, object], ...] = (
    ({"type": "int64", "optional": False, "field": "id"}, "int8", 1, 1),
    ({"type": "string", "optional": True, "field": "customer"}, "text", "c1", "c1"),
    ({"type": "string", "optional": True, "field": "amount"}, "text", "1.25", "1.25"),
    ({"type": "int32", "optional": True, "field": "qty"}, "int4", 1, 1),
    (
        {"type": "array", "items": {"type": "string", "optional": True}, "optional": True, "field": "tags"},
        "text[]",
        ["x", "y"],
        ["x", "y"],
    ),
    ({"type": "string", "name": "io.debezium.data.Json", "field": "meta"}, "json", '{"k": 1}', '{"k": 1}'),
    ({"type": "bytes", "optional": True, "field": "payload"}, "bytea", "AP8=", b"\x00\xff"),
    (
        {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "field": "created", "default": "1970-01-01T00Z"},
        "timestamptz",
        "2024-01-01T00:00:00.123456Z",
        CREATED,
    ),
    (
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "upd"},
        "timestamp",
        1704067200123456,
        CREATED.replace(tzinfo=None),
    ),
    (
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "upd"},
        "timestamp",
        9223372036825200000,
        UNFIT,
    ),
    ({"type": "int32", "name": "io.debezium.time.Date", "field": "d"}, "date", 19723, date(2024, 1, 1)),
    ({"type": "int32", "name": "io.debezium.time.Date", "field": "d"}, "date", -2147472692, UNFIT),
    (
        {"type": "string", "name": "io.debezium.data.Uuid", "field": "u"},
        "uuid",
        "00000000-0000-0000-0000-000000000001",
        "00000000-0000-0000-0000-000000000001",
    ),
    ({"type": "boolean", "optional": True, "field": "b"}, "boolean", True, True),
    ({"type": "double", "optional": True, "field": "f8"}, "float8", 1.5, 1.5),
)
"""Field, its type here, a value, and what it is: from a recording of Debezium 3.4 with schemas."""


def parsed(value: object, type_name: str, field: Mapping[str, Any] | None = None) -> object:
    result = parse_debezium([None, value], type_name, field)
    result.values.validate(full=True)
    assert result.values.type == resolve(declared_type(type_name)).arrow
    assert result.values[0].as_py() is None
    marks = [False, False] if result.unfit is None else result.unfit.to_pylist()
    assert marks[0] is False
    return UNFIT if marks[1] else result.values[1].as_py()


@pytest.mark.parametrize(("field", "type_name", "value", "arrived"), RECORDED)
def test_what_was_recorded_arrives_typed(
    field: Mapping[str, Any], type_name: str, value: object, arrived: object
) -> None:
    assert debezium_column(field) == Column(name=field["field"], type=type_name)
    assert parsed(value, type_name, field) == arrived


@pytest.mark.parametrize(
    ("type_name", "value", "arrived"),
    [
        ("int", 2**31 - 1, 2**31 - 1),
        ("int", 2**31, UNFIT),
        ("int", "abc", UNFIT),
        ("int", True, UNFIT),
        ("int", Decimal("1.5"), UNFIT),
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("boolean", 1, True),
        ("boolean", "yes", UNFIT),
        ("real", Decimal("3.4028235E+38"), 3.4028234663852886e38),
        ("real", 1e300, UNFIT),
        ("double precision", "Infinity", math.inf),
        ("double precision", "1e999", UNFIT),
        ("numeric(12,2)", "1.25", Decimal("1.25")),
        ("numeric(12,2)", Decimal("0.1"), Decimal("0.10")),
        ("numeric(12,2)", 3, Decimal(3)),
        ("numeric(12,2)", {"scale": 3, "value": "BNI="}, UNFIT),
        ("numeric(12,2)", {"scale": 2, "value": "BNI="}, Decimal("12.34")),
        ("numeric(12,2)", "NAN", UNFIT),
        ("numeric(12,2)", "BNI=", UNFIT),
        ("numeric(50,2)", 3, "3.00"),
        ("decimal", "NAN", "NaN"),
        ("decimal", "NEGATIVE_INF", "-Infinity"),
        ("decimal", "1E-10", "0.0000000001"),
        ("decimal", "1E+3", "1000"),
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("uuid", "{A0EEBC999C0B4EF8BB6D6BB9BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("uuid", "No UUID", "No UUID"),
        ("decimal", "1E+999999999", UNFIT),
        ("date", 2932896, date(9999, 12, 31)),
        ("date", 2932897, UNFIT),
        ("date", "2024-01-01Z", date(2024, 1, 1)),
        ("date", "0000-01-01", UNFIT),
        ("timestamp", 1, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC).replace(tzinfo=None)),
        ("timestamp(3)", 1, datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC).replace(tzinfo=None)),
        ("timestamp", "2024-01-01T00:00:00Z", datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
        ("timestamp", "2024-01-01T00:00:00+01:00", UNFIT),
        ("timestamp with time zone", "2024-01-01T00:00:00.1234567Z", UNFIT),
        ("timestamptz", "2024-01-01T02:00:00.1234560+02:00", CREATED.replace(microsecond=123456)),
        ("timestamptz", "2024-01-01T00:00:00", UNFIT),
        ("timestamptz(0)", 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("timestamptz", "-0043-03-15T00:00:00Z", UNFIT),
        ("time", 86_400_000_000, "24:00:00"),
        ("time", 86_400_000_001, UNFIT),
        ("time(3)", 1500, "00:00:01.5"),
        ("time", "12:30:00.500000Z", "12:30:00.5"),
        ("time with time zone", "12:30:00Z", "12:30:00+00"),
        ("interval", "P-1Y2M3DT-4H0M-5.5S", "-1 years +2 mons 3 days -04:00:05.5"),
        ("interval", "P0Y0M0DT0H0M0S", "00:00:00"),
        ("interval", 2_629_800_000_000, UNFIT),
        ("interval", {"months": 14, "hours": 0, "micros": -1}, "1 year 2 mons -00:00:00.000001"),
        ("interval", {"months": 1, "hours": "1", "micros": 0}, UNFIT),
        ("timestamp", {"date": "2024-01-01"}, UNFIT),
        ("timestamptz", {"timestamp": "2024-01-01T02:00:00.123456+02:00", "offset": 0}, CREATED),
        ("bytea", "", b""),
        ("bytea", "3q2+7w==", b"\xde\xad\xbe\xef"),
        ("bytea", "not base64", UNFIT),
        ("bit(5)", "BQ==", "00101"),
        ("bit", True, "1"),
        ("bit(5)", "/w==", UNFIT),
        ("bit varying(5)", "BQ==", UNFIT),
        ("hstore", {"b": None, "a": 'x"\\'}, '"a"=>"x\\"\\\\", "b"=>NULL'),
        ("hstore", '{"long": "1", "z": "2"}', '"z"=>"2", "long"=>"1"'),
        ("point", {"x": 1, "y": 1e15, "srid": None}, "(1,1e+15)"),
        ("point", {"x": 1, "y": 2, "srid": 4326}, '{"x":1,"y":2,"srid":4326}'),
        ("jsonb", "null", "null"),
        ("jsonb", {"a": [1, Decimal("1.50"), None]}, '{"a":[1,1.50,null]}'),
        ("json", '"\\ud800"', '"\\ud800"'),
        ("text", "\ud800", UNFIT),
        ("text", "a\0b", "a\0b"),
        ("xml", "<a>é</a>", "<a>é</a>"),
        ("citext", "Same", "Same"),
        ("shop.mood", "added later", "added later"),
        ("text[]", ["NULL", None, "", 'a"b'], ["NULL", None, "", 'a"b']),
        ("text[]", ["a", "\ud800"], UNFIT),
        ("text[]", [["a"], ["b"]], UNFIT),
        ("text[]", "a", UNFIT),
        ("int[]", [], []),
        ("int[]", [1, "x"], UNFIT),
        ("numeric(5,2)[]", ["1.5", "NAN"], UNFIT),
    ],
)
def test_a_declared_type_takes_what_fits_it_and_marks_the_rest(type_name: str, value: object, arrived: object) -> None:
    assert parsed(value, type_name) == arrived


@pytest.mark.parametrize(
    ("field", "type_name", "value", "arrived"),
    [
        ({"type": "int8"}, "int2", -1, -1),
        ({"type": "float"}, "float4", 1.5, 1.5),
        ({"type": "int64", "name": "io.debezium.time.Timestamp"}, "timestamp", 1500, "1970-01-01 00:00:01.500000"),
        ({"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, "timestamp", 1_000, "1970-01-01 00:00:00.000001"),
        ({"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, "timestamp", 1_001, UNFIT),
        ({"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}, "timestamp", 0, "1970-01-01 00:00:00"),
        ({"type": "int32", "name": "io.debezium.time.Time"}, "time", 1, "00:00:00.001"),
        ({"type": "int64", "name": "io.debezium.time.NanoTime"}, "time", 1_000, "00:00:00.000001"),
        ({"type": "int64", "name": "io.debezium.time.MicroDuration"}, "int8", 5, 5),
        (
            {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "-2", "connect.decimal.precision": "10"}},
            "numeric(10,-2)",
            "MDk=",
            "1234500",
        ),
        ({"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}}, "numeric", "BNI=", "12.34"),
        (
            {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
            "numeric",
            {"scale": 0, "value": "/w=="},
            "-1",
        ),
        (
            {"type": "struct", "name": "io.debezium.data.geometry.Geometry"},
            "json",
            {"wkb": "AQ==", "srid": None},
            '{"wkb":"AQ==","srid":null}',
        ),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, "hstore", {}, ""),
        ({"type": "string", "name": "io.debezium.data.EnumSet"}, "text", "a,b", "a,b"),
        ({"type": "bytes", "name": "io.debezium.data.Bits"}, "bytea", "BQ==", b"\x05"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "int32"}}}, "json", [[1]], "[[1]]"),
    ],
)
def test_a_field_s_schema_says_type_and_unit(
    field: dict[str, Any], type_name: str, value: object, arrived: object
) -> None:
    assert debezium_column({"field": "value", **field}) == Column(name="value", type=type_name)
    found = parsed(value, type_name, field)
    assert (str(found) if isinstance(found, datetime) else found) == arrived


def test_the_text_of_a_type_that_debezium_does_not_know_comes_in_bytes() -> None:
    assert parsed("KDEsMiksKDMsNCk=", "box", {"type": "bytes"}) == "(1,2),(3,4)"
    assert parsed("/w==", "box", {"type": "bytes"}) is UNFIT


def test_the_declared_type_wins_over_the_schema_s() -> None:
    assert parsed("1.25", "numeric(12,2)", {"type": "string"}) == Decimal("1.25")
    assert parsed(1500, "timestamptz", {"type": "int64", "name": "io.debezium.time.Timestamp"}) == datetime(
        1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC
    )


@pytest.mark.parametrize(
    ("name", "more", "value", "text"),
    [
        ("org.apache.kafka.connect.data.Decimal", {"type": "bytes", "parameters": {"scale": "2"}}, "MDk=", "123.45"),
        ("io.debezium.data.VariableScaleDecimal", {}, {"scale": 3, "value": "+w=="}, "-0.005"),
        ("io.debezium.time.Date", {}, 19_723, "2024-01-01"),
        ("io.debezium.time.MicroTime", {}, 3_661_000_000, "01:01:01"),
        ("io.debezium.time.Timestamp", {}, 1_500, "1970-01-01 00:00:01.500000"),
    ],
)
def test_a_text_has_what_the_value_is_and_not_how_the_field_encodes_it(
    name: str, more: dict[str, Any], value: object, text: str
) -> None:
    assert parsed(value, "text", {"name": name, "type": "struct", **more}) == text


@pytest.mark.parametrize("text", ["1_000", "\u0661", "1\n", " 1", "0x1", "", "1e", "."])
def test_a_text_that_only_python_reads_as_a_number_does_not_fit(text: str) -> None:
    assert parsed(text, "numeric(12,2)", {"type": "string", "name": "x"}) is UNFIT


@pytest.mark.parametrize("field", [{"type": "int32"}, {"field": "x"}, {"field": "x", "type": "unheard of"}])
def test_a_field_without_name_or_type_is_refused(field: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match="declare the column"):
        debezium_column(field)


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("__debezium_unavailable_value", True),
        ("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", True),
        ("5f5f646562657a69756d5f756e617661696c61626c655f76616c7565", True),
        (r"\x5f5f646562657a69756d5f756e617661696c61626c655f76616c7565", True),
        (["__debezium_unavailable_value"], True),
        (["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="], True),
        ([*b"__debezium_unavailable_value"], True),
        ({"__debezium_unavailable_value": "__debezium_unavailable_value"}, True),
        ('{"__debezium_unavailable_value":"__debezium_unavailable_value"}', True),
        (["__debezium_unavailable_value", "more"], False),
        ([], False),
        (None, False),
        ("", False),
        (0, False),
    ],
)
def test_a_value_that_was_not_sent_is_known_by_its_placeholder(value: object, *, is_one: bool) -> None:
    assert is_placeholder(value) is is_one


def test_no_values_and_only_nulls_are_columns_too() -> None:
    for type_name in ("int", "text[]", "numeric(12,2)", "hstore"):
        assert parse_debezium([], type_name, None).values.to_pylist() == []
        assert parse_debezium([None], type_name, None).values.to_pylist() == [None]
    assert parse_debezium([None], "date[]", None).values.type == pa.list_(pa.date32())


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_a_value_that_json_does_not_have_is_unfit(kind: str) -> None:
    values = [{"a": math.nan}, [math.inf], {"a": "NaN"}, "NaN", {"NaN": Decimal("1.0")}, -math.inf]
    parsed = parse_debezium(values, kind, None)
    assert parsed.unfit is not None
    assert parsed.unfit.to_pylist() == [True, True, False, False, False, True]
    assert parsed.values.to_pylist()[2:5] == ['{"a":"NaN"}', "NaN", '{"NaN":1.0}']
