"""A table's pages are split into ranges that hold every page once, also those that come later."""

import json
from dataclasses import asdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.sources.postgres.page_ranges import PAGE_BYTES, PageRange, page_ranges

SIZES = st.integers(0, 10_000).map(lambda pages: pages * PAGE_BYTES)
FILES = st.integers(PAGE_BYTES, 1000 * PAGE_BYTES)


@given(SIZES, FILES)
def test_ranges_follow_each_other_from_the_first_page_to_whatever_is_last(size: int, file_bytes: int) -> None:
    ranges = page_ranges("public", "orders", size, file_bytes)
    assert ranges[0].first == 0
    assert all(earlier.end == later.first for earlier, later in pairwise(ranges))
    assert [each.end is None for each in ranges] == [False] * (len(ranges) - 1) + [True]


@given(SIZES, FILES)
def test_no_range_is_larger_than_a_file_and_none_is_empty(size: int, file_bytes: int) -> None:
    ranges = page_ranges("public", "orders", size, file_bytes)
    pages = [(each.end if each.end is not None else max(1, size // PAGE_BYTES)) - each.first for each in ranges]
    assert all(0 < count * PAGE_BYTES <= file_bytes for count in pages)


def test_an_empty_table_has_one_range() -> None:
    assert page_ranges("public", "orders", 0, PAGE_BYTES) == [
        PageRange(schema="public", relation="orders", first=0, end=None)
    ]


def test_a_range_survives_json() -> None:
    for found in page_ranges("public", "orders", 3 * PAGE_BYTES, PAGE_BYTES):
        assert PageRange(**json.loads(json.dumps(asdict(found)))) == found
