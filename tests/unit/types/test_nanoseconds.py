"""Times of Debezium that are finer than a microsecond fit a text, or a number as it is written."""

import pytest

from cdc_pipeline.types import parse_debezium

TIMESTAMP = {"type": "int64", "name": "io.debezium.time.NanoTimestamp"}
TIME = {"type": "int64", "name": "io.debezium.time.NanoTime"}


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        (TIMESTAMP, 1_700_000_000_123_456_700, "2023-11-14 22:13:20.1234567"),
        (TIMESTAMP, 1_700_000_000_123_456_789, "2023-11-14 22:13:20.123456789"),
        (TIMESTAMP, 1_700_000_000_000_000_100, "2023-11-14 22:13:20.0000001"),
        (TIMESTAMP, 1_700_000_000_120_000_100, "2023-11-14 22:13:20.1200001"),
        (TIMESTAMP, -100, "1969-12-31 23:59:59.9999999"),
        (TIMESTAMP, 1_700_000_000_120_000_000, "2023-11-14 22:13:20.120000"),
        (TIMESTAMP, 1_700_000_000_000_000_000, "2023-11-14 22:13:20"),
        (TIME, 100, "00:00:00.0000001"),
        (TIME, 86_399_123_456_700, "23:59:59.1234567"),
        (TIME, 86_399_120_000_000, "23:59:59.12"),
    ],
)
def test_a_time_with_nanoseconds_is_the_text_of_that_value(field: dict[str, str], value: int, shown: str) -> None:
    parsed = parse_debezium([value], "text", field)
    assert (parsed.unfit, parsed.values.to_pylist()) == (None, [shown])
    assert parse_debezium([value], "int8", field).values.to_pylist() == [value]


@pytest.mark.parametrize(("field", "value"), [(TIME, 86_400_000_000_100), (TIME, -1), (TIMESTAMP, True)])
def test_what_is_no_time_does_not_fit_a_text_either(field: dict[str, str], value: object) -> None:
    assert parse_debezium([value], "text", field).unfit is not None
