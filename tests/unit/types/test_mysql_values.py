"""A value of MySQL has one text, whichever way it comes: by the log, by a SELECT, from Debezium or from a file."""

import pytest

from cdc_pipeline.sources.mysql.packed_values import time_reader
from cdc_pipeline.types import parse_debezium
from cdc_pipeline.types.mysql import parse_column_type, parseable_text

MICRO_TIME = {"type": "int64", "name": "io.debezium.time.MicroTime"}
TEN_O_CLOCK = 36_000_000_000


def logged(clock: str, fraction: int, decimals: int) -> bytes:
    """Packs a time as the log does. `fraction`: a number with an even count of digits."""
    hours, minutes, seconds = map(int, clock.split(":"))
    octets = 3 + (decimals + 1) // 2
    packed = (hours << 12 | minutes << 6 | seconds) << (8 * (octets - 3)) | fraction
    return (packed + (1 << (8 * octets - 1))).to_bytes(octets)


@pytest.mark.parametrize(
    ("decimals", "fraction", "printed", "microseconds"),
    [
        (3, 5000, "10:00:00.500", 500_000),
        (6, 500_000, "10:00:00.500000", 500_000),
        (3, 0, "10:00:00.000", 0),
        (6, 120, "10:00:00.000120", 120),
        (0, 0, "10:00:00", 0),
    ],
)
def test_a_time_with_a_fraction_has_one_text(decimals: int, fraction: int, printed: str, microseconds: int) -> None:
    octets = logged("10:00:00", fraction, decimals)
    by_log, end = time_reader(decimals)(octets, 0)
    of_select = parseable_text(parse_column_type(f"time({decimals})" if decimals else "time"))
    by_select = of_select(printed.encode()) if of_select else printed.encode()
    from_events = parse_debezium([TEN_O_CLOCK + microseconds], "time", MICRO_TIME).values.to_pylist()
    from_file = parse_debezium([printed], "time", None).values.to_pylist()
    assert [by_log.decode()] == [by_select.decode()] == from_events == from_file
    assert end == len(octets)
