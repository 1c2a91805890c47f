"""A field of Debezium whose column is declared as another type: the same value, or one that does not fit."""

from datetime import UTC, datetime

import pytest

from cdc_pipeline.types import parse_debezium

DATE, MICRO_TIME, YEAR = (f"io.debezium.time.{name}" for name in ("Date", "MicroTime", "Year"))
TIMESTAMP = "io.debezium.time.MicroTimestamp"
CONNECT_DATE, DECIMAL = (f"org.apache.kafka.connect.data.{name}" for name in ("Date", "Decimal"))
VARIABLE = "io.debezium.data.VariableScaleDecimal"
BASE64 = "1234"
"""Base64 of a negative number, which looks like another one."""


def parsed(name: str, value: object, type_name: str) -> list[object]:
    """The value, or an empty list for one that does not fit."""
    found = parse_debezium([value], type_name, {"name": name, "parameters": {"scale": "0"}})
    values: list[object] = found.values.to_pylist()
    return values if found.unfit is None or found.unfit.to_pylist() == [False] else []


@pytest.mark.parametrize("name", [DATE, CONNECT_DATE])
def test_a_date_declared_as_a_moment_is_its_midnight(name: str) -> None:
    assert parsed(name, 19_000, "timestamp") == [datetime(2022, 1, 8)]  # noqa: DTZ001
    assert parsed(name, 19_000, "timestamptz(3)") == [datetime(2022, 1, 8, tzinfo=UTC)]
    assert parsed(name, 10**9, "timestamp") == []


@pytest.mark.parametrize(
    ("name", "value", "type_name", "expected"),
    [
        (DECIMAL, BASE64, "int8", -2_658_824),
        (DECIMAL, BASE64, "int4", -2_658_824),
        (DECIMAL, BASE64, "float8", -2_658_824.0),
        (VARIABLE, {"scale": 1, "value": BASE64}, "float8", -265_882.4),
        (VARIABLE, {"scale": 0, "value": BASE64}, "int8", -2_658_824),
    ],
)
def test_a_decimal_declared_as_another_number_is_its_value(
    name: str, value: object, type_name: str, expected: object
) -> None:
    assert parsed(name, value, type_name) == [expected]


def test_a_decimal_that_the_declared_number_cannot_hold_does_not_fit() -> None:
    assert parsed(DECIMAL, BASE64, "int2") == []
    assert parsed(VARIABLE, {"scale": 1, "value": BASE64}, "int8") == []


@pytest.mark.parametrize(
    ("name", "value", "type_name"),
    [
        (YEAR, 2024, "date"),
        (YEAR, 2024, "time"),
        (YEAR, 2024, "timestamp"),
        (YEAR, 2024, "timestamptz"),
        (MICRO_TIME, 1_000_000, "timestamp"),
        (MICRO_TIME, 1_000, "date"),
        (TIMESTAMP, 1_000, "date"),
        (TIMESTAMP, 1_000, "time"),
        (DATE, 1, "time"),
        (DATE, 1, "boolean"),
        (DECIMAL, BASE64, "bit(24)"),
        (DECIMAL, 1, "date"),
    ],
)
def test_a_value_of_another_kind_does_not_fit(name: str, value: object, type_name: str) -> None:
    assert parsed(name, value, type_name) == []
    assert parse_debezium([[value]], f"{type_name}[]", {"type": "array", "items": {"name": name}}).unfit is not None


@pytest.mark.parametrize(
    ("name", "value", "type_name", "expected"),
    [
        (YEAR, 2024, "int4", 2024),
        (DATE, 19_000, "int4", 19_000),
        (MICRO_TIME, -3_600_000_000, "int8", -3_600_000_000),
        (TIMESTAMP, 1_000, "timestamptz", datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)),
        (DECIMAL, BASE64, "bytea", bytes.fromhex("d76df8")),
    ],
)
def test_what_encodes_a_value_can_be_declared(name: str, value: object, type_name: str, expected: object) -> None:
    assert parsed(name, value, type_name) == [expected]
