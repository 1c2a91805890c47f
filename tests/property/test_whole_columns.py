"""A column that is parsed at once has the values, and the misfits, that each value has on its own."""

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_pipeline.types import Parsed, parse_debezium, parse_whole_column
from cdc_pipeline.types.debezium import parse_one_by_one

TYPES = (
    *(
        "boolean",
        "int2",
        "int4",
        "int8",
        "oid",
        "float4",
        "float8",
        "numeric",
        "numeric(12,2)",
        "numeric(60,2)",
        "bytea",
    ),
    *("date", "timestamp", "timestamp(3)", "timestamptz", "time", "timetz", "interval", "text", "varchar(3)", "uuid"),
    *("bit(3)", "shop.mood", "int4[]", "point", "hstore", "json"),
)
USUAL = (
    *("", "0", "-1", "007", "+5", "12.50", "-0.00", "1e3", "9.555", "123456789012", "0x1F", "1_0", "NaN", "inf", "t"),
    *(
        "TRUE",
        "false",
        "2024-01-31",
        "0000-01-01",
        "0001-01-01",
        "9999-12-31",
        "2024-01-31 10:20:30",
        "2024-01-31T10:20",
    ),
    *("2024-01-31 10:20:30.123456", "2024-01-31 10:20:30.1234567", "2024-01-31 10:20:30.1200000", "2024-01-31 10"),
    *("2024-01-31 10:20:30Z", "2024-01-31T10:20:30.5+05:30", "2024-01-31 10:20:30-0800", "9999-12-31 23:59:59-08"),
    *("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    *("2024-01-31 10Z", "2024-01-31 10:20+05", "10:20:30.500", "10:20Z", "P1D", "AP8=", "\\x00ff", "é", "\ud800", "٣"),
)
EDITED = st.tuples(st.sampled_from(USUAL), st.integers(0, 30), st.sampled_from((*" 0123456789-+.:eETZ", "")))
TEXTS = st.sampled_from(USUAL) | EDITED.map(lambda edit: edit[0][: edit[1]] + edit[2] + edit[0][edit[1] + 1 :])
NUMBERS = st.integers(-(1 << 70), 1 << 70) | st.integers(-100, 100) | st.decimals(allow_nan=False, allow_infinity=False)
VALUES = TEXTS | NUMBERS | st.booleans() | st.just([1]) | st.just({"x": 1, "y": 2})


def shown(parsed: Parsed) -> tuple[str, list[bool]]:
    parsed.values.validate(full=True)
    unfit = [False] * len(parsed.values) if parsed.unfit is None else parsed.unfit.to_pylist()
    whole = parsed.values.cast(pa.int64()) if pa.types.is_timestamp(parsed.values.type) else parsed.values
    return f"{parsed.values.type} {whole.to_pylist()!r}", unfit


@settings(deadline=None, max_examples=600)
@given(data=st.data(), type_name=st.sampled_from(TYPES))
def test_values_of_json_are_parsed_alike(data: st.DataObject, type_name: str) -> None:
    kind = data.draw(st.sampled_from((TEXTS, NUMBERS, st.integers(-9, 40_000), st.booleans(), VALUES)))
    values = data.draw(st.lists(st.none() | kind, max_size=3))
    assert shown(parse_debezium(values, type_name, None)) == shown(parse_one_by_one(values, type_name, None))


WHOLE = 105
"""So many pairs of a column and a type can be parsed at once; all others are left to their values."""
COLUMNS = (
    pa.array([1, None, 40_000], pa.int32()),
    pa.array([2**63, 5], pa.uint64()),
    pa.array([1.5, None, -0.0, 1e300], pa.float64()),
    pa.array([0.07, -123456.78, 5.0, 1e9, None], pa.float64()),
    pa.array([1e-7, 0.1, 1 / 3], pa.float64()),
    pa.array([float("nan"), float("inf")], pa.float64()),
    pa.array([0.1, None], pa.float32()),
    pa.array([12.25, -7.0], pa.float32()),
    pa.array([True, None], pa.bool_()),
    pa.array(["2024-01-31", None], pa.large_string()),
    pa.array(["7", "8", "7"]).dictionary_encode(),
    pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
    pa.array([Decimal("1.555"), None], pa.decimal128(10, 3)),
    pa.array([date(2024, 1, 31), None], pa.date32()),
    pa.array([date(1, 1, 1)], pa.date32()),
    pa.array([1_706_696_430_000_005, None], pa.timestamp("us")),
    pa.array([datetime(2024, 1, 31, 10, 20, 30, 5, UTC), None], pa.timestamp("us", "Europe/Berlin")),
    pa.array([1_700_000_000_000_000_001], pa.timestamp("ns")),
    pa.array([1_700_000_000_000], pa.timestamp("ms", "UTC")),
    pa.array([37_230_000_000], pa.time64("us")),
    pa.nulls(2, pa.null()),
)


def test_columns_of_parquet_are_parsed_as_their_values_in_json() -> None:
    whole = 0
    for column, type_name in product(COLUMNS, TYPES):
        parsed = parse_whole_column(column, type_name)
        if parsed is not None:
            whole += 1
            one_by_one = parse_one_by_one(json_values(column), type_name, None)
            assert shown(Parsed(values=parsed, unfit=None)) == shown(one_by_one), f"{column.type} as {type_name}"
    assert whole >= WHOLE


def json_values(column: pa.Array) -> list[object]:
    """As the line of JSON that stands for a record has them."""
    kind = column.type
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    values: list[object] = column.to_pylist()
    return [Decimal(repr(value)) if isinstance(value, float) and abs(value) < 1e308 else value for value in values]
