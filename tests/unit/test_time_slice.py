"""Labels are intervals of one grid; a slice file's name goes both ways."""

import re
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.record import encode_position
from cdc_pipeline.time_slice import (
    EPOCH,
    SliceFileName,
    label_of,
)

TIMES = st.integers(0, 9_000_000_000_000_000).map(lambda number: EPOCH + timedelta(microseconds=number))
LENGTHS = st.integers(1, 100_000).map(lambda seconds: timedelta(seconds=seconds))
POSITIONS = st.integers(0, 2**63 - 1)
DIGESTS = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
MINUTE = timedelta(minutes=1)


@given(TIMES, LENGTHS)
def test_a_label_holds_its_time_and_lies_on_the_grid(time: datetime, length: timedelta) -> None:
    label = label_of(time, length)
    assert label.start <= time < label.end
    assert label.end - label.start == length
    assert (label.start - EPOCH) % length == timedelta()


@given(TIMES, TIMES, LENGTHS)
def test_two_labels_are_the_same_or_do_not_touch(one: datetime, other: datetime, length: timedelta) -> None:
    first, second = sorted((label_of(one, length), label_of(other, length)))
    assert first == second or first.end <= second.start


@given(TIMES, LENGTHS, POSITIONS, POSITIONS, DIGESTS)
def test_a_slice_files_name_goes_both_ways_and_spark_can_read_it(
    time: datetime, length: timedelta, start: int, end: int, sha256: str
) -> None:
    name = SliceFileName(
        label=label_of(time, length),
        start_offset=encode_position(start),
        end_offset=encode_position(end),
        sha256=sha256,
    )
    text = str(name)
    assert ":" not in text
    assert re.fullmatch(r"[A-Za-z0-9.-]+", text)
    found = SliceFileName.parse(text)
    assert (found.label, found.start_offset, found.end_offset) == (name.label, name.start_offset, name.end_offset)
    assert sha256.startswith(found.sha256)
    assert str(found) == text


@given(st.lists(st.tuples(TIMES, POSITIONS), min_size=2, max_size=5))
def test_names_of_one_label_length_order_like_label_and_offset(places: list[tuple[datetime, int]]) -> None:
    names = [
        SliceFileName(
            label=label_of(time, MINUTE),
            start_offset=encode_position(p),
            end_offset=encode_position(p),
            sha256="0" * 64,
        )
        for time, p in places
    ]
    assert sorted(names, key=str) == sorted(names, key=lambda name: (name.label, name.start_offset))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "part-0000.parquet",
        "20240101T000000Z-20240101T000100Z.parquet",
        "20241301T000000Z-20240101T000100Z.0000000000000001-0000000000000002.0123456789abcdef.parquet",
        "20240101T000000Z-20240101T000100Z.0000000000000001-0000000000000002.0123456789abcdef.parquet.tmp",
        "20240101T000000Z-20240101T000100Z.1-2.0123456789abcdef.parquet",
    ],
)
def test_any_other_name_is_no_slice_file(name: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        SliceFileName.parse(name)
