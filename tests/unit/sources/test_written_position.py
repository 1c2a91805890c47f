"""Positions that people write as values of the fields that order events."""

from datetime import UTC, datetime

import pytest

from cdc_pipeline.sources.debezium.written_position import position_in_order

NUMBERS = ["30450612", "10101010", "1767122590000", "30450612.10", "-30450612", "30450612, 9"]


@pytest.mark.parametrize("text", NUMBERS)
def test_a_plain_number_is_no_date_though_iso_writes_dates_so(text: str) -> None:
    assert position_in_order(text, ("n", "m")).time is None


@pytest.mark.parametrize("begins_with_time", [False, True])
@pytest.mark.parametrize("text", ["3045-06-12", "3045-06-12T00:00:00Z", "30450612T000000", "3045-06-12 02:00:00+02:00"])
def test_a_date_is_a_time(text: str, *, begins_with_time: bool) -> None:
    found = position_in_order(text, ("n",), begins_with_time=begins_with_time)
    assert found.time == datetime(3045, 6, 12, tzinfo=UTC)


def test_a_date_without_dashes_is_one_where_the_order_begins_with_a_time() -> None:
    day, dashed = (position_in_order(text, ("t",), begins_with_time=True) for text in ("20260101", "2026-01-01"))
    assert day == dashed


def test_times_are_compared_however_they_are_written_and_a_date_is_below_every_time_of_its_day() -> None:
    day, night, *ten = (
        position_in_order(text, ("t",)).row_version
        for text in ("2026-01-01", "2026-01-01 00:00:00", "2026-01-01 10:00:00", "2026-01-01T10:00:00Z")
    )
    assert day < night < ten[0] == ten[1]
