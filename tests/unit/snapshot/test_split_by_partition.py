"""Rows of a snapshot data file go to the data partition that their own values name."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.settings import PartitionBy
from snapshot.snapshot_to_staging import partition_values, split_by_partition

MOMENTS = st.none() | st.integers(0, 4_000_000_000).map(
    lambda seconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
)
ROWS = st.lists(st.tuples(MOMENTS, st.none() | st.sampled_from(["de", "fr", ""])), max_size=30)
BY_MONTH = PartitionBy(column="created_at", unit="month")
BY_COUNTRY = PartitionBy(column="country")
FORMATS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}


def table_of(rows: list[tuple[datetime | None, str | None]]) -> pa.Table:
    return pa.table(
        {
            "place": pa.array(range(len(rows)), pa.int64()),
            "created_at": pa.array([moment for moment, _ in rows], pa.timestamp("us", "UTC")),
            "country": pa.array([country for _, country in rows], pa.string()),
        }
    )


@given(ROWS)
def test_every_row_is_in_exactly_the_partition_of_its_values_and_order_is_kept(
    rows: list[tuple[datetime | None, str | None]],
) -> None:
    parts = list(split_by_partition(table_of(rows), (BY_MONTH, BY_COUNTRY)))
    expected: dict[Any, list[int]] = {}
    for place, (moment, country) in enumerate(rows):
        month = None if moment is None else f"{moment:%Y-%m}"
        key = (("_cdc_created_at_month", month), ("_cdc_country_value", country))
        expected.setdefault(key, []).append(place)
    assert {partition: part["place"].to_pylist() for partition, part in parts} == expected
    assert len(parts) == len(expected)


@given(ROWS)
def test_without_partition_keys_there_is_one_part(rows: list[tuple[datetime | None, str | None]]) -> None:
    table = table_of(rows)
    assert list(split_by_partition(table, ())) == ([((), table)] if rows else [])


def test_no_rows_have_no_parts() -> None:
    assert list(split_by_partition(table_of([]), (BY_MONTH,))) == []


@pytest.mark.parametrize("unit", list(FORMATS))
def test_moments_are_named_in_utc(unit: Any) -> None:
    moment = datetime(2024, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    column = pa.chunked_array([pa.array([moment, None], pa.timestamp("us", "UTC"))])
    named = partition_values(column, PartitionBy(column="created_at", unit=unit)).to_pylist()
    assert named == [f"{moment:{FORMATS[unit]}}", None]


@pytest.mark.parametrize(
    ("type_", "value", "name"),
    [(pa.int64(), 7, "7"), (pa.string(), "a b", "a b"), (pa.bool_(), True, "true")],
)
def test_other_values_are_named_by_their_text(type_: pa.DataType, value: object, name: str) -> None:
    column = pa.chunked_array([pa.array([value], type_)])
    assert partition_values(column, BY_COUNTRY).to_pylist() == [name]


def test_years_have_four_digits() -> None:
    column = pa.chunked_array([pa.array([date(33, 4, 3)], pa.date32())])
    texts = [partition_values(column, PartitionBy(column="at", unit=unit))[0].as_py() for unit in ("year", "day")]
    assert texts == ["0033", "0033-04-03"]


def test_values_that_arrow_cannot_cast_are_named_too() -> None:
    for values in (pa.array([b"\xff", None]), pa.array([[1, 2], None])):
        texts = partition_values(pa.chunked_array([values]), BY_COUNTRY).to_pylist()
        assert (texts[0] is None, texts[1]) == (False, None)
