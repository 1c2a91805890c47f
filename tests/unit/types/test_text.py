"""Promises of parsing text, by type: what fits comes through exactly, what does not is NULL and marked."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.types import Parsed, parse_text, resolve

INPUTS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view())
UNFIT = object()
BEFORE_CHRIST = "0044-03-15 BC"

CASES: dict[str, dict[str, object]] = {
    "boolean": {"t": True, "f": False},
    "int2": {"-32768": -32768, "32767": 32767},
    "int8": {"9223372036854775807": 9223372036854775807},
    "oid": {"4294967295": 4294967295},
    "float8": {"Infinity": float("inf"), "-Infinity": float("-inf"), "5e-324": 5e-324, "-1.5": -1.5},
    "float4": {"1.5": 1.5, "-Infinity": float("-inf")},
    "numeric(5,2)": {
        "999.99": Decimal("999.99"),
        "-0.01": Decimal("-0.01"),
        "NaN": UNFIT,
        "Infinity": UNFIT,
        "1000.00": UNFIT,
        "0.001": UNFIT,
    },
    "numeric(2,2)": {"0.11": Decimal("0.11"), "-0.99": Decimal("-0.99"), "1.00": UNFIT},
    "numeric": {"NaN": "NaN", "1.50": "1.50"},
    "text": {"": "", "NULL": "NULL", "é😀 long enough to live outside": "é😀 long enough to live outside"},
    "bytea": {"\\x": b"", "\\x00ff61": b"\x00\xffa"},
    "date": {
        "2024-02-29": date(2024, 2, 29),
        "0001-01-01": date(1, 1, 1),
        "9999-12-31": date(9999, 12, 31),
        "0000-05-06": UNFIT,
        "10000-01-01": UNFIT,
        "5874897-12-31": UNFIT,
        "infinity": UNFIT,
        "-infinity": UNFIT,
        BEFORE_CHRIST: UNFIT,
    },
    "timestamp": {
        "2024-02-29 23:59:59.5": datetime(2024, 2, 29, 23, 59, 59, 500_000, tzinfo=UTC).replace(tzinfo=None),
        "0001-01-01 00:00:00": datetime(1, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        "infinity": UNFIT,
        "0044-03-15 00:00:00 BC": UNFIT,
        "10000-01-01 00:00:00": UNFIT,
        "0000-05-06 01:02:03": UNFIT,
    },
    "timestamptz": {
        "2024-01-01 00:00:00.123456+00": datetime(2024, 1, 1, microsecond=123456, tzinfo=UTC),
        "2024-01-01 00:00:00.5+05:30": datetime(2023, 12, 31, 18, 30, 0, 500_000, tzinfo=UTC),
        "2024-01-01 00:00:00-03": datetime(2024, 1, 1, 3, tzinfo=UTC),
        "1890-01-01 00:00:15+00:00:15": datetime(1890, 1, 1, tzinfo=UTC),
        "1890-01-01 00:00:00-00:00:15": datetime(1890, 1, 1, 0, 0, 15, tzinfo=UTC),
        "9999-12-31 23:59:59.999999+00": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "0001-01-01 00:00:00+01": UNFIT,
        "9999-12-31 23:59:59-01": UNFIT,
        "0044-03-15 00:00:00+00 BC": UNFIT,
        "-infinity": UNFIT,
    },
    "time": {"24:00:00": "24:00:00"},
    "interval": {"-1 years +2 mons 00:00:03": "-1 years +2 mons 00:00:03"},
    "uuid": {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
    "int4[]": {
        "{}": [],
        "{1,NULL,-2}": [1, None, -2],
        "{{1,2},{3,4}}": UNFIT,
        "[0:1]={1,2}": UNFIT,
    },
    "text[]": {
        "{a,b}": ["a", "b"],
        '{"a,b","c\\"d\\\\",NULL,"NULL",""}': ["a,b", 'c"d\\', None, "NULL", ""],
        '{"{x}","a\nb"}': ["{x}", "a\nb"],
    },
    "date[]": {"{2024-01-01,NULL}": [date(2024, 1, 1), None], "{2024-01-01,infinity}": UNFIT, "{}": []},
    "timestamp[]": {'{"2024-01-01 00:00:00"}': [datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)]},
    "numeric(5,2)[]": {"{1.50,NaN}": UNFIT, "{1.50}": [Decimal("1.50")]},
    "bytea[]": {'{"\\\\x6162",NULL}': [b"ab", None]},
    "box[]": {"{(1,1),(0,0);(2,2),(1,1)}": ["(1,1),(0,0)", "(2,2),(1,1)"]},
}


def marks(parsed: Parsed) -> list[bool]:
    return [False] * len(parsed.values) if parsed.unfit is None else parsed.unfit.to_pylist()


@pytest.mark.parametrize("arrow", INPUTS, ids=str)
@pytest.mark.parametrize("type_name", CASES)
def test_every_value_arrives_exactly_or_is_marked_unfit(type_name: str, arrow: pa.DataType) -> None:
    texts = [None, *CASES[type_name], None]
    expected = [None, *CASES[type_name].values(), None]
    whole = pa.array([None, *texts], pa.string()).cast(pa.binary()).cast(arrow)
    parsed = parse_text(whole.slice(1), resolve(type_name))
    parsed.values.validate(full=True)
    assert parsed.values.type == resolve(type_name).arrow
    assert parsed.values.to_pylist() == [None if value is UNFIT else value for value in expected]
    unfit = [value is UNFIT for value in expected]
    assert marks(parsed) == unfit
    assert (parsed.unfit is None) == (not any(unfit))


@pytest.mark.parametrize("type_name", CASES)
def test_no_values_and_only_nulls_parse_too(type_name: str) -> None:
    for texts in ([], [None], [None] * 9):
        parsed = parse_text(pa.array(texts, pa.string_view()), resolve(type_name))
        assert (parsed.values.to_pylist(), parsed.unfit) == (texts, None)


def test_nan_of_a_float_is_kept() -> None:
    (value,) = parse_text(pa.array(["NaN"]), resolve("float8")).values.to_pylist()
    assert math.isnan(value)


@pytest.mark.parametrize("type_name", ["text", "jsonb", "shop.mood"])
def test_text_that_is_not_utf8_is_unfit(type_name: str) -> None:
    parsed = parse_text(pa.array([b"good", b"\xff\xfe", None, b"too"], pa.binary()), resolve(type_name))
    assert parsed.values.to_pylist() == ["good", None, None, "too"]
    assert marks(parsed) == [False, True, False, False]


def test_views_of_unchecked_bytes_are_checked() -> None:
    octets = pa.array([b"good", b"\xff" * 20], pa.binary_view())
    unchecked = pa.Array.from_buffers(pa.string_view(), 2, octets.buffers())
    assert marks(parse_text(unchecked, resolve("text"))) == [False, True]


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("boolean", "true"),
        ("int4", "abc"),
        ("int2", "32768"),
        ("float8", "1,5"),
        ("numeric(5,2)", "1e3"),
        ("bytea", "abc"),
        ("bytea", "\\x0g"),
        ("bytea", "\\x0"),
        ("date", "2023-02-30"),
        ("timestamp", "2024-01-01 00:00:00+00"),
        ("timestamptz", "2024-01-01 00:00:00"),
        ("int4[]", "1,2"),
        ("int4[]", "{1,,2}"),
        ("int4[]", "{1,x}"),
        ("text[]", '{"open}'),
        ("text[]", '{"open'),
    ],
)
def test_text_that_the_type_never_prints_is_an_error_that_shows_it(type_name: str, text: str) -> None:
    with pytest.raises(DecodeError, match="as PostgreSQL prints it") as caught:
        parse_text(pa.array([None, text, None]), resolve(type_name))
    assert text.strip("{}").replace("\\", "\\\\").split(",")[-1] in str(caught.value)
